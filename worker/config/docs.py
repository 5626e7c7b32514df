"""docs/reference/configuration.md, generated from all settings by `python -m worker.config.docs`."""

import ast
import inspect
import itertools
import sys
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo

from preflight.cli.settings import ClientSettings, variables
from preflight.redis.parameters import IGNORED_NAMES, USED
from preflight.wire.validation_errors import BOUNDS, Schema
from worker.config.settings import Settings

HEAD: Final = """# Configuration

Environment variables, all optional; an empty one counts as unset. Commands that need only Redis (`enqueue`, `jobs`,
`watch`, `cancel`, `retry`, `resubmit`) read those of `client/preflight/cli/settings.py`, which come first; the others
read those of `worker/config/settings.py`, too. `make docs` generates this page from both. A value out of bounds ends a
command with exit code 2 and one sentence that names the variable. Training processes get none of `PREFLIGHT_*`,
`REDIS_*` and `RAILWAY_*`.

White space and quotation marks around a value do not count: a newline from `echo`, a CR of a file from Windows, quotes
that `docker run --env-file` keeps. A value with a control character in it, with half a pair of quotation marks or with
a placeholder (`${{...}}`, `${NAME}`, `$(NAME)`, `{{...}}`: "holds the placeholder ..., which nothing has replaced") is
refused, and so is a URL where a directory is meant. Where HOME names no directory and the user id has none, the
directories that are not set are in the directory for temporary files, and a warning says so.

`preflight doctor` checks the settings: Redis, directories, data, packages.

| variable | value | default | description |
|---|---|---|---|
"""
TAIL: Final = """
## Parameters of a Redis address

`REDIS_URL`, and the argument of `preflight.Client`, may be written as for another client or as a platform gives it:
`redis://` (also `valkey://`), with TLS `rediss://` (`valkeys://`, `redis+ssl://`, `redis+tls://`), or for a socket
`unix:///path` (`redis+socket://`). Addresses of Sentinel, of a cluster and of a REST service are refused. Upper and
lower case of a parameter's name do not matter.

| parameter | meaning |
|---|---|
{used}

These have no effect, because waiting, pools, retries and names of keys are preflight's own; a worker, the web service
and `preflight doctor` say so ("has the parameter ..., which has no effect here and can be left out"), as for `ssl_*` in
an address without TLS. They may be written in snake case, in camel case or with hyphens:

{ignored}.

Any other parameter is refused with exit code 2 ("has the parameter ..., which is unknown"): it may be a misspelt one. A
parameter `tls` or `ssl` that contradicts `redis://` or `rediss://` is refused, too, and so is a path that is not the
number of a database. In a user name and a password write `/ # ? @` as `%2F %23 %3F %40`.

Certificates: `ssl_cert_reqs` is `none`, `optional` or `required`, also as `CERT_NONE` and so on. With `none` nothing is
verified, as for Heroku's Redis, whose certificate is self-signed.
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
    return HEAD + "\n".join(rows) + "\n" + TAIL.format(used=_parameters(), ignored=_ignored())


def _parameters() -> str:
    """Return the rows of the parameters of a Redis address that count, those of one meaning in one row."""
    labels: dict[tuple[str, str], list[str]] = {}
    for label, parameter in USED.items():
        labels.setdefault((parameter.name, parameter.wanted), []).append(f"`{label}`")
    return "\n".join(f"| {', '.join(names)} | {_meaning(*key)} |" for key, names in labels.items())


def _meaning(name: str, wanted: str) -> str:
    if not name:
        return f"{wanted}; every address of a host is tried anyway"
    return f"{wanted}; redis-py's `{name}`" if name != "tls" else f"{wanted}; must agree with the scheme"


def _ignored() -> str:
    return ", ".join(f"`{name}`" for name in IGNORED_NAMES)


def _docstrings() -> dict[str, str]:
    """Return the docstring of each field on one line; pydantic would read them at every import."""
    bodies = [ast.parse(inspect.getsource(model)).body[0] for model in (ClientSettings, Settings)]
    found: dict[str, str] = {}
    for body in (body for body in bodies if isinstance(body, ast.ClassDef)):
        for field, below in itertools.pairwise(body.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split()).replace("|", "\\|")
    return found


def _names(field: str) -> str:
    return ", ".join(f"`{variable}`" for variable in variables(Settings, field))


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
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/configuration.md").write_text(page())
