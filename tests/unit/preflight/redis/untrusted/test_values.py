"""Values from Redis: what cannot be one is refused, and by nothing but `Refused`."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from preflight.redis.untrusted.values import MAX_NESTING, MAX_NUMBER, Refused, as_json, as_text, as_whole

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "value",
    [
        DEEP, DEEP.encode(), "[" * 33 + "]" * 33, '{"a":' * 40 + "1" + "}" * 40, "NaN", "-Infinity", '{"a": NaN}',
        "1" * 30, "9" * 5000, str(MAX_NUMBER + 1), "1e999", b"\xff\xfe", b"\xed\xa0\x80", "", "{", "[1,", None, 7,
        r'"\ud800"', r'{"\udfff": 1}', r'["\ud83d\ud83d\ude00"]', "[{" * 17 + "}]" * 17,
        b"[" + b"1," * 600 + b"1]", '"' + "x" * 1200 + '"',
    ],
)  # fmt: skip
def test_what_is_no_json_within_the_bounds_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        as_json(value, 1000)


def test_json_within_the_bounds_is_read() -> None:
    assert as_json(b'{"a": [1, 2.5, "x", null, true]}', 1000) == {"a": [1, 2.5, "x", None, True]}
    assert as_json("[" * MAX_NESTING + "]" * MAX_NESTING, 1000) is not None
    assert as_json(str(MAX_NUMBER), 1000) == MAX_NUMBER
    assert as_json('["' + "[{" * 400 + '"]', 1000) == ["[{" * 400]  # signs within a text are no levels
    assert as_json(r'["\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["]', 1000) == ['"' + "[" * 36]
    assert as_json(r'["\ud83d\ude00", "\\ud800"]', 1000) == ["\N{GRINNING FACE}", "\\ud800"]
    assert as_json("9" * 30, 1000, any_number=True) == int("9" * 30)


@given(some.binary(max_size=200) | some.text(max_size=200))
def test_no_value_raises_anything_else(value: bytes | str) -> None:
    for read in (as_whole, lambda given: as_text(given, 100), lambda given: as_json(given, 100)):
        try:
            read(value)
        except Refused as refused:
            assert re.match("(is|has) ", str(refused))


def test_deep_json_needs_no_deep_stack() -> None:
    """A thread's stack may be small, and a Python without limits on recursion would crash."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with pytest.raises(Refused, match="nested more than 32 levels"):
            as_json(DEEP, 1 << 20)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("value", [b"", b"x", b"1e5", b"+1", b" 1", b"1.0", b"9" * 30, b"\xff", "\u0661", True, None])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(Refused):
        as_whole(value)


def test_whole_numbers_have_bounds() -> None:
    assert (as_whole(b"-12"), as_whole(7, 0, 9)) == (-12, 7)
    with pytest.raises(Refused, match="is 12, but must be 0 to 9"):
        as_whole("12", 0, 9)
