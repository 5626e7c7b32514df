"""Ids of stream records."""

import pytest

from worker.web.streams.stream_record import MAX_ID, MIN_ID, RecordId, parse_id


@pytest.mark.parametrize(("text", "record_id"), [
    ("5-3", (5, 3)), ("5", (5, 0)), ("", MIN_ID), ("x-1", MIN_ID), ("5-x", (5, 0)), ("-", MIN_ID),
    (f"{2**64 - 1}-{2**64 - 1}", MAX_ID), (f"{2**64}-0", MIN_ID),
])  # fmt: skip
def test_record_ids_become_numbers(text: str, record_id: RecordId) -> None:
    """An invalid one begins at the beginning."""
    assert parse_id(text) == record_id
