"""The spool: what was appended is read back, by whoever comes after, whatever happened to the file."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config.plan import Plan
from training.process.journal import JournalWriter
from worker.events import spool
from worker.events.spool import NAME, Spool, Spooled
from worker.wire import JobStarted, JobWarning, Progress, TrainingDone, TrainResult

RESULT = TrainResult(
    job_id="j", attempt=2, status="finished", test_accuracy=0.75, plan=Plan(threads=2, micro_batch=128)
)


def progress(seq: int, attempt: int = 1) -> Spooled:
    return Spooled(
        Progress(
            seq=seq, job_id="j", attempt=attempt, ts=seq, epoch=1, epochs=1, step=seq, steps=9, loss=0.1, accuracy=1,
            samples_per_s=1, eta_s=0,
        )
    )  # fmt: skip


def started(seq: int, attempt: int = 1) -> Spooled:
    return Spooled(
        JobStarted(
            seq=seq, job_id="j", attempt=attempt, ts=seq, worker="w", dataset="digits", model="cnn", epochs=1,
            batch_size=8,
        )
    )  # fmt: skip


def done(seq: int, attempt: int = 1) -> Spooled:
    return Spooled(
        TrainingDone(
            seq=seq, job_id="j", attempt=attempt, ts=seq, test_accuracy=0.75, test_loss=1, epochs=1, best_epoch=1,
            stopped_early=False, train_seconds=1, samples_per_s=1, measured_epoch_s=1, artifact="/a\né",
            model_sha256="0" * 64,
        ),
        RESULT,
    )  # fmt: skip


def opened(directory: Path, attempt: int = 1, job_id: str = "j") -> Spool:
    (directory / str(attempt)).mkdir(parents=True, exist_ok=True)
    return Spool(directory, job_id, attempt)


def written(directory: Path, *spooled: Spooled, attempt: int = 1, job_id: str = "j") -> Spool:
    """Return the closed spool of an attempt that has said all this."""
    one = opened(directory, attempt, job_id)
    for event in spooled:
        one.append(event)
    one.close()
    return one


def seqs(one: Spool) -> list[tuple[int, int]]:
    return [(spooled.event.attempt, spooled.event.seq) for spooled in one.replay()]


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field, and the result with the event that it came with."""
    said = [started(1), progress(2), done(3)]
    assert written(tmp_path, *said).replay() == said


def test_attempts_come_back_oldest_first(tmp_path: Path) -> None:
    """By number and not by name, whoever reads them and whenever they were written."""
    for attempt in (10, 2, 9, 1):
        last = written(tmp_path, progress(1, attempt), progress(2, attempt), attempt=attempt)
    assert seqs(last) == [(attempt, seq) for attempt in (1, 2, 9, 10) for seq in (1, 2)]


def test_an_open_spool_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Reading does not disturb who writes."""
    one = opened(tmp_path)
    for seq in range(1, 4):
        one.append(progress(seq))
        assert seqs(one) == [(1, number) for number in range(1, seq + 1)]
    one.close()


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    """Cut anywhere, exactly the whole records come back."""
    one = written(tmp_path, started(1), progress(2), done(3))
    path = tmp_path / "1" / NAME
    whole = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 3
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert len(one.replay()) == sum(end <= cut for end in ends)


def test_the_events_of_another_job_are_passed_over(tmp_path: Path) -> None:
    """A directory that was left by one job and reused by another tells nothing of the first."""
    written(tmp_path, progress(1), progress(2), job_id="other")
    assert written(tmp_path, progress(1, 2), attempt=2).replay() == [progress(1, 2)]
    assert written(tmp_path, progress(3)).replay() == [progress(3), progress(1, 2)]
    assert opened(tmp_path, 3, "other").replay() == [progress(1), progress(2)]


def test_what_no_version_of_ours_wrote_is_passed_over(tmp_path: Path) -> None:
    """A whole record that holds no event, one of a newer version, or a result that is none."""
    (tmp_path / "1").mkdir()
    event = progress(1).event.model_dump(mode="json")
    with JournalWriter(tmp_path / "1" / NAME, "j") as journal:
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
def test_no_damage_makes_up_an_event(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]], tail: bytes
) -> None:
    """Bytes overwritten anywhere cost the events they hit; those that come back were said, once and in order."""
    directory = tmp_path_factory.mktemp("spool")
    said = [started(1), progress(2), progress(3), done(4)]
    one = written(directory, *said)
    path = directory / "1" / NAME
    data = bytearray(path.read_bytes())
    for place, by in damage:
        at = place % len(data)
        data[at : at + len(by)] = by
    path.write_bytes(bytes(data) + tail)
    back = one.replay()
    assert [spooled for spooled in said if spooled in back] == back
    if not damage:
        assert back == said


def test_a_full_disk_loses_the_copy_and_not_the_training(
    small_disk: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    """Nothing is raised; what was kept before is whole, and once there is room further events are kept."""
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
    assert [seq for _, seq in seqs(one)] == [*kept, 101, 102, 103]
    one.close()
    assert tmp_path in (directory, *directory.parents)


def test_a_spool_of_hours_keeps_the_turning_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound progress is dropped, so that it does not fill the disk; all else is kept."""
    monkeypatch.setattr(spool, "LARGEST", 2000)
    one = written(tmp_path, started(1), *(progress(seq) for seq in range(2, 50)), done(50))
    warning = Spooled(JobWarning(seq=51, job_id="j", attempt=1, ts=1, message="m"))
    one = opened(tmp_path, 2)
    back = one.replay()
    assert (back[0], back[-1]) == (started(1), done(50))
    assert 3 < len(back) < 15
    assert [spooled.event.seq for spooled in back[:-1]] == list(range(1, len(back)))
    for _ in range(20):
        one.append(warning)
    assert len(one.replay()) == len(back) + 20
    one.close()


@pytest.fixture
def littered(tmp_path: Path) -> Iterator[Path]:
    """The directory of a job in which there is more than the attempts of that job."""
    directory = tmp_path / "job"
    written(directory, progress(1))
    for name in ("x", "01", "-2", "²", "٣", "9" * 200, "0", "1.5", " 7"):
        (directory / name).mkdir()
        (directory / name / NAME).write_bytes((directory / "1" / NAME).read_bytes())
    (directory / "4").write_text("a file")
    (directory / "5").symlink_to("/nowhere")
    (directory / "6" / NAME).mkdir(parents=True)
    yield directory


def test_what_is_no_attempt_is_passed_over(littered: Path) -> None:
    """Other names, files, dangling links and directories where a file should be."""
    assert opened(littered, 7).replay() == [progress(1)]


def test_a_directory_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    """Somebody removed it while the attempt runs: that stops neither writer nor reader."""
    one = opened(tmp_path / "job")
    one.append(progress(1))
    shutil.rmtree(tmp_path / "job")
    one.append(progress(2))
    assert one.replay() == []
    one.close()


def test_a_spool_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    """Its directory is not there."""
    with pytest.raises(OSError, match="No such file"):
        Spool(tmp_path, "j", 1)
