"""How much of a long past a chart is sent."""

import pytest

from worker.web.streams.pages import MAX_POINTS, stride_of, thin
from worker.web.streams.stream_record import StreamRecord


def record(seq: int, kind: str = "progress", *, attempt: int = 1, memory: int = 0) -> StreamRecord:
    return StreamRecord(
        id=(seq, attempt), type=kind, number=(attempt, seq), text=b"", is_terminal=False, used_memory_mib=memory
    )


@pytest.mark.parametrize(("past", "stride"), [(0, 1), (MAX_POINTS, 1), (MAX_POINTS + 1, 2), (2 * MAX_POINTS + 1, 4)])
def test_points_are_few_whatever_the_past(past: int, stride: int) -> None:
    assert stride_of(past) == stride


def test_a_short_past_stays_whole() -> None:
    records = [record(seq) for seq in range(9)]
    assert thin(records, 1) == records


def test_each_type_of_curve_event_keeps_one_of_each_stride() -> None:
    records = [record(seq, kind) for seq, kind in enumerate(("progress", "epoch_done", "checkpoint_saved") * 8)]
    assert [one.number[1] for one in thin(records, 8)] == [5, 6, 7, 13, 14, 15, 21, 22, 23]


def test_other_events_all_stay_in_their_order() -> None:
    records = [record(seq, "warning" if seq % 2 else "progress") for seq in range(12)]
    kept = thin(records, 4)
    assert [one.id for one in kept] == sorted(one.id for one in kept)
    assert [one.number[1] for one in kept if one.type == "warning"] == [1, 3, 5, 7, 9, 11]


def test_attempts_are_thinned_each_for_itself() -> None:
    assert len(thin([record(0), record(1), record(0, attempt=2), record(1, attempt=2)], 4)) == 2


def test_the_most_memory_in_use_is_kept() -> None:
    kept = thin([record(1, memory=5), record(2, memory=4), record(3, memory=9), record(4, memory=7), record(5)], 8)
    assert [one.used_memory_mib for one in kept] == [5, 9, 0]
