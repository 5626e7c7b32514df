"""The page docs/configuration.md, written from worker/config/settings.py by `python -m worker.config.docs`."""

import ast
import inspect
import itertools
import sys
from pathlib import Path
from typing import Final

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from worker.config.settings import Settings
from worker.wire.validation_errors import Schema

HEAD: Final = """# Configuration

Environment variables, all optional; an empty one counts as unset. `worker/config/settings.py` alone reads them, and
this page is written from it (`make docs`). A value out of its bounds ends a command with exit code 2 and one sentence
that names the variable. A training child sees none of `PREFLIGHT_*`, `REDIS_*` and `RAILWAY_*`.

`preflight doctor` looks at what they lead to: Redis, directories, data, packages.

| variable | value | default | what it is |
|---|---|---|---|
"""
BOUNDS: Final = {
    "minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}", "exclusiveMaximum":
    "less than {}",
}  # fmt: skip
"""JSON Schema's bounds -> how they are said."""
KINDS: Final = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def page() -> str:
    """Return the page: one row a setting, in the order of the class."""
    said, schema = _docstrings(), Settings.model_json_schema(by_alias=False)
    properties = schema["properties"]
    rows = [
        f"| {_variables(name, field)} | {_value(name, properties[name])} | {_default(field)} | {_cell(said[name])} |"
        for name, field in Settings.model_fields.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


def _docstrings() -> dict[str, str]:
    """Return the text below each field, on one line; pydantic reads them only for those who pay at every start."""
    (body,) = ast.parse(inspect.getsource(Settings)).body
    found: dict[str, str] = {}
    if isinstance(body, ast.ClassDef):
        for field, below in itertools.pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def _variables(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        names = [str(choice) for choice in alias.choices]
    else:
        names = [alias if isinstance(alias, str) else f"PREFLIGHT_{name.upper()}"]
    return ", ".join(f"`{variable}`" for variable in names)


def _value(name: str, node: Schema) -> str:
    """Return the kind of a value and its bounds."""
    match node:
        case {"anyOf": [dict(first), *_]}:
            return _value(name, first)
        case {"enum": list(choices)}:
            return ", ".join(f"`{choice}`" for choice in choices)
        case {"format": "path"}:
            return "file" if name.endswith("_file") else "directory"
        case {"format": "password"}:
            return "secret"
        case {"pattern": str(pattern)}:
            return f"text that matches `{pattern}`"
    bounds = [text.format(_number(node[bound])) for bound, text in BOUNDS.items() if bound in node]
    return ", ".join([KINDS[str(node["type"])], *bounds])


def _default(field: FieldInfo) -> str:
    default: object = field.default
    if default is None:
        return ""
    return f"`{_number(default)}`"


def _number(value: object) -> str:
    """Return a number as short as it is; anything else as its text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/configuration.md").write_text(page())
