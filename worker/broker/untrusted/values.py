"""One value from Redis: a text, a number, JSON. What cannot be one is refused, by one kind of error."""

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
MAX_FLOAT_BYTES: Final = 64


class Refused(ValueError):
    """A value that is not what it should be; the message is a predicate, such as `is no UTF-8`."""


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


def as_number(value: object) -> float:
    """Return a finite number; raises `Refused`."""
    try:
        number = float(as_bytes(value, MAX_FLOAT_BYTES))
    except ValueError:
        raise Refused("is no number") from None
    if not math.isfinite(number):
        raise Refused("is no finite number")
    return number


def as_json(value: object, most: int, *, any_number: bool = False) -> JsonValue:
    """Return the JSON in a value of at most `most` bytes; raises `Refused`.

    NaN and Infinity, numbers beyond 64 bits, and more than `MAX_NESTING` levels are refused; with `any_number`, for a
    reader that knows better what to say of numbers, the levels alone.
    """
    text = as_text(value, most)
    if nesting(text) > MAX_NESTING:
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
    return found


def nesting(text: str) -> int:
    """Return the levels of nesting of a JSON text without building it; 0 where they are within the bound anyhow."""
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return 0
    deepest = level = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', text):
        sign = match[0][0]
        if sign in "[{":
            level += 1
            deepest = max(deepest, level)
            if deepest > MAX_NESTING:
                break
        elif sign in "]}":
            level -= 1
    return deepest


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
