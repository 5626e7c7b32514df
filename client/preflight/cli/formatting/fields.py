"""Fields of a job with type, bounds and default, from the models of the wire format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from preflight.cli.formatting.text import columns
from preflight.wire.json_schema import job_schema

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
    schema = job_schema()
    parts = _object(schema["$defs"])
    found: dict[str, JobField] = {}
    for name, value in _object(schema["properties"]).items():
        reference = _object(value).get("$ref")
        if isinstance(reference, str):
            inner = _object(_object(parts[reference.rpartition("/")[2]])["properties"])
            found |= {f"{name}.{part}": _field(f"{name}.{part}", _object(one)) for part, one in inner.items()}
        elif name != "type":
            found[name] = _field(name, _with_choices(_object(value), parts))
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
            kind = f"{number['type']} or {{{', '.join(names)}}}"
            return {
                **number,
                **{name: schema[name] for name in ("default", "description") if name in schema},
                "type": kind,
            }
    return schema


def _field(name: str, schema: Schema) -> JobField:
    options = schema.get("anyOf")
    own = _object(options[0]) if isinstance(options, list) else schema
    what = str(schema.get("description") or own.get("description") or "")
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
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return str(value)


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}
