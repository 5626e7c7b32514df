"""The page as two files: its modules as one script, and its styles within index.html.

Each request costs a phone a round trip and half a kilobyte of headers; a style sheet of its own delays the first paint.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

INDEX: Final = "index.html"
ENTRY: Final = "views/app.js"
SCRIPT: Final = "app.js"
"""The name of the bundle."""
COMMENT: Final = re.compile(r"^[ \t]*(?://[^\n]*|/\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
"""A comment on lines of its own."""
IMPORT: Final = re.compile(r'^import \{(.*)\} from "(.*)";$', re.MULTILINE)
EXPORT: Final = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
STYLE: Final = re.compile(r'^[ \t]*<link rel="stylesheet" href="page/(.*)">\n', re.MULTILINE)
END_OF_HEAD: Final = "</head>"


@dataclass(frozen=True, slots=True)
class Index:
    """index.html with its styles."""

    html: str
    style_hash: str
    """For the policy: `style-src 'sha256-...'` (CSP level 3, 2.3.1)."""


def inline_styles(html: str, sources: Mapping[str, str]) -> Index:
    """Return index.html with the style sheets that it links."""
    style = "".join(COMMENT.sub("", sources[name]) for name in STYLE.findall(html))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    whole = STYLE.sub("", html).replace(END_OF_HEAD, f"<style>{style}</style>\n{END_OF_HEAD}", 1)
    return Index(whole, f"'sha256-{digest}'")


def bundle(sources: Mapping[str, str], entry: str = ENTRY) -> str:
    """Return the module `entry` and all that it imports as one script, without comments.

    Each module is a function of its own that runs once, before the modules that import it. Only `import { ... } from`
    and exported functions, classes and constants are known.

    Raises:
        ValueError: modules import each other.
    """
    order: dict[str, None] = {}  # a set that keeps its order
    _add(entry, sources, (), order)
    names = {module: f"$module{number}" for number, module in enumerate(order)}
    return "".join(_wrapped(module, sources[module], names) for module in order)


def _add(module: str, sources: Mapping[str, str], importers: tuple[str, ...], order: dict[str, None]) -> None:
    """Add what `module` imports to `order`, then `module`, each once."""
    if module in importers:
        raise ValueError(f"{' imports '.join((*importers, module))}: break the cycle")
    if module in order:
        return
    for _, path in IMPORT.findall(sources[module]):
        _add(_resolve(module, path), sources, (*importers, module), order)
    order[module] = None


def _wrapped(module: str, source: str, names: Mapping[str, str]) -> str:
    def imported(found: re.Match[str]) -> str:
        return f"const {{{found[1].replace(' as ', ': ')}}} = {names[_resolve(module, found[2])]};"

    exported = ", ".join(name for _, name in EXPORT.findall(source))
    body = EXPORT.sub(r"\1 \2", IMPORT.sub(imported, _stripped(source)))
    return f"const {names[module]} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _stripped(source: str) -> str:
    """Return a module without the comments that have lines of their own, and without indentation."""
    return re.sub(r"^[ \t]+", "", COMMENT.sub("", source), flags=re.MULTILINE)


def _resolve(module: str, path: str) -> str:
    """Return the path in the page's folder of what `module` imports as `path`."""
    parts: list[str] = []
    for part in (PurePosixPath(module).parent / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
