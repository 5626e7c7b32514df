"""Validation errors: pydantic's `ValidationError` as a one-sentence `InvalidConfig`."""

import re
from collections.abc import Callable
from typing import Final

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from preflight.contract.registry import nearest
from preflight.errors import InvalidConfig

MAX_VALUE_LENGTH: Final = 60

Schema = dict[str, JsonValue]

KINDS: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "string_too_long": "text of at most {max_length} characters",
    "too_long": "a list of at most {max_length} entries",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "one of {expected}",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
"""pydantic's error type -> expected value in words."""
BOUNDS: Final = {
    "minimum": "at least {}", "exclusiveMinimum": "more than {}",
    "maximum": "at most {}", "exclusiveMaximum": "less than {}",
}  # fmt: skip
"""Keyword of JSON Schema -> phrase after the expected type."""
NUMBER_TAG: Final = "(number)"
OBJECT_TAG: Final = "(object)"
"""Tags of a field that is a number or an object; pydantic's path of a finding has them, a message has not."""
QUOTED: Final = re.compile(r"'([^']*)'")
UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")


def to_invalid_config(
    error: ValidationError,
    schema: Schema,
    *,
    name: Callable[[str], str] = str,
    show: Callable[[object], object] = lambda value: value,
) -> InvalidConfig:
    """Return the first finding of `error` as one sentence with field, value and bound.

    Args:
        error: raised by pydantic.
        schema: JSON Schema of the validated model, for bounds and for suggestions of field names.
        name: maps a field to its name in the sentence, e.g. an environment variable.
        show: maps a value to its form in the sentence, e.g. without a password.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    loc = first["loc"]
    path = tuple(str(part) for part in (*loc[:1], *(part for part in loc[1:] if part not in (NUMBER_TAG, OBJECT_TAG))))
    field = ".".join(_cut(part) for part in path) or "the job"
    sentence = _sentence(name(field), _quoted(show(first["input"])), first, path, schema)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return InvalidConfig(sentence + more, field=field)


def _sentence(field: str, value: str, finding: ErrorDetails, path: tuple[str, ...], schema: Schema) -> str:
    kind = finding["type"]
    if kind in UNKNOWN:
        siblings = sorted(_properties(_descend(schema, path[:-1]), schema))
        return f"{_quoted(path[-1])} is not a field{nearest(path[-1], siblings)}; remove it or correct its name"
    if kind == "missing":
        return f"{field} is missing; add it"
    if kind not in KINDS:
        return f"{field} is {value}: {finding['msg'].removeprefix('Value error, ')}"
    wanted = KINDS[kind].format(**finding.get("ctx", {}))
    if kind == "literal_error":
        wanted += nearest(str(finding["input"]), QUOTED.findall(wanted))
    if wanted.endswith("number"):
        node = _resolve(_descend(schema, path), schema)
        bounds = [text.format(node[bound]) for bound, text in BOUNDS.items() if bound in node]
        wanted = " ".join([wanted, *([" and ".join(bounds)] if bounds else [])])
    return f"{field} is {value}, but must be {wanted}"


def _descend(schema: Schema, path: tuple[str, ...]) -> Schema:
    """Return the part of `schema` for the field at `path`; empty where there is none."""
    node = schema
    for part in path:
        node = _properties(node, schema).get(part, {})
    return node


def _properties(node: Schema, schema: Schema) -> dict[str, Schema]:
    if isinstance(choices := node.get("oneOf"), list):  # the choice that is an object
        objects = (_properties(choice, schema) for choice in choices if isinstance(choice, dict))
        return next(filter(None, objects), {})
    properties = _resolve(node, schema).get("properties", {})
    if not isinstance(properties, dict):
        return {}
    return {name: value for name, value in properties.items() if isinstance(value, dict)}


def _resolve(node: Schema, schema: Schema) -> Schema:
    """Follow a reference and skip `null` alternatives."""
    match node:
        case {"$ref": str(reference)}:
            definitions = schema.get("$defs")
            target = definitions.get(reference.rpartition("/")[2]) if isinstance(definitions, dict) else None
            return target if isinstance(target, dict) else {}
        case {"anyOf": [dict(first), *_]} | {"oneOf": [dict(first), *_]}:
            return _resolve(first, schema)
    return node


def _quoted(value: object) -> str:
    """Return `value` on one line, escaped, at most `MAX_VALUE_LENGTH` characters."""
    return _cut(ascii(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "..."
