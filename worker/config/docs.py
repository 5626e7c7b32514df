"""docs/configuration.md, generated from worker/config/settings.py by `python -m worker.config.docs`."""

import ast
import inspect
import itertools
import sys
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo

from worker.config.settings import Settings, variables
from worker.wire.validation_errors import BOUNDS, Schema

HEAD: Final = """# Configuration

Environment variables, all optional; an empty one counts as unset. Only `worker/config/settings.py` reads them;
`make docs` generates this page from it. A value out of bounds ends a command with exit code 2 and one sentence that
names the variable. Training processes get none of `PREFLIGHT_*`, `REDIS_*` and `RAILWAY_*`.

`preflight doctor` checks the settings: Redis, directories, data, packages.

| variable | value | default | description |
|---|---|---|---|
"""
TYPES: Final = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def page() -> str:
    """Return the page, with one row per setting."""
    texts, schema = _docstrings(), Settings.model_json_schema()
    properties = schema["properties"]
    rows = [
        f"| {_names(name)} | {_value(name, properties[name])} | {_default(field)} | {texts[name]} |"
        for name, field in Settings.model_fields.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


def _docstrings() -> dict[str, str]:
    """Return the docstring of each field on one line; pydantic would read them at every import."""
    (body,) = ast.parse(inspect.getsource(Settings)).body
    found: dict[str, str] = {}
    if isinstance(body, ast.ClassDef):
        for field, below in itertools.pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split()).replace("|", "\\|")
    return found


def _names(field: str) -> str:
    return ", ".join(f"`{variable}`" for variable in variables(field))


def _value(name: str, node: Schema) -> str:
    """Return the type of a value and its bounds."""
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
    return ", ".join([TYPES[str(node["type"])], *bounds])


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"`{_number(field.default)}`"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/configuration.md").write_text(page())
