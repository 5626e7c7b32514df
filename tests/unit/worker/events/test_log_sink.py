"""The log sink: records, levels and fields."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.redis.fences import progress
from support.worker.job_events import START, done, started

from preflight.events.sentences import as_sentence, sentence
from preflight.wire import EVENT, JOB_TYPE, AnyEvent, JobFailed, JobWarning
from worker.events.log_sink import LogSink


def test_the_log_names_an_event_by_its_type() -> None:
    """With its fields, job and attempt, without those that every log line has."""
    with capture_logs() as log:
        LogSink("j", 3).emit(progress(7))
    (line,) = log
    assert (line["event"], line["log_level"], line["job_id"], line["attempt"]) == ("progress", "debug", "j", 3)
    assert (line["seq"], line["step"], line["loss"]) == (7, 7, 0.5)
    assert not {"v", "ts", "type"} & set(line)


def test_failures_and_warnings_have_log_levels() -> None:
    """A failure is an error; `message` is always a sentence, `event` always the name."""
    failed = JobFailed(seq=1, job_id="j", attempt=1, ts=1, reason="timeout", message="it took too long")
    warning = JobWarning(seq=2, job_id="j", attempt=1, ts=2, message="look here")
    with capture_logs() as log:
        for said in (failed, warning):
            LogSink("j", 1).emit(said)
    first, second = log
    assert (first["event"], first["log_level"]) == ("job_failed", "error")
    assert first["message"] == "Failed, timeout: it took too long."
    assert (second["event"], second["log_level"], second["message"]) == ("warning", "warning", "Warning: look here.")


def test_the_log_of_a_job_has_its_request_its_wait_and_its_total_time() -> None:
    """The first record what was asked for and how long it waited, the last one the time since it was enqueued."""
    request = {"type": JOB_TYPE, "dataset": "digits", "epochs": 4}
    with capture_logs() as log:
        sink = LogSink("job", 1, enqueued_at=START - 12.5)
        for one in (started().model_copy(update={"waited_s": 12.5, "request": request}), done(2)):
            sink.emit(one)
    first, last = log
    assert first["request"] == request
    assert (first["waited_s"], last["total_s"]) == (12.5, 72.5)
    assert first["message"] == "Attempt 1 started: cnn on digits, 4 epochs, batch 128, by worker host.7."
    assert last["message"] == (
        "Finished with a test accuracy of 98.76%, 4 epochs in 55.0 s, 12,345 samples/s; model in /models/job."
    )


EXAMPLES = sorted((Path(__file__).parents[3] / "wire").glob("event.*.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_event_is_a_sentence(path: Path) -> None:
    """On one line, with a capital letter and a full stop, also where its text has neither."""
    said = sentence(EVENT.validate_python(json.loads(path.read_text())["event"]))
    assert said == as_sentence(said)
    assert said.isprintable()
    assert said.isascii() or "text" in path.name
    assert len(said) > 10


def example(name: str) -> AnyEvent:
    return EVENT.validate_python(json.loads((EXAMPLES[0].parent / f"event.{name}.json").read_text())["event"])


def test_trials_that_were_not_run_are_one_record() -> None:
    """Each has a record, and one more counts those that were not worth it and those not reached; all of level debug."""
    skipped, unreached = example("calibration_trial.skipped"), example("calibration_trial.unreached")
    with capture_logs() as log:
        sink = LogSink("j", 1)
        for one in (example("calibration_trial"), skipped, skipped, unreached, example("calibration_winner.0.18")):
            sink.emit(one)
    assert [(line["event"], line["log_level"]) for line in log] == [
        *[("calibration_trial", "debug")] * 4, ("calibration_skipped", "debug"), ("calibration_winner", "info"),
    ]  # fmt: skip
    assert log[-2]["message"] == (
        "2 plans not worth a measurement (compile); 1 plan not reached before the search ended (threads)."
    )


def test_a_job_of_a_minute_has_one_progress_at_most_and_of_an_hour_one_a_minute() -> None:
    with capture_logs() as log:
        sink = LogSink("j", 1)
        for second in range(3600):
            sink.emit(progress(second + 1).model_copy(update={"ts": START + second}))
    assert sum(line["log_level"] == "info" for line in log) == 59
    assert all(line["log_level"] == "debug" for line in log[:60])


def test_a_record_lacks_what_is_not_known_the_figures_of_each_class_and_old_names() -> None:
    with capture_logs() as log:
        LogSink("j", 1).emit(example("training_done.classes"))
    (line,) = log
    assert line["train_s"] == 12.75
    assert not {"train_seconds", "class_f1", "class_recall", "class_precision"} & set(line)
    assert None not in line.values()
