"""Thinning: a long past is sent as a chart needs it, a part of its progress and all of its turning points."""

from collections.abc import Sequence
from typing import Final

from worker.web.streams.stream_record import StreamRecord

CURVE_EVENTS: Final = frozenset({"progress", "epoch_done", "checkpoint_saved"})
"""Types of events of which only curves need more than the newest."""
MAX_POINTS: Final = 300
"""Most events of each of these types; a chart is about as many pixels wide."""


def stride_of(past: int) -> int:
    """Return how many events of the past share a point: a power of two, so that viewers share what was read."""
    return 1 << max(0, -(-past // MAX_POINTS) - 1).bit_length()


def thin(records: Sequence[StreamRecord], stride: int) -> Sequence[StreamRecord]:
    """Return the last of each type of curve event in each `stride` sequence numbers, and all other records.

    Progress with more memory in use than all before it stays, too.
    """
    if stride == 1:
        return records
    kept: dict[tuple[int, str, int], StreamRecord] = {}
    most = 0
    for record in records:
        attempt, number = record.number
        stays = record.type not in CURVE_EVENTS or record.used_memory_mib > most
        most = max(most, record.used_memory_mib)
        kept[attempt, record.type, -number if stays else number // stride] = record
    return sorted(kept.values(), key=lambda record: record.id)
