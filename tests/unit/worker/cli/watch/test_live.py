"""The live view: what it shows of a job at each stage, in terminals narrow and wide."""

import io
import sys

import pytest
from pydantic import JsonValue
from rich.console import Console

from worker.cli.app import _terminal
from worker.cli.watch.braille import MOST, Curve, draw
from worker.cli.watch.live import picture
from worker.cli.watch.timeline import Story
from worker.client import Silence
from worker.wire import EVENT, AnyEvent

PLAN: dict[str, JsonValue] = {
    "threads": 2, "interop": 1, "micro_batch": 64, "precision": "bfloat16", "memory_format": "channels_last",
    "allocator": "tuned",
}  # fmt: skip
NOW = 1_000_100.0


def event(kind: str, attempt: int = 1, seq: int = 1, ts: float = 1_000_000.0, **fields: JsonValue) -> AnyEvent:
    header = {"type": kind, "job_id": "job", "attempt": attempt, "seq": seq, "ts": ts}
    plan = PLAN if kind.startswith("calibration") else {}
    return EVENT.validate_python({**header, **plan, **fields})


def started(worker: str = "host.7", attempt: int = 1) -> AnyEvent:
    return event("job_started", attempt, dataset="digits", model="cnn", epochs=4, batch_size=128, worker=worker)


def progress(epoch: int, step: int, loss: float = 0.5, accuracy: float = 0.9) -> AnyEvent:
    return event("progress", epoch=epoch, epochs=4, step=step, steps=100, loss=loss, accuracy=accuracy,
                 samples_per_s=12_345.6, eta_s=75.0)  # fmt: skip


BEGINNING = [
    started(),
    event("resource_limits", cpu_cores=2, quota=1.5, memory_mb=1024, source="cgroup"),
    event("dataset_ready", dataset="digits", train_samples=1500, test_samples=297, seconds=0.1),
]
CALIBRATED = [
    event("calibration_trial", knob="precision", steps=8, ratio=1.9, won=True, note="", peak_bytes=400 << 20),
    event("calibration_winner", source="measured", why="1.92x as fast as your own plan", predicted_epoch_s=4.16,
          predicted_low_s=4.08, predicted_high_s=4.2, calibration_seconds=5, import_seconds=2, trials=9),
]  # fmt: skip
CHECKED = event("prediction_checked", epoch=1, steps=100, whole=True, predicted_s=4.16, low_s=4.08, high_s=4.2,
                measured_s=4.2, predicted_batch_s=0.04, measured_batch_s=0.04, deviation=0.01)  # fmt: skip
DONE = event("training_done", ts=1_000_060.0, test_accuracy=0.9876, test_loss=0.1, epochs=4, best_epoch=4,
             stopped_early=False, train_seconds=55, samples_per_s=12_345, measured_epoch_s=4.2, artifact="/models/job",
             model_sha256="0" * 64)  # fmt: skip


def shown(*events: AnyEvent | Silence, width: int = 80, height: int = 50, story: Story | None = None) -> str:
    """Return the picture after these events, as the lines of a terminal."""
    told = story or Story("job")
    for one in events:
        told.hear(one)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, markup=False, emoji=False, highlight=False)
    return picture(told, console, height, now=NOW).plain


def test_a_waiting_job_says_how_many_are_before_it() -> None:
    """Where that is known."""
    assert "waits in the queue, 3 before it" in shown(story=Story("job", before=3))
    assert "it is the next" in shown(story=Story("job", before=0))
    assert shown().splitlines()[1] == "waits in the queue"


def test_each_stage_is_told() -> None:
    """From the data set to the last test."""
    assert "the data set is being prepared" in shown(BEGINNING[0])
    assert "a plan is being chosen" in shown(*BEGINNING)
    assert "1 tried, the best 1.90x as fast as the job's own" in shown(*BEGINNING, CALIBRATED[0])
    assert "the training process starts" in shown(*BEGINNING, *CALIBRATED)
    running = shown(*BEGINNING, *CALIBRATED, progress(2, 50), CHECKED)
    assert "epoch 2/4, step 50/100, 12,346 samples/s, 1:15 left" in running
    assert " 38%" in running
    assert "2 threads bfloat16 channels_last tuned malloc micro-batch 64" in running
    assert "4.16 s an epoch predicted (4.08-4.20); epoch 1 took 4.20 s, +1.0% beside" in running
    assert "400 MiB measured under this plan, 1,024 MiB allowed" in running
    assert "running 1:40" in running
    assert "testing and saving" in shown(*BEGINNING, *CALIBRATED, progress(4, 100))


def test_the_end_is_told() -> None:
    """With accuracy and the place of the model, or with the reason."""
    done = shown(*BEGINNING, *CALIBRATED, progress(4, 100), DONE)
    assert "finished 1:00" in done
    assert "test accuracy 98.76%" in done
    assert "/models/job/model.safetensors" in done
    failed = shown(*BEGINNING, event("job_failed", reason="diverged", message="the loss is nan"))
    assert "diverged: the loss is nan" in failed
    assert "cancelled" in shown(event("job_cancelled", attempt=0, seq=0, message="cancelled in the queue"))


def test_another_worker_goes_on() -> None:
    """A job that was interrupted waits again, and then shows its new attempt; the curve is drawn on."""
    story = Story("job")
    stopped = event("job_interrupted", message="worker host.7 was told to stop")
    assert "waits in the queue" in shown(
        *BEGINNING, *CALIBRATED, progress(1, 50), progress(2, 50), stopped, story=story
    )
    again = shown(started("other.9", attempt=2), event("job_resumed", attempt=2, epochs_done=1, steps_done=0),
                  progress(2, 10), story=story)  # fmt: skip
    assert "attempt 2 on other.9" in again
    assert "resumed   after epoch 1" in again
    assert [x for x, _ in story.loss.points] == [50, 110]


def test_a_job_whose_first_events_are_gone_is_shown_all_the_same() -> None:
    """The stream is capped, and a long job says two events a second."""
    text = shown(progress(3, 50))
    assert "epoch 3/4, step 50/100" in text
    assert " 62%" in text


def test_redis_away_is_told_and_goes() -> None:
    """With what is the matter with it."""
    away = Silence("cannot be reached")
    assert "waiting for Redis, which cannot be reached" in shown(*BEGINNING, away)
    assert "waiting for Redis" not in shown(*BEGINNING, away, Silence())


@pytest.mark.parametrize("size", [(20, 6), (40, 20), (80, 24), (200, 50)])
def test_it_fits(size: tuple[int, int]) -> None:
    """No line is wider and no picture higher than the terminal, whatever the job says."""
    width, height = size
    warnings = [event("warning", message=f"{number} " + "as slow as ever " * 40) for number in range(20)]
    text = shown(*BEGINNING, *CALIBRATED, *(progress(1, step) for step in range(1, 100)), CHECKED, *warnings,
                 width=width, height=height)  # fmt: skip
    lines = text.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if height >= 20:
        assert "loss" in text
        assert "warning   19" in text


def test_what_terminals_act_on_is_escaped() -> None:
    """Neither markup nor control characters of an event get through."""
    evil = "\x1b[2J[bold]x[/bold]\u202e\r\n"
    text = shown(*BEGINNING, event("warning", message=evil), event("job_failed", reason=evil, message=evil))
    assert not set("\x1b\u202e\r") & set(text)
    assert "\\x1b[2J[bold]x[/bold]\\u202e" in text


class Stdout(io.StringIO):
    """A standard output that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("lacks", ["", "rich", "utf-8", "a cursor"])
def test_a_terminal_that_cannot_show_it_gets_lines(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Because rich is not installed, braille cannot be written, or nothing can be drawn over."""
    stdout = Stdout()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", "dumb" if lacks == "a cursor" else "xterm")
    if lacks == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.delitem(sys.modules, "worker.cli.watch.live")
    if lacks == "utf-8":
        monkeypatch.setattr(Stdout, "encoding", "iso-8859-1")
    assert (_terminal() is None) == bool(lacks)


def test_a_curve_stays_small() -> None:
    """Of a long job every other point goes, and its first and last stay near the ends."""
    curve = Curve()
    for x in range(10 * MOST):
        curve.add(x, x)
    assert MOST // 3 < len(curve.points) <= MOST
    assert curve.points[-1] == (10 * MOST - 1, 10 * MOST - 1)


def test_a_falling_line_falls() -> None:
    """From the upper left to the lower right corner; the half that is to come is empty."""
    lines = draw([(0, 2.0), (50, 1.0)], end=100, width=8, height=2)
    assert lines[0][0] != "\u2800"
    assert lines[1][3:5] != "\u2800" * 2
    assert {character for line in lines for character in line[5:]} == {"\u2800"}
    assert draw([(0, 1.0)], end=0, width=2, height=1) != ["\u2800" * 2]
