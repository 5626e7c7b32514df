"""The spool: appended events are read back, whatever happened to the file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.redis import fences

from preflight.contract.plan import Plan
from preflight.files.journal import JournalWriter
from preflight.wire import JobWarning, TrainResult
from worker.state import spool
from worker.state.spool import FILE_NAME, Spool, SpooledEvent

RESULT = TrainResult(job_id="j", attempt=2, status="finished", test_accuracy=0.5, plan=Plan(threads=2, micro_batch=128))


def progress(seq: int, attempt: int = 1) -> SpooledEvent:
    return SpooledEvent(fences.progress(seq, attempt))


def started(seq: int) -> SpooledEvent:
    return SpooledEvent(fences.started(seq=seq))


def done(seq: int) -> SpooledEvent:
    return SpooledEvent(fences.done(seq), RESULT)


def opened(directory: Path, attempt: int = 1, job_id: str = "j") -> Spool:
    (directory / str(attempt)).mkdir(parents=True, exist_ok=True)
    return Spool(directory, job_id, attempt)


def written(directory: Path, *spooled: SpooledEvent, attempt: int = 1, job_id: str = "j") -> Spool:
    """Return the closed spool of an attempt with these events."""
    one = opened(directory, attempt, job_id)
    for event in spooled:
        one.append(event)
    one.close()
    return one


def seqs(one: Spool) -> list[tuple[int, int]]:
    return [(spooled.event.attempt, spooled.event.seq) for spooled in one.replay()]


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    said = [started(1), progress(2), done(3)]
    assert written(tmp_path, *said).replay() == said


def test_attempts_come_back_oldest_first(tmp_path: Path) -> None:
    """By number, not by name or time."""
    for attempt in (10, 2, 9, 1):
        last = written(tmp_path, progress(1, attempt), progress(2, attempt), attempt=attempt)
    assert seqs(last) == [(attempt, seq) for attempt in (1, 2, 9, 10) for seq in (1, 2)]


def test_an_open_spool_can_be_read(tmp_path: Path) -> None:
    """Reading does not disturb the writer."""
    one = opened(tmp_path)
    for seq in range(1, 4):
        one.append(progress(seq))
        assert seqs(one) == [(1, number) for number in range(1, seq + 1)]
    one.close()


def test_a_torn_line_is_ignored(tmp_path: Path) -> None:
    """Cut anywhere, the complete records come back."""
    one = written(tmp_path, started(1), progress(2), done(3))
    path = tmp_path / "1" / FILE_NAME
    whole = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 3
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert len(one.replay()) == sum(end <= cut for end in ends)


def test_events_of_another_job_are_ignored(tmp_path: Path) -> None:
    """A directory may be reused by another job."""
    written(tmp_path, progress(1), progress(2), job_id="other")
    assert written(tmp_path, progress(1, 2), attempt=2).replay() == [progress(1, 2)]
    assert written(tmp_path, progress(3)).replay() == [progress(3), progress(1, 2)]
    assert opened(tmp_path, 3, "other").replay() == [progress(1), progress(2)]


def test_unknown_records_are_ignored(tmp_path: Path) -> None:
    """Records without an event, of a newer version, or with an invalid result."""
    (tmp_path / "1").mkdir()
    event = progress(1).event.model_dump(mode="json")
    with JournalWriter(tmp_path / "1" / FILE_NAME, "j") as journal:
        journal.write("event", {})
        journal.write("event", {"event": "progress"})
        journal.write("event", {"event": {**event, "v": 2}})
        journal.write("event", {"event": {**event, "type": "unheard_of"}})
        journal.write("event", {"event": event, "result": {"type": "preflight.result.v9"}})
        journal.write("event", {"event": event})
    assert opened(tmp_path, 2).replay() == [progress(1)]


@given(
    damage=st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=3)), max_size=5),
    tail=st.binary(max_size=20),
)
def test_damage_only_loses_events(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]], tail: bytes
) -> None:
    """Bytes overwritten anywhere lose events; the others come back once and in order."""
    directory = tmp_path_factory.mktemp("spool")
    said = [started(1), progress(2), progress(3), done(4)]
    one = written(directory, *said)
    path = directory / "1" / FILE_NAME
    data = bytearray(path.read_bytes())
    for place, by in damage:
        at = place % len(data)
        data[at : at + len(by)] = by
    path.write_bytes(bytes(data) + tail)
    back = one.replay()
    assert [spooled for spooled in said if spooled in back] == back
    if not damage:
        assert back == said


def test_a_full_disk_is_ignored(small_disk: tuple[Path, Callable[[], None]]) -> None:
    """Earlier events are complete, and later ones are kept once there is room."""
    directory, make_room = small_disk
    one = opened(directory / "job")
    for seq in range(1, 101):
        one.append(progress(seq))
    kept = [seq for _, seq in seqs(one)]
    assert 3 < len(kept) < 60
    assert kept == list(range(1, len(kept) + 1))
    make_room()
    for seq in range(101, 104):
        one.append(progress(seq))
    found = [seq for _, seq in seqs(one)]
    # A record that lacked nothing but the end of its line is whole once the next one begins.
    assert found in ([*kept, 101, 102, 103], [*kept, len(kept) + 1, 101, 102, 103])
    one.close()


def test_a_large_spool_drops_progress_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it does not fill the disk."""
    monkeypatch.setattr(spool, "MAX_SPOOL_BYTES", 2000)
    one = written(tmp_path, started(1), *(progress(seq) for seq in range(2, 50)), done(50))
    warning = SpooledEvent(JobWarning(seq=51, job_id="j", attempt=1, ts=1, message="m"))
    one = opened(tmp_path, 2)
    back = one.replay()
    assert (back[0], back[-1]) == (started(1), done(50))
    assert 3 < len(back) < 15
    assert [spooled.event.seq for spooled in back[:-1]] == list(range(1, len(back)))
    for _ in range(20):
        one.append(warning)
    assert len(one.replay()) == len(back) + 20
    one.close()


def test_entries_that_are_not_attempts_are_ignored(tmp_path: Path) -> None:
    """Other names, files, dangling links, and a directory in place of a spool."""
    directory = tmp_path / "job"
    written(directory, progress(1))
    for name in ("x", "01", "-2", "²", "٣", "9" * 200, "0", "1.5", " 7"):
        (directory / name).mkdir()
        (directory / name / FILE_NAME).write_bytes((directory / "1" / FILE_NAME).read_bytes())
    (directory / "4").write_text("a file")
    (directory / "5").symlink_to("/nowhere")
    (directory / "6" / FILE_NAME).mkdir(parents=True)
    assert opened(directory, 7).replay() == [progress(1)]


def test_a_deleted_directory_is_empty(tmp_path: Path) -> None:
    """Neither writer nor reader fails, but a spool is not opened without a directory."""
    one = opened(tmp_path / "job")
    one.append(progress(1))
    shutil.rmtree(tmp_path / "job")
    one.append(progress(2))
    assert one.replay() == []
    one.close()
    with pytest.raises(OSError, match="No such file"):
        Spool(tmp_path / "job", "j", 1)
