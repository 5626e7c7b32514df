"""Events for the records of child processes, in the log, the state and at a terminal."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import structlog
from pydantic import JsonValue
from support.calibration.findings import ADVICE, FINDING
from support.worker.contexts import ListSink, context_of

from calibration.choose import PlanChoice
from preflight.cli.formatting.events import format_event
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS
from preflight.errors import ChildKilled, OutOfMemory, PreflightError
from preflight.events.sentences import sentence
from preflight.events.state import state_update
from preflight.files.journal import Record
from preflight.wire import (
    JOB_TYPE,
    AnyEvent,
    BatchAdvice,
    CalibrationTrial,
    JobState,
    PredictionChecked,
    flatten,
    parse_job,
    unflatten,
)
from training.data.dataset_info import DatasetInfo
from worker.events.log_sink import LogSink
from worker.jobs.stages import training as training_stage
from worker.jobs.stages.payloads import advice_payload, calibration_payload, probe_payload, trial_payload
from worker.jobs.stages.training import MAX_KILLS, RecordForwarder, TrainingRun

COMPARED: dict[str, JsonValue] = {
    "epoch": 2, "steps": 1000, "whole": True, "predicted_s": 4.0, "low_s": 3.9, "high_s": 4.2, "measured_s": 5.0,
    "predicted_batch_s": 0.004, "measured_batch_s": 0.005, "deviation": 0.25,
    "cause": "noisy", "seen": "others were busy",
}  # fmt: skip
ADAPTED: dict[str, JsonValue] = {"field": "threads", "before": 2, "after": 1, "reason": "too slow"}


def events_of(training: TrainingRun) -> list[AnyEvent]:
    """Return what a training has told."""
    (sink,) = training.context.sinks
    assert isinstance(sink, ListSink)
    return sink.events


def event_for(tmp_path: Path, kind: str, payload: dict[str, JsonValue]) -> AnyEvent:
    """Forward a record of a child, and return its event."""
    sink = ListSink()
    RecordForwarder(context_of(tmp_path, sink, LogSink("j", 1))).forward(Record(1, kind, 1.0, payload))
    (event,) = sink.events
    return event


@pytest.fixture(autouse=True)
def log_to_stdout() -> None:
    """Whatever another test of this process has configured."""
    structlog.reset_defaults()


def test_a_prediction_is_shown_with_its_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the page, in the log and in the state, without a passing cause; a terminal has the warning that says it."""
    event = event_for(tmp_path, "prediction", COMPARED)
    assert format_event(event) is None
    assert sentence(event) == "Epoch 2 took 5.00 s; predicted: 4.0 s (3.9 to 4.2), +25%: others were busy."
    logged = capsys.readouterr().out
    for word in ("prediction_checked", "predicted_batch_s", "measured_batch_s", "others were busy"):
        assert word in logged
    state = state_update(event, flatten(event))
    assert {name: state[name] for name in ("predicted_batch_s", "measured_batch_s", "deviation")} == {
        "predicted_batch_s": "0.004", "measured_batch_s": "0.005", "deviation": "0.25"
    }  # fmt: skip
    assert not {"cause", "seen", "steps", "epoch"} & set(state)


def test_a_prediction_of_the_first_steps_is_shown_as_such(tmp_path: Path) -> None:
    event = event_for(
        tmp_path, "prediction", {**COMPARED, "whole": False, "deviation": -0.01, "cause": None, "seen": ""}
    )
    assert format_event(event) == "The first 1,000 steps took 5.00 s; predicted: 4.0 s (3.9 to 4.2)."


def test_an_adapted_plan_is_shown_and_stored(tmp_path: Path) -> None:
    """In the state it is the new value: `field` and `reason` are those of a failed job."""
    event = event_for(tmp_path, "adapted", ADAPTED)
    assert event.type == "plan_adapted"
    assert format_event(event) == "Changed 2 threads to 1 thread: too slow."
    state = state_update(event, flatten(event))
    assert state["threads"] == "1"
    assert not {"field", "reason", "before", "after"} & set(state)
    assert {"field", "reason"} <= set(JobState.model_fields)


def test_advice_is_shown_and_is_no_part_of_the_state(tmp_path: Path) -> None:
    """Its batch is not the job's, and its message not that of an end; the log, page and terminal say the same."""
    sink = ListSink()
    context_of(tmp_path, sink).emit("batch_advice", advice_payload(ADVICE))
    (event,) = sink.events
    assert isinstance(event, BatchAdvice)
    assert (event.batch_size, event.largest_measured, event.budget_bytes) == (128, 512, 1 << 30)
    figures = (event.advised, event.advised_micro_batch, event.advised_ratio, event.advised_low, event.advised_high)
    assert figures == (512, 512, 1.7, 1.62, 1.74)
    assert (event.advised_samples_per_s, event.advised_epoch_s, event.advised_peak_bytes) == (21_760, 2.6, 410 << 20)
    said = (
        "atch 512 would fit (410 MiB of 1,024) and train 1.7 times as many samples a second; it changes what is "
        "learned, so it is yours to choose"
    )
    assert format_event(event) == sentence(event) == f"B{said}."
    assert set(state_update(event, flatten(event))) == {"updated_at", "attempt"}


def test_advice_without_a_gain_has_no_figures_of_another_batch(tmp_path: Path) -> None:
    sink = ListSink()
    context_of(tmp_path, sink).emit("batch_advice", advice_payload(replace(ADVICE, advised=None)))
    (event,) = sink.events
    assert isinstance(event, BatchAdvice)
    assert (event.advised, event.advised_ratio, event.advised_peak_bytes) == (None, None, None)
    assert sentence(event).startswith("A larger batch would not be faster (256, 512 were measured; 1,024: predicted ")


@pytest.fixture
def training(tmp_path: Path, digits_store: DatasetInfo) -> TrainingRun:
    """A training whose events are in its only sink."""
    job = parse_job({"type": JOB_TYPE, "dataset": "digits"})
    return TrainingRun(
        context=context_of(tmp_path, ListSink()), job=job, spec=job.spec(), resources=detect(), store=digits_store,
        choice=PlanChoice(plan=Plan(threads=1, micro_batch=32, eval_batch=8), source="own", why="calibration is off"),
    )  # fmt: skip


def end_with(
    monkeypatch: pytest.MonkeyPatch, training: TrainingRun, errors: list[PreflightError], checkpoints: int = 0
) -> list[tuple[int, int]]:
    """Let each training process end with the next error, in the end with a result; return the batches of each."""
    batches: list[tuple[int, int]] = []

    def run_job_child(*_: object, **__: object) -> dict[str, JsonValue]:
        batches.append((training.plan.micro_batch, training.plan.eval_batch))
        training.records.checkpoints += checkpoints
        if errors:
            raise errors.pop(0)
        return {"test_accuracy": 1.0}

    monkeypatch.setattr(training_stage, "run_job_child", run_job_child)
    return batches


@pytest.mark.parametrize(
    ("checkpoints", "how"),
    [(0, "no checkpoint yet; starting again from the beginning"), (1, "resuming from the last checkpoint")],
)
def test_a_killed_training_is_started_again(
    checkpoints: int, how: str, training: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(monkeypatch, training, [ChildKilled("the training process was killed")], checkpoints)
    assert training.run() == {"test_accuracy": 1.0}
    assert [event.message for event in events_of(training) if event.type == "warning"] == [
        f"the training process was killed; {how}"
    ]


def test_kills_in_a_row_without_a_checkpoint_are_limited(
    training: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = end_with(monkeypatch, training, [ChildKilled("the training process was killed")] * 9)
    with pytest.raises(ChildKilled):
        training.run()
    assert len(batches) == MAX_KILLS


def test_the_micro_batch_is_halved_where_memory_runs_out(
    training: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the evaluation, too, and each halving is an event that names both."""
    batches = end_with(monkeypatch, training, [OutOfMemory("512 MiB of 512 are used")] * 2)
    assert training.run() == {"test_accuracy": 1.0}
    assert batches == [(32, 8), (16, 4), (8, 2)]
    told = [event for event in events_of(training) if event.type == "out_of_memory"]
    assert [(event.micro_batch, event.eval_batch) for event in told] == [(16, 4), (8, 2)]
    assert told[0].message == "512 MiB of 512 are used; continuing with micro_batch 16"


def test_the_micro_batch_is_halved_three_times_at_most(training: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = end_with(monkeypatch, training, [OutOfMemory("512 MiB of 512 are used")] * 9)
    with pytest.raises(OutOfMemory, match="micro_batch is 4, 3 times smaller micro-batches did not help"):
        training.run()
    assert len(batches) == 4


def test_an_event_has_the_digits_that_are_known(tmp_path: Path) -> None:
    """Seconds to 0.01 or four digits, ratios to 0.01: once, where the event is made, and the same for every reader."""
    payload: dict[str, JsonValue] = {
        **COMPARED, "predicted_s": 12.3456789, "measured_s": 123.456789, "predicted_batch_s": 0.0114987654,
        "deviation": 0.254321,
    }  # fmt: skip
    event = event_for(tmp_path, "prediction", payload)
    assert isinstance(event, PredictionChecked)
    assert (event.predicted_s, event.measured_s) == (12.35, 123.46)
    assert (event.predicted_batch_s, event.deviation) == (0.0115, 0.254)
    assert flatten(event)["predicted_batch_s"] == "0.0115"
    assert unflatten(flatten(event)) == event
    assert event.ts != round(event.ts, 1)  # times of events are not rounded: they order them
    read = PredictionChecked.model_validate({**payload, "seq": 1, "job_id": "j", "attempt": 1, "ts": 1.0})
    assert read.predicted_s == 12.3456789  # a reader takes what another version wrote as it is


def test_the_size_of_the_model_is_an_event(tmp_path: Path) -> None:
    event = event_for(tmp_path, "model", {"model": "cnn", "parameters": 421_642})
    assert sentence(event) == "Model cnn has 421,642 parameters."


def test_a_memory_probe_is_an_event_and_no_state(tmp_path: Path) -> None:
    """It is told with what is measured, the limit and its phase; the job's micro-batch is another one."""
    (probe,) = [probe for probe in FINDING.memory.probes if probe.phase == "1A"] if FINDING.memory else []
    sink = ListSink()
    context_of(tmp_path, sink).emit("memory_probe", probe_payload(asdict(probe), 1 << 30))
    (event,) = sink.events
    assert sentence(event) == (
        "Memory, the whole batch: a micro-batch of 128 takes 380 MiB of 1.00 GiB: within the limit."
    )
    assert "micro_batch" not in state_update(event, flatten(event))


def test_the_chosen_plan_has_its_reasons(tmp_path: Path) -> None:
    """What each adopted trial changed and gained, the confirmation, and p95 or the maximum of each candidate."""
    choice = PlanChoice(
        plan=FINDING.plan, source="measured", why=FINDING.why, predicted_epoch_s=FINDING.prediction.over(2),
        finding=FINDING, prediction=FINDING.prediction,
    )  # fmt: skip
    payload = calibration_payload(choice, FINDING)
    assert payload["reasons"] == (
        "tcmalloc: 1.60x (1.55x to 1.66x); bfloat16, channels_last: 1.25x (1.20x to 1.30x); "
        "together, in a fresh process, 8 pairs with your own plan: 2.02x (1.93x to 2.11x)"
    )
    assert (payload["skipped"], payload["proven"], payload["doubt"]) == (1, True, "")
    assert (payload["predicted_low_s"], payload["predicted_high_s"]) == pytest.approx((4.3, 4.7))  # 0.4 s, twice
    trial = asdict(replace(FINDING.trials[1], slowest_s=("p95", 0.014)))
    sink = ListSink()
    context_of(tmp_path, sink).emit("calibration_trial", trial_payload(DEFAULTS, trial, 45.0))
    (event,) = sink.events
    assert isinstance(event, CalibrationTrial)
    assert (event.p95_s, event.max_s, event.reached) == (0.014, None, True)
