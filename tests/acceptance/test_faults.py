"""A short run of the fault suite (`make faults` is the long one): outcomes are asserted on, times are not."""

import math
import signal
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from preflight.wire import AnyEvent, CheckpointSaved, JobResumed, JobWarning, LoaderConfig, Progress
from tools.faults import report, rounds
from tools.faults.__main__ import try_all
from tools.faults.catalogue import CATALOGUE
from tools.faults.event_checks import lost_seconds, sequence_problems
from tools.faults.jobs import Moment, Verdict
from tools.faults.preflight import Preflight, PreflightScene
from tools.faults.rounds import Ended, Round
from tools.faults.service import Service
from tools.faults.stock import StockScene
from tools.faults.strikes.runs import Run
from tools.faults.trials.messages import hostile_hashes
from tools.faults.trials.runs import alone

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tools" / "bench" / "results" / "faults.jsonl"
SHORT = (
    "kill -9 of the supervisor", "kill -9 of the whole tree", "kill -9 of Redis, its data lost", "SIGTERM", "host dies",
    "out of memory in training", "one id enqueued by 20 at once", "SIGTERM twice", "host frozen beyond its lease",
    "failover to a replica that lags", "kill -9 of the fork server", "kill -9 in a group", "SIGTERM in a group",
    "worker frozen in a group",
)  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[Preflight]:
    # Not pytest's directory: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="faults-") as root, Preflight(Path(root)) as service:
        service.learn()
        yield service


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_it_is_survived(service: Preflight, name: str) -> None:
    """One round of the fault, at a moment drawn from its name: the same in every run."""
    (fault,) = [fault for fault in CATALOGUE if fault.name == name]
    verdict = fault.ours(service, Random(name))  # noqa: S311 - dice
    if verdict.not_run is not None:
        pytest.skip(verdict.not_run)
    assert verdict.problems == (), f"{name}, {verdict.moment}"


@pytest.mark.slow
def test_hostile_hashes_harm_nobody(service: Preflight) -> None:
    """A hundred of the thousand."""
    run: Run[PreflightScene] = alone(hostile_hashes(2))
    assert run(service, Random(1)).problems == ()  # noqa: S311 - dice


@pytest.mark.slow
def test_workers_find_the_suite(tmp_path: Path) -> None:
    """Whatever the directory and PYTHONPATH of the run: jobs name data sets and functions in it."""
    scenes = (
        PreflightScene(tmp_path / "ours", Preflight(tmp_path), None), StockScene(tmp_path / "stock", tmp_path, None)
    )  # fmt: skip
    for scene in scenes:
        command = [sys.executable, "-P", "-c", "import tools.faults.hungry, tools.faults.stock"]
        subprocess.run(command, cwd="/", env={**scene.environment, "TMPDIR": str(tmp_path)}, check=True)


def warned(attempt: int, seq: int) -> AnyEvent:
    return JobWarning(job_id="x", attempt=attempt, seq=seq, ts=0, message="m")


def begun(at: float) -> AnyEvent:
    return LoaderConfig(job_id="x", attempt=1, seq=1, ts=at, num_workers=0, persistent_workers=False)


def progress(at: float, epoch: int, step: int) -> AnyEvent:
    return Progress(job_id="x", attempt=1, seq=1, ts=at, epoch=epoch, epochs=3, step=step, steps=100, loss=1,
                    accuracy=0.5, samples_per_s=1, eta_s=1)  # fmt: skip


def resumed(at: float, epochs: int, steps: int) -> AnyEvent:
    return JobResumed(job_id="x", attempt=1, seq=1, ts=at, epochs_done=epochs, steps_done=steps)


def saved(at: float, epochs: int, steps: int) -> AnyEvent:
    return CheckpointSaved(
        job_id="x", attempt=1, seq=1, ts=at, epochs_done=epochs, steps_done=steps, took_s=0, checkpoint_bytes=1
    )


@pytest.mark.parametrize(("numbers", "whole", "wrong"), [
    ([(1, 1), (1, 2), (2, 1), (2, 2)], True, 0), ([(1, 1), (1, 3)], True, 1), ([(1, 1), (1, 2), (1, 2)], True, 1),
    ([(1, 2), (1, 1)], True, 1), ([(1, 1), (2, 1), (1, 2)], True, 1),
    ([(1, 4), (1, 5)], True, 1), ([(1, 4), (1, 5)], False, 0),
])  # fmt: skip
def test_the_suite_sees_missing_double_and_late_events(numbers: list[tuple[int, int]], whole: bool, wrong: int) -> None:
    """The judge of the order of events finds what is wrong with it, and nothing else."""
    assert len(sequence_problems([warned(*number) for number in numbers], whole=whole)) == wrong


FIRST = [begun(0), progress(2, 1, 50), progress(3, 1, 100), progress(4, 2, 50)]
"""A hundred steps in two seconds, from second 1 on."""


@pytest.mark.parametrize(("after", "lost"), [
    ([progress(6, 2, 100)], 0),  # nothing was begun again
    ([begun(6), resumed(8, 1, 50), progress(9, 2, 100)], 1),  # position 150 was reached at second 4
    ([begun(6), resumed(8, 1, 25), progress(9, 2, 75)], 1.5),
    ([begun(6), progress(9, 1, 50)], 3.5),  # from the beginning, which was half a second before the first report
    ([saved(5.1, 1, 98), begun(6), resumed(8, 1, 98), progress(9, 2, 100)], 0),  # it stopped when it had saved
    ([saved(5.1, 1, 98), begun(6), resumed(8, 1, 50), progress(9, 2, 100)], 1),
    ([begun(6)], 0),
])  # fmt: skip
def test_the_suite_measures_lost_work(after: list[AnyEvent], lost: float) -> None:
    """A fault at second 5: what was trained since the position that is gone on from is lost."""
    assert lost_seconds([*FIRST, *after], 5, 1) == pytest.approx(lost)


def ended(number: int, verdict: Verdict, *, version: str = "1", service: str = "preflight") -> Ended:
    made = Round(service, version, 20, SHORT[0], number)
    return Ended(made, verdict, 1.0, "2026-01-01", "a machine")


def test_rounds_are_kept_as_they_end(tmp_path: Path) -> None:
    """A line that an interrupt has cut off is passed over, and the next one is whole."""
    path = tmp_path / "results" / "faults.jsonl"
    first = ended(0, Verdict(problems=("lost",), lost=True, moment=Moment.MID_EPOCH, missed=(Moment.CHECKPOINT,)))
    rounds.append(path, first)
    with path.open("ab") as file:
        file.write(b'{"round": {"serv')
    rounds.append(path, ended(1, Verdict(lost_s=0.5)))
    assert rounds.read(path) == [first, ended(1, Verdict(lost_s=0.5))]


def test_an_interrupted_round_is_made_again(tmp_path: Path) -> None:
    """An interrupt takes its scene away: what becomes of it is no verdict."""
    results, scene_gone = tmp_path / "faults.jsonl", threading.Event()
    main_thread, threads = threading.get_ident(), list[threading.Thread]()

    def interrupted(service: Service[PreflightScene], random: Random) -> Verdict:  # noqa: ARG001 - a run's signature
        threads.append(threading.current_thread())
        signal.pthread_kill(main_thread, signal.SIGINT)
        assert scene_gone.wait(60)
        return Verdict(problems=("no Redis",), lost=True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            try_all(
                Preflight(tmp_path), [(ended(0, Verdict()).round, interrupted)],
                Namespace(results=results, seconds=math.inf), 1,
            )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    scene_gone.set()
    threads[0].join(60)
    assert rounds.read(results) == []


def test_the_page_shows_the_rounds_that_were_kept() -> None:
    """docs/faults.md has of each fault the rounds that tried it last."""
    kept = rounds.newest(rounds.read(RESULTS))
    assert report.page(report.rows(CATALOGUE, kept), kept) in (ROOT / "docs" / "faults.md").read_text()
