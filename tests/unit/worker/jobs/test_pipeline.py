"""What a run says of what its children record, and what becomes of that in the log, the state and at a terminal."""

from pathlib import Path

import pytest
import structlog
from pydantic import JsonValue

from training.process.journal import Record
from worker.cli.formatting.choices import describe
from worker.config.settings import Settings
from worker.events.redis_sink import LogSink
from worker.events.state import folded
from worker.jobs.paths import places
from worker.jobs.pipeline import Run
from worker.wire import JOB_TYPE, AnyEvent, JobState, TrainResult, flatten, parse_job

COMPARED: dict[str, JsonValue] = {
    "epoch": 2, "steps": 1000, "whole": True, "predicted_s": 4.0, "low_s": 3.9, "high_s": 4.2, "measured_s": 5.0,
    "predicted_batch_s": 0.004, "measured_batch_s": 0.005, "deviation": 0.25,
    "cause": "noisy", "seen": "others were busy",
}  # fmt: skip
ADAPTED: dict[str, JsonValue] = {"field": "threads", "before": 2, "after": 1, "reason": "too slow"}


class Kept:
    """A sink that keeps events."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        assert result is None
        self.events.append(event)


def a_run(tmp_path: Path, kept: Kept) -> Run:
    """Return a run of a job, whose events are kept and logged."""
    settings = Settings(artifact_dir=tmp_path / "artifacts", cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    return Run(
        settings=settings, worker="w", job_id="j", attempt=1, sinks=(kept, LogSink("j", 1)),
        places=places(settings, "j", 1),
    )  # fmt: skip


def said(tmp_path: Path, kind: str, payload: dict[str, JsonValue]) -> AnyEvent:
    """Return what a run says of a child's record, and log it."""
    kept = Kept()
    a_run(tmp_path, kept)._pass_on(Record(1, kind, 1.0, payload))
    (event,) = kept.events
    return event


@pytest.fixture(autouse=True)
def log_to_stdout() -> None:
    """Whatever another test of this process has configured."""
    structlog.reset_defaults()


def test_a_comparison_shows_both_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a terminal, in the log and in the state; a passing cause is no latest value."""
    event = said(tmp_path, "prediction", COMPARED)
    assert describe(event) == (
        "measured  epoch 2 5.00 s, predicted 4.00 s (3.90-4.20), 5.00 and 4.00 ms a step: +25.0%, "
        "noisy: others were busy"
    )
    logged = capsys.readouterr().out
    for word in ("prediction_checked", "predicted_batch_s", "measured_batch_s", "others were busy"):
        assert word in logged
    state = folded(event, flatten(event))
    assert {name: state[name] for name in ("predicted_batch_s", "measured_batch_s", "deviation")} == {
        "predicted_batch_s": "0.004", "measured_batch_s": "0.005", "deviation": "0.25"
    }  # fmt: skip
    assert not {"cause", "seen", "steps", "epoch"} & set(state)


def test_first_steps_are_told_from_an_epoch(tmp_path: Path) -> None:
    """A comparison within 10 % has no cause."""
    event = said(tmp_path, "prediction", {**COMPARED, "whole": False, "deviation": -0.01, "cause": None, "seen": ""})
    line = describe(event)
    assert line is not None
    assert line.startswith("measured  first 1000 steps 5.00 s, predicted 4.00 s")
    assert line.endswith(": -1.0%")


def test_a_change_says_what_and_why(tmp_path: Path) -> None:
    """In the state it is the new value of what changed: `field` and `reason` are those of a failed job."""
    event = said(tmp_path, "adapted", ADAPTED)
    assert event.type == "plan_adapted"
    assert describe(event) == "adapted   threads 2 -> 1: too slow"
    state = folded(event, flatten(event))
    assert state["threads"] == "1"
    assert not {"field", "reason", "before", "after"} & set(state)
    assert {"field", "reason"} <= set(JobState.model_fields)


@pytest.mark.parametrize(("given", "warns"), [({"recipe": "fast"}, True), ({}, False)], ids=["recipe", "none"])
def test_a_recipe_on_few_samples_says_what_to_expect(given: dict[str, JsonValue], warns: bool, tmp_path: Path) -> None:
    """1,500 samples are four steps of `fast`; who chooses epochs and batch size knows what they are."""
    kept = Kept()
    a_run(tmp_path, kept).dataset(parse_job({"type": JOB_TYPE, "dataset": "digits", **given}))
    warnings = [describe(event) for event in kept.events if event.type == "warning"]
    assert len(warnings) == warns
    for line in warnings:
        assert line is not None
        assert "recipe 'fast' was chosen on 50,000 samples and takes 4 optimizer steps on 1,500" in line
