"""Replies of Redis within bounds: in whatever pieces they come, and however large they are."""

import random

import pytest
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

from preflight.redis.untrusted.bounded_replies import INCOMPLETE, OVERSIZED, Limits, OversizedReply, ReplyReader


def parse_error(text: str) -> Exception:
    return ConnectionError(text) if text.startswith("LOADING") else ResponseError(text)


def encoded(value: object) -> bytes:
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    raise AssertionError(value)


def whole(reader: ReplyReader, data: bytes, seed: int | None = None) -> list[object]:
    """Return the replies in `data`, which comes in pieces."""
    found, at = [], 0
    sizes = random.Random(seed)  # noqa: S311 - the same pieces in each run
    while at < len(data):
        size = len(data) if seed is None else sizes.randint(1, 50)
        reader.feed(data[at : at + size])
        at += size
        while (value := reader.read()) is not INCOMPLETE:
            found.append(value)
    return found


VALUES: list[object] = [
    b"", b"x" * 300, b"line\r\nend", None, 7, -1, [], [[], [b"a", [1, None, []]], b"b"], [b"k", b"v"] * 40, [[[[]]]],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_replies_are_read_in_whatever_pieces_they_come(seed: int) -> None:
    reader = ReplyReader(Limits(), parse_error)
    assert whole(reader, b"".join(map(encoded, VALUES)), seed) == VALUES
    assert not reader.has_data


@pytest.mark.parametrize("seed", range(5))
def test_a_value_beyond_the_bound_is_dropped_and_the_others_stay(seed: int) -> None:
    reader = ReplyReader(Limits(value=100), parse_error)
    sent = [[b"a", b"x" * 101, b"b"], b"y" * 5000, b"z" * 100, 3]
    found = whole(reader, b"".join(map(encoded, sent)), seed)
    assert found == [[b"a", OVERSIZED, b"b"], OVERSIZED, b"z" * 100, 3]
    assert reader.dropped == 5101


def test_many_large_values_leave_room_for_the_small_ones() -> None:
    """The budget of a pipeline: once it is spent, large values are dropped, ids are not; `begin` starts it anew."""
    reader = ReplyReader(Limits(value=1000, tiers=((5000, 100), (6000, 10))), parse_error)
    pipeline = b"".join(encoded([b"x" * 900, b"id-7"]) for _ in range(20))
    found = whole(reader, pipeline)
    assert found == [[b"x" * 900, b"id-7"]] * 6 + [[OVERSIZED, b"id-7"]] * 14
    reader.begin()
    assert whole(reader, encoded(b"x" * 900)) == [b"x" * 900]


def test_a_reply_of_too_many_elements_is_refused_before_it_is_read() -> None:
    reader = ReplyReader(Limits(elements=10), parse_error)
    assert whole(reader, encoded([1] * 10)) == [[1] * 10]
    assert whole(reader, encoded([1] * 10)) == [[1] * 10]  # each reply counts anew
    for data in (b"*11\r\n", b"*9999999999999\r\n", b"*2\r\n*5\r\n" + b":1\r\n" * 5 + b"*6\r\n"):
        with pytest.raises(OversizedReply, match="more than 10 elements"):
            whole(ReplyReader(Limits(elements=10), parse_error), data)


def test_errors_are_values_but_those_of_the_connection() -> None:
    (found,) = whole(ReplyReader(Limits(), parse_error), b"*2\r\n-WRONGTYPE no\r\n+OK\r\n")
    assert isinstance(found, list) and str(found[0]) == "WRONGTYPE no" and found[1] == b"OK"
    with pytest.raises(ConnectionError, match="LOADING"):
        whole(ReplyReader(Limits(), parse_error), b"-LOADING wait\r\n")


@pytest.mark.parametrize("data", [b"!5\r\nhello\r\n", b"$abc\r\n", b"*x\r\n", b"+" + b"x" * 70_000])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidResponse):
        whole(ReplyReader(Limits(), parse_error), data)
