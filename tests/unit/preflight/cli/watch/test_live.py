"""The live view at each stage of a job, in narrow and wide terminals."""

import io
import sys

import pytest
from pydantic import JsonValue
from rich.console import Console
from support.worker.job_events import START, done, event, progress, started

from preflight import Silence
from preflight.cli.watch import live_view
from preflight.cli.watch.braille import MAX_POINTS, Curve, draw
from preflight.cli.watch.layout import render
from preflight.cli.watch.timeline import JobTimeline
from preflight.wire import AnyEvent

PLAN: dict[str, JsonValue] = {
    "threads": 2, "interop": 1, "micro_batch": 64, "precision": "bfloat16", "memory_format": "channels_last",
    "allocator": "tcmalloc",
}  # fmt: skip
BEGINNING = [
    started(),
    event("resource_limits", cpu_cores=2, quota=1.5, memory_mb=1024, source="cgroup"),
    event("dataset_ready", dataset="digits", train_samples=1500, test_samples=297, seconds=0.1),
]
CALIBRATED = [
    event("calibration_trial", **PLAN, knob="precision", steps=8, ratio=1.9, won=True, note="", peak_bytes=400 << 20),
    event("calibration_winner", **PLAN, source="measured", why="1.92x as fast as your own plan", predicted_epoch_s=4.16,
          predicted_low_s=4.08, predicted_high_s=4.2, calibration_seconds=5, import_seconds=2, trials=9),
]  # fmt: skip
CHECKED = event("prediction_checked", epoch=1, steps=100, whole=True, predicted_s=4.16, low_s=4.08, high_s=4.2,
                measured_s=4.2, predicted_batch_s=0.04, measured_batch_s=0.04, deviation=0.01)  # fmt: skip


def shown(*events: AnyEvent | Silence, width: int = 80, height: int = 50, timeline: JobTimeline | None = None) -> str:
    """Return the drawing after these events."""
    shown = timeline or JobTimeline("job")
    for one in events:
        shown.apply(one)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, markup=False, emoji=False, highlight=False)
    return render(shown, console, height, now=START + 100).plain


def test_a_queued_job_shows_its_position() -> None:
    assert "queued, 3 jobs ahead" in shown(timeline=JobTimeline("job", jobs_ahead=3))
    assert "queued, 1 job ahead" in shown(timeline=JobTimeline("job", jobs_ahead=1))
    assert "queued, next in line" in shown(timeline=JobTimeline("job", jobs_ahead=0))
    assert shown().splitlines()[1] == "queued"


FORMED = event(
    "group_formed", workers=3, members=["a.7", "b.7", "c.7"], seconds=1.2, message="3 workers train this job"
)
MEASURED = event("group_measured", workers=3, members=["a.7", "b.7", "c.7"], speeds=[800, 790, 400], kept=True,
                 alone_samples_per_s=800, group_samples_per_s=1440, speedup=1.8, message="it pays")  # fmt: skip


def test_the_members_of_a_group_are_shown_while_they_are_there() -> None:
    """With their speed alone; how much faster they are only while the group is the one that was measured."""
    drawn = shown(*BEGINNING, *CALIBRATED, FORMED, MEASURED, progress(1, 50), width=120)
    assert "group   3 workers, 1.80 times as fast as one: a.7 (800/s), b.7 (790/s), c.7 (400/s)" in drawn
    assert "3 workers train this job." in drawn
    left = event("group_changed", workers=2, members=["a.7", "b.7"], left=["c.7"], message="c.7 has left")
    drawn = shown(*BEGINNING, *CALIBRATED, FORMED, MEASURED, progress(1, 50), left, width=120)
    assert "group   2 workers: a.7 (800/s), b.7 (790/s)\n" in drawn
    alone = event("group_changed", workers=1, members=["a.7"], left=["b.7", "c.7"], message="a.7 trains on alone")
    drawn = shown(*BEGINNING, *CALIBRATED, FORMED, alone, width=120)
    assert "group   " not in drawn


def test_a_job_without_enough_workers_waits() -> None:
    short = event("group_short", workers=1, wanted=3, message="the job needs 3 workers and found 1")
    drawn = shown(*BEGINNING, *CALIBRATED, FORMED, short)
    assert drawn.splitlines()[0].split()[:2] == ["job", "queued"]
    assert "The job needs 3 workers and found 1." in drawn
    assert "a.7" not in drawn


def test_a_result_says_how_many_trained_it() -> None:
    assert "12,345 samples/s by 3 workers" in shown(started(), done().model_copy(update={"workers": 3}))
    assert " by 1" not in shown(started(), done().model_copy(update={"workers": 1})).replace("by worker", "")


def test_each_stage_is_shown() -> None:
    assert "preparing the data set" in shown(BEGINNING[0])
    assert "choosing a plan" in shown(*BEGINNING)
    assert "1 plan tried, the best 1.90x so far, not confirmed yet" in shown(*BEGINNING, CALIBRATED[0])
    skipped = event("calibration_trial", **PLAN, knob="compile", steps=0, won=False, verdict="skipped", note="no")
    assert "1 plan tried, the best 1.90x" in shown(*BEGINNING, CALIBRATED[0], skipped)  # it never ran
    busy = CALIBRATED[0].model_copy(update={"disturbed": True})
    assert "calibrating: 1 plan tried\n" in shown(*BEGINNING, busy)  # how much faster is not known
    assert "starting the training process" in shown(*BEGINNING, *CALIBRATED)
    running = shown(*BEGINNING, *CALIBRATED, progress(2, 50), CHECKED)
    assert "epoch 2/4, step 50/100, 12,346 samples/s, 1:15 left" in running
    assert " 38%" in running
    assert "2 threads, bfloat16, channels_last, tcmalloc" in running
    assert "4.16 s an epoch (4.08 to 4.20) predicted; epoch 1 took 4.20 s" in running
    assert "400 MiB measured under this plan, 1,024 MiB allowed" in running
    assert "running 1:40" in running
    assert "testing and saving" in shown(*BEGINNING, *CALIBRATED, progress(4, 100))


def test_the_outcome_is_shown() -> None:
    finished = shown(*BEGINNING, *CALIBRATED, progress(4, 100), done())
    assert "finished 1:00" in finished
    assert "test accuracy 98.76%" in finished
    assert "/models/job/model.safetensors" in finished
    failed = shown(*BEGINNING, event("job_failed", reason="diverged", message="the loss is nan"))
    assert "diverged: the loss is nan" in failed.lower()
    assert "cancelled" in shown(event("job_cancelled", attempt=0, seq=0, message="cancelled in the queue"))


def test_an_interrupted_job_is_queued_and_resumed() -> None:
    """The new attempt is shown, and its curve replaces the old one from its first step."""
    timeline = JobTimeline("job")
    stopped = event("job_interrupted", message="worker host.7 was told to stop")
    running = [*BEGINNING, *CALIBRATED, progress(1, 50), progress(2, 50)]
    assert shown(*running, stopped, timeline=timeline).splitlines()[3] == "queued"
    again = shown(started(attempt=2, worker="other.9"), event("job_resumed", attempt=2, epochs_done=1, steps_done=0),
                  progress(2, 10), timeline=timeline)  # fmt: skip
    assert "attempt 2 on other.9" in again
    assert "Resumed from the checkpoint after 1 epoch." in again
    assert [x for x, _ in timeline.loss.points] == [0.5, 1.1]


def test_the_bar_of_an_attempt_is_not_full_at_its_start() -> None:
    """It is empty until the attempt's first step, whatever an earlier attempt had done."""
    timeline = JobTimeline("job")
    assert "100%" in shown(*BEGINNING, progress(4, 100), timeline=timeline)
    again = shown(started(attempt=2), timeline=timeline)
    assert "  0%" in again
    assert "100%" not in again


def test_a_job_is_shown_without_its_first_events() -> None:
    """A capped stream drops them."""
    text = shown(progress(3, 50))
    assert "epoch 3/4, step 50/100" in text
    assert " 62%" in text


def test_an_outage_of_redis_is_shown_until_it_ends() -> None:
    away = Silence("cannot be reached")
    assert "waiting for Redis, which cannot be reached" in shown(*BEGINNING, away)
    assert "waiting for Redis" not in shown(*BEGINNING, away, Silence())


@pytest.mark.parametrize("size", [(20, 6), (40, 20), (80, 24), (200, 50)])
def test_the_view_fits_the_terminal(size: tuple[int, int]) -> None:
    width, height = size
    warnings = [event("warning", message=f"{number} " + "as slow as ever " * 40) for number in range(20)]
    text = shown(*BEGINNING, *CALIBRATED, *(progress(1, step) for step in range(1, 100)), CHECKED, *warnings,
                 width=width, height=height)  # fmt: skip
    lines = text.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if height >= 20:
        assert "loss" in text
        assert "Warning: 19" in text


def test_control_characters_and_markup_are_escaped() -> None:
    evil = "\x1b[2J[bold]x[/bold]\u202e\r\n"
    text = shown(*BEGINNING, event("warning", message=evil), event("job_failed", reason=evil, message=evil))
    assert not set("\x1b\u202e\r") & set(text)
    assert "\\x1b[2J[bold]x[/bold]\\u202e" in text


class Stdout(io.StringIO):
    """A stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("lacks", ["", "rich", "utf-8", "a cursor"])
def test_a_terminal_that_cannot_show_it_gets_lines(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Without rich, UTF-8 or cursor control there is no live view."""
    stdout = Stdout()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", "dumb" if lacks == "a cursor" else "xterm")
    if lacks == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.delitem(sys.modules, "preflight.cli.watch.live")
    if lacks == "utf-8":
        monkeypatch.setattr(Stdout, "encoding", "iso-8859-1")
    assert (live_view() is None) == bool(lacks)


def test_a_curve_has_a_maximum_number_of_points() -> None:
    """Every other point is dropped; the last one stays."""
    curve = Curve()
    for x in range(10 * MAX_POINTS):
        curve.add(x, x)
    assert MAX_POINTS // 3 < len(curve.points) <= MAX_POINTS
    assert curve.points[-1] == (10 * MAX_POINTS - 1, 10 * MAX_POINTS - 1)


def test_a_falling_line_falls() -> None:
    """From the upper left down; the part after the last point is empty."""
    lines = draw([(0, 2.0), (50, 1.0)], end=100, width=8, height=2)
    assert lines[0][0] != "\u2800"
    assert lines[1][3:5] != "\u2800" * 2
    assert {character for line in lines for character in line[5:]} == {"\u2800"}
    assert draw([(0, 1.0)], end=0, width=2, height=1) != ["\u2800" * 2]
