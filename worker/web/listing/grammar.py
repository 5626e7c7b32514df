"""The search language: `cnn model:resnet accuracy>0.99 took<5m`; every term must hold.

A term is a word, which is looked for in id, model, data set and recipe, or a field, an operator and a value. `:` finds
a part of a text, or an equal number; the others are `=`, `!=`, `>`, `>=`, `<` and `<=`. A value with spaces is quoted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, get_args

from preflight.contract.registry import nearest
from preflight.errors import InvalidConfig
from preflight.wire import Status
from worker.web.listing.fields import FIELDS, Kind

MAX_LENGTH: Final = 256
"""Most characters of a search."""
MAX_TERMS: Final = 12
"""Most terms of a search; each is compared with every job."""
TERM: Final = re.compile(r"""(?:(?P<name>[A-Za-z_]+)(?P<operator>>=|<=|!=|[:=<>]))?(?P<value>"[^"]*"?|\S*)\s*""")
NUMBER: Final = re.compile(r"(?P<digits>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)(?P<unit>[a-z%]*)", re.IGNORECASE)
UNITS: Final[dict[Kind, dict[str, float]]] = {
    "share": {"": 1, "%": 0.01}, "number": {"": 1, "k": 1000},
    "duration": {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400},
}  # fmt: skip
EXAMPLES: Final[dict[Kind, str]] = {
    "share": "0.99 or 99%", "number": "a number", "duration": "90, 5m or 2h", "time": "2026-01-31 or 2026-01-31T12:00",
    "flag": "true or false",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a search as SQL, with the values of its placeholders."""

    sql: str
    values: Sequence[str | float]


def parse_search(text: str) -> list[Condition]:
    """Return the conditions of a search.

    Raises:
        InvalidConfig: a term has an unknown field, or a value that its field cannot have.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidConfig(f"the search has {len(text)} characters, but may have {MAX_LENGTH}; shorten it", field="q")
    terms = {match[0].strip(): match for match in TERM.finditer(text.strip()) if match[0]}
    if len(terms) > MAX_TERMS:
        raise InvalidConfig(f"the search has {len(terms)} terms, but may have {MAX_TERMS}; leave some out", field="q")
    return [_condition(match) for match in terms.values()]


def parse_order(text: str) -> str:
    """Return the SQL order for the name of a field, `-` before it for descending; raises `InvalidConfig`."""
    name = text.removeprefix("-")
    if name == "":
        return "running DESC, updated DESC, job_id"
    expression = _field(name, "sort")[1]
    return f"({expression}) IS NULL, {expression} {'DESC' if text.startswith('-') else 'ASC'}, job_id"


def _condition(match: re.Match[str]) -> Condition:
    value = match["value"].strip('"')
    if match["name"] is None:
        return Condition("instr(words, ?)", [value.lower()])
    kind, expression = _field(match["name"], "q")
    operator = match["operator"]
    if kind == "text":
        return _text_condition(match["name"], expression, operator, value)
    if kind == "tags":
        return _tags_condition(match["name"], expression, operator, value)
    sign = "=" if operator == ":" else operator
    return Condition(f"{expression} {sign} ?", [_value(match["name"], kind, value)])


def _text_condition(name: str, expression: str, operator: str, value: str) -> Condition:
    match operator:
        case ":":
            return Condition(f"instr(lower({expression}), ?)", [value.lower()])
        case "=" | "!=":
            return Condition(f"coalesce({expression}, '') {operator} ?", [value])
    raise InvalidConfig(f"{name} is a text and has no order; write {name}:{value[:40] or 'word'}", field="q")


def _tags_condition(name: str, expression: str, operator: str, value: str) -> Condition:
    """Return the condition for a part of a tag, or a whole one; the column has each on a line."""
    match operator:
        case ":":
            return Condition(f"instr(lower({expression}), ?)", [value.lower()])
        case "=" | "!=":
            return Condition(f"instr({expression}, ?) {'>' if operator == '=' else '='} 0", [f"\n{value}\n"])
    raise InvalidConfig(f"{name} is a text and has no order; write {name}={value[:40] or 'word'}", field="q")


def _field(name: str, parameter: str) -> tuple[Kind, str]:
    if name not in FIELDS:
        raise InvalidConfig(
            f"{ascii(name)[:60]} is not a field of a job{nearest(name, [*FIELDS])}; use one of {', '.join(FIELDS)}",
            field=parameter,
        )
    return FIELDS[name]


def _value(name: str, kind: Kind, text: str) -> str | float:
    """Return the value of a term; raises `InvalidConfig`."""
    if kind == "status":
        if text not in get_args(Status):
            known = [status for status in get_args(Status) if status != "unknown"]
            raise InvalidConfig(
                f"status is {ascii(text)[:60]}{nearest(text, known)}; use one of {', '.join(known)}", field="q"
            )
        return text
    found = _time(text) if kind == "time" else _flag(text) if kind == "flag" else _number(kind, text)
    if found is None:
        raise InvalidConfig(f"{name} is compared with {ascii(text)[:60]}; write {EXAMPLES[kind]}", field="q")
    return found


def _number(kind: Kind, text: str) -> float | None:
    match = NUMBER.fullmatch(text)
    unit = None if match is None else UNITS[kind].get(match["unit"].lower())
    if match is None or unit is None:
        return None
    digits = match["digits"]
    if unit == 1 and digits.isdecimal() and int(digits) < 2**63:  # fits SQLite's integers, such as a seed
        return int(digits)
    return float(digits) * unit


def _flag(text: str) -> float | None:
    return {"true": 1, "false": 0}.get(text.lower())


def _time(text: str) -> float | None:
    """Return seconds since the epoch; a time without a zone is this server's."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
