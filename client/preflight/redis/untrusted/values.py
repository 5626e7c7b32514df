"""One value from Redis: a text, a number, JSON. Any other value is refused, by one kind of error."""

import json
import math
import re
from typing import Final

from pydantic import JsonValue

MAX_NESTING: Final = 32
"""Levels of nesting in JSON; a TrainJob has four."""
MAX_NUMBER: Final = 2**63 - 1
"""Largest whole number, as Redis counts; and the smallest, negated."""
DIGITS: Final = re.compile(rb"-?[0-9]{1,19}")
STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*"?', re.DOTALL)
"""A string of JSON; one without an end goes to the end of the text, so that no other match is tried in it."""
NO_BRACKETS: Final = bytes({*range(256)} - {*b"[]{}"})


class Refused(ValueError):
    """A value of the wrong kind or size; the message is a predicate, such as `is no UTF-8`."""


def as_bytes(value: object, most: int) -> bytes:
    """Return a value of at most `most` bytes; raises `Refused`."""
    if isinstance(value, str):
        value = value.encode(errors="surrogateescape")
    if not isinstance(value, bytes):
        raise Refused(f"is {type(value).__name__} instead of bytes")
    if len(value) > most:
        raise Refused(f"has {len(value)} bytes, but may have at most {most}")
    return value


def as_text(value: object, most: int) -> str:
    """Return a value of at most `most` bytes that is UTF-8; raises `Refused`."""
    try:
        return as_bytes(value, most).decode()
    except UnicodeDecodeError:
        raise Refused("is no UTF-8") from None


def as_whole(value: object, least: int = -MAX_NUMBER, most: int = MAX_NUMBER) -> int:
    """Return a whole number in plain digits within the bounds; raises `Refused`."""
    if isinstance(value, bool):
        raise Refused("is no whole number")
    if isinstance(value, int):
        number = value
    else:
        digits = as_bytes(value, 20)
        if DIGITS.fullmatch(digits) is None:
            raise Refused("is no whole number")
        number = int(digits)
    if not least <= number <= most:
        raise Refused(f"is {number}, but must be {least} to {most}")
    return number


def as_json(value: object, most: int, *, any_number: bool = False) -> JsonValue:
    """Return the JSON in a value of at most `most` bytes; raises `Refused`.

    NaN and Infinity, numbers beyond 64 bits, and more than `MAX_NESTING` levels are refused; with `any_number`, for a
    reader that knows better what to say of numbers, the levels alone.
    """
    text = as_text(value, most)
    if is_nested_too_deep(text):
        raise Refused(f"is nested more than {MAX_NESTING} levels deep")
    try:
        found: JsonValue = (
            json.loads(text) if any_number
            else json.loads(text, parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite)
        )  # fmt: skip
    except Refused:
        raise
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a ValueError, too
        raise Refused(f"is not JSON ({ascii(str(error))[1:81]})") from None
    if "\\u" in text and not _is_text(found):
        raise Refused("has half a character")
    return found


def _is_text(found: JsonValue) -> bool:
    """Whether every text can be written as UTF-8: an escape can stand for half of a pair (RFC 8259, 8.2)."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def is_nested_too_deep(text: str) -> bool:
    """Whether a JSON text has more than `MAX_NESTING` levels: found without building it, or a loop over its letters."""
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return False
    left = STRING.sub(b"", text.encode(errors="replace")).translate(None, delete=NO_BRACKETS)
    for _ in range(MAX_NESTING):
        left = left.replace(b"[]", b"").replace(b"{}", b"")  # the innermost level, at least
    return bool(left)


def _no_constant(name: str) -> float:
    raise Refused(f"has {name}, which is no JSON")


def _bounded_int(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_NUMBER:
        raise Refused("has a whole number beyond 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Refused("has a number beyond a double's range")
    return number
