"""A short run of the fault suite (`make faults` is the long one): outcomes are asserted on, times are not."""

import math
import signal
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil
import pytest
from support.worker.services import wait_until

from preflight.wire import AnyEvent, CheckpointSaved, JobResumed, JobWarning, LoaderConfig, Progress
from tools.faults import report, rounds
from tools.faults.__main__ import try_all
from tools.faults.catalogue import CATALOGUE
from tools.faults.event_checks import lost_seconds, sequence_problems
from tools.faults.hostile import hostile
from tools.faults.jobs import Moment, Verdict
from tools.faults.means import neighbours
from tools.faults.preflight import Preflight, PreflightScene
from tools.faults.report import Row
from tools.faults.rounds import Ended, Round
from tools.faults.service import Service
from tools.faults.stock import StockScene
from tools.faults.strikes.runs import Run, together
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


def test_rounds_that_were_made_are_not_made_again() -> None:
    """Those of another version or number are."""
    wanted = [ended(number, Verdict()).round for number in range(3)]
    made = [ended(1, Verdict()), ended(2, Verdict(), version="0"), ended(0, Verdict(), service="stock RQ")]
    assert rounds.outstanding(wanted, made) == [wanted[0], wanted[2]]


def test_the_table_is_written_between_its_markers(tmp_path: Path) -> None:
    """What stands around it stays; versions, seeds, day and machine are said; twice is as once."""
    path, fault = (
        tmp_path / "faults.md",
        next(fault for fault in CATALOGUE if fault.name == "kill -9 of the supervisor"),
    )
    path.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    verdicts = [Verdict(lost_s=0.5), Verdict(problems=("late",), lost_s=1.5)]
    made = [
        *(ended(number, verdict) for number, verdict in enumerate(verdicts)),
        ended(0, Verdict(), service="stock RQ"),
    ]
    text = report.page([Row(fault, verdicts, [Verdict()])], made)
    for _ in range(2):
        report.write(path, text)
    written = path.read_text()
    assert written.startswith(
        f"before\n\n{report.BEGIN}\n\npreflight 1 (seed 20); stock RQ 1 (seed 20), 2026-01-01. a machine.\n"
    )
    assert written.endswith(f"\n\n{report.END}\n\nafter\n")
    assert f"{fault.name} | 2 | 1 | 1.0 / 1.5 s | 0 | 1 of 1 |" in written
    assert "old" not in written


def test_the_page_shows_the_rounds_that_were_kept() -> None:
    """docs/faults.md has of each fault the rounds that tried it last."""
    kept = rounds.newest(rounds.read(RESULTS))
    assert report.page(report.rows(CATALOGUE, kept), kept) in (ROOT / "docs" / "faults.md").read_text()


def test_each_fault_is_told_by_its_last_rounds() -> None:
    """A newer version that tried another fault takes nothing away."""
    first, second, *_ = SHORT
    made = [(first, "1", 0), (second, "1", 0), (second, "2", 0), (second, "2", 1)]
    everything = [
        replace(ended(number, Verdict()), round=Round("preflight", version, 20, fault, number))
        for fault, version, number in made
    ]
    kept = [(one.round.fault, one.round.version, one.round.number) for one in rounds.newest(everything)]
    assert kept == [(first, "1", 0), (second, "2", 0), (second, "2", 1)]


def test_rounds_beside_busy_neighbours_are_told_apart() -> None:
    """In a line of their own, and none counts for the table; those without are not made again for them."""
    fault = next(fault for fault in CATALOGUE if fault.name == SHORT[0])
    quiet = [ended(0, Verdict()), ended(1, Verdict())]
    disturbed = ended(0, Verdict(problems=("gone",), lost=True, double_publications=1, orphans=2))
    disturbed = replace(disturbed, round=replace(disturbed.round, neighbours=1, seed=21))
    kept = rounds.newest([*quiet, disturbed])
    assert kept == [*quiet, disturbed]
    assert rounds.outstanding([disturbed.round], quiet) == [disturbed.round]
    assert rounds.of_run(kept, 21, "1", (1, 1)) == [disturbed]
    page = report.page(report.rows([fault], kept), kept)
    assert f"{fault.name} | 2 | 2 |" in page
    assert "preflight beside one busy process: 1 rounds: 1 jobs lost, 1 double publications, 2 orphans" in page


def test_rounds_with_several_jobs_at_a_time_are_told_apart() -> None:
    """What became of any of their jobs counts, and the page says in how many of the rounds they trained together."""
    first = Verdict(lost_s=0.5, double_publications=1, at_once=2)
    verdict = together([first, Verdict(problems=("2 orphans",), lost_s=1.5, orphans=2, at_once=1)])
    assert verdict == Verdict(problems=("2 orphans",), lost_s=1.5, double_publications=1, orphans=2, at_once=2)
    fault = next(fault for fault in CATALOGUE if fault.name == SHORT[0])
    made = [replace(each, round=replace(each.round, jobs=2)) for each in (ended(0, verdict), ended(1, Verdict()))]
    kept = [ended(0, Verdict()), *made]
    assert rounds.of_run(kept, 20, "1", (0, 2)) == made
    page = report.page(report.rows([fault], kept), kept)
    assert f"{fault.name} | 1 | 1 |" in page
    assert "preflight with 2 jobs at a time (seen to train together in 1 rounds): 2 rounds: 0 jobs lost, 1 dou" in page


def test_a_neighbour_is_busy_and_ends_with_the_suite() -> None:
    mine = psutil.Process()
    others = set(mine.children())
    with neighbours(2):
        busy = set(mine.children()) - others
        assert len(busy) == 2
        wait_until(lambda: all(each.cpu_times().user > 0.2 for each in busy))
    assert not any(each.is_running() for each in busy)


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "faults.md"
    for content in ("no markers", f"{report.END} {report.BEGIN}", report.BEGIN):
        path.write_text(content)
        with pytest.raises(ValueError, match="must have"):
            report.write(path, "text")
        assert path.read_text() == content


def test_hostile_entries_are_the_same_for_the_same_number(tmp_path: Path) -> None:
    """A round that is made again meets the same messages."""
    assert hostile(200, 1, tmp_path) == hostile(200, 1, tmp_path)
    assert hostile(200, 1, tmp_path) != hostile(200, 2, tmp_path)
    assert len({entry.id for entry in hostile(1000, 1, tmp_path)}) == 1000
