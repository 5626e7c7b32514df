"""Fields of a job with type, bounds and default, from the models of the wire format."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pydantic import JsonValue

from training.config.plan import Plan
from training.config.spec import Augmentation
from worker.cli.formatting.text import columns
from worker.wire import TrainJob

REQUIRED: Final = "required"
Schema = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class JobField:
    """A field that `--set` takes."""

    name: str
    kind: str
    """Type, or the values that it may have."""
    bounds: str
    default: str
    what: str

    @property
    def limits(self) -> str:
        """Bounds and default, for the help of an option."""
        default = self.default if self.default == REQUIRED else f"default: {self.default}"
        return "; ".join(filter(None, (self.bounds, default)))


def job_fields() -> dict[str, JobField]:
    """Return every field of a job by its name; those of `plan` and `augmentation` as `plan.threads`."""
    schema = TrainJob.model_json_schema()
    parts, docs = _object(schema["$defs"]), _docs(TrainJob)
    found: dict[str, JobField] = {}
    for name, value in _object(schema["properties"]).items():
        reference = _object(value).get("$ref")
        if isinstance(reference, str):
            inner = _object(_object(parts[reference.rpartition("/")[2]])["properties"])
            inner_docs = _docs(Plan if name == "plan" else Augmentation)
            rows = {f"{name}.{part}": _field(f"{name}.{part}", _object(one), inner_docs.get(part, ""))
                    for part, one in inner.items()}  # fmt: skip
            found |= rows
        elif name != "type":
            found[name] = _field(name, _with_choices(_object(value), parts), docs.get(name, ""))
    return found


def field_table() -> str:
    """Return the fields as aligned columns."""
    rows = [(one.name, one.kind, one.bounds, one.default, one.what) for one in job_fields().values()]
    return columns([("FIELD", "TYPE", "BOUNDS", "DEFAULT", "WHAT"), *rows])


def _with_choices(schema: Schema, parts: Schema) -> Schema:
    """Return the schema of a number or an object as that of the number, with the names of the object's fields."""
    match schema:
        case {"oneOf": [dict(number), {"$ref": str(reference)}]}:
            names = _object(_object(parts[reference.rpartition("/")[2]])["properties"])
            return {**number, "default": schema["default"], "type": f"{number['type']} or {{{', '.join(names)}}}"}
    return schema


def _field(name: str, schema: Schema, doc: str) -> JobField:
    options = schema.get("anyOf")
    own = _object(options[0]) if isinstance(options, list) else schema
    what = (doc or str(own.get("description") or "")).replace("\n", " ").partition(". ")[0].rstrip(".")
    if isinstance(items := own.get("items"), dict):
        what += f": {_kind(items)}"
    return JobField(name, _kind(own), _bounds(own), _default(schema), what)


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return REQUIRED
    match schema["default"]:
        case None:
            return "none"
        case bool(on):
            return "on" if on else "off"
        case value:
            return str(value)


def _kind(schema: Schema) -> str:
    match schema:
        case {"enum": list(values)}:
            return ", ".join(map(str, values))
        case {"type": "array"}:
            return "list"
        case {"type": "boolean"}:
            return "on or off"
        case {"type": "string"}:
            return "name"
    return str(schema.get("type"))


def _bounds(schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    least = "" if low is None and above is None else _number(low) if above is None else f"above {_number(above)}"
    most = "" if high is None and below is None else _number(high) if below is None else f"below {_number(below)}"
    return " to ".join(filter(None, (least, most)))


def _number(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _docs(model: type[TrainJob] | type[Augmentation] | type[Plan]) -> dict[str, str]:
    """Return the docstrings of the attributes of a class."""
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    return dict(_pairs(parsed)) if isinstance(parsed, ast.ClassDef) else {}


def _pairs(parsed: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for attribute, following in pairwise(parsed.body):
        match attribute, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}
