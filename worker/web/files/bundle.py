"""The page as few files: a script for the list, one for each other view, and the styles within index.html.

Each request costs a phone a round trip and half a kilobyte of headers; a separate style sheet delays the first paint,
and code that no view has asked for delays the first answer.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

INDEX: Final = "index.html"
ENTRY: Final = "views/app.js"
SCRIPT: Final = "app.js"
"""The script that index.html names."""
COMMENT: Final = re.compile(r"^[ \t]*(?://[^\n]*|/\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
"""A comment that fills whole lines."""
IMPORT: Final = re.compile(r'^import \{(.*)\} from "(.*)";$', re.MULTILINE)
DYNAMIC: Final = re.compile(r'\bimport\("([^"]+)"\)')
EXPORT: Final = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)
STYLE: Final = re.compile(r'^[ \t]*<link rel="stylesheet" href="page/(.*)">\n', re.MULTILINE)
END_OF_HEAD: Final = "</head>"


@dataclass(frozen=True, slots=True)
class Index:
    """index.html with its styles."""

    html: str
    style_hash: str
    """Hash of the styles for the policy: `style-src 'sha256-...'` (CSP level 3, 2.3.1)."""


def inline_styles(html: str, sources: Mapping[str, str]) -> Index:
    """Return index.html with the style sheets that it links."""
    style = "".join(COMMENT.sub("", sources[name]) for name in STYLE.findall(html))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    whole = STYLE.sub("", html).replace(END_OF_HEAD, f"<style>{style}</style>\n{END_OF_HEAD}", 1)
    return Index(whole, f"'sha256-{digest}'")


def bundle(sources: Mapping[str, str], entry: str = ENTRY) -> dict[str, str]:
    """Return the scripts of the page by their names, without comments.

    `app.js` has the module `entry` and all that it imports. Each module that one of them imports by `import()` is a
    separate script, with those of its imports that `app.js` lacks. Its name has the hash of all sources: after an
    update it is another file, so that a page that is still open never mixes two versions.

    Each module becomes a function that runs once, before the modules that import it. Only `import { ... } from`,
    `import("...")` and exported functions, classes and constants are known.

    Raises:
        ValueError: modules import each other.
    """
    shared = _closure(entry, sources)
    views = dict.fromkeys(_resolve(module, path) for module in shared for path in DYNAMIC.findall(sources[module]))
    closures = {view: _closure(view, sources) for view in views}
    every = dict.fromkeys([*shared, *(module for closure in closures.values() for module in closure)])
    names = {module: f"$module{number}" for number, module in enumerate(every)}
    digest = hashlib.sha256("".join(map(sources.__getitem__, every)).encode()).hexdigest()[:12]
    files = {view: f"{PurePosixPath(view).stem}-{digest}.js" for view in views}

    def script(modules: Iterable[str]) -> str:
        return "".join(_wrapped(module, sources[module], names, files) for module in modules)

    exported = ", ".join(names[module] for module in shared)
    scripts = {SCRIPT: f"{script(shared)}export {{ {exported} }};\n"}
    for view, closure in closures.items():
        own = [module for module in closure if module not in shared]
        offered = ", ".join(name for _, name in EXPORT.findall(sources[view]))
        end = f"export const {{ {offered} }} = {names[view]};\n"
        scripts[files[view]] = f'import {{ {exported} }} from "./{SCRIPT}";\n{script(own)}{end}'
    return scripts


def _closure(module: str, sources: Mapping[str, str]) -> dict[str, None]:
    """Return `module` after all that it imports, each once; raises `ValueError`."""
    order: dict[str, None] = {}  # a set that keeps its order
    _add(module, sources, (), order)
    return order


def _add(module: str, sources: Mapping[str, str], importers: tuple[str, ...], order: dict[str, None]) -> None:
    """Add what `module` imports to `order`, then `module`, each once."""
    if module in importers:
        raise ValueError(f"{' imports '.join((*importers, module))}: break the cycle")
    if module in order:
        return
    for _, path in IMPORT.findall(sources[module]):
        _add(_resolve(module, path), sources, (*importers, module), order)
    order[module] = None


def _wrapped(module: str, source: str, names: Mapping[str, str], files: Mapping[str, str]) -> str:
    def imported(found: re.Match[str]) -> str:
        return f"const {{{found[1].replace(' as ', ': ')}}} = {names[_resolve(module, found[2])]};"

    def loaded(found: re.Match[str]) -> str:
        return f'import("./{files[_resolve(module, found[1])]}")'

    exported = ", ".join(name for _, name in EXPORT.findall(source))
    body = EXPORT.sub(r"\1 \2", DYNAMIC.sub(loaded, IMPORT.sub(imported, _stripped(source))))
    return f"const {names[module]} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _stripped(source: str) -> str:
    """Return a module without indentation, and without the comments that fill whole lines."""
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
