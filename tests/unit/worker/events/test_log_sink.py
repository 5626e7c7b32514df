"""The log sink: records, levels and fields."""

from fences import progress
from structlog.testing import capture_logs

from worker.events.log_sink import LogSink
from worker.wire import JobFailed, JobWarning


def test_the_log_names_an_event_by_its_type() -> None:
    """With its fields, job and attempt, without those that every log line has."""
    with capture_logs() as log:
        LogSink("j", 3).emit(progress(7))
    (line,) = log
    assert (line["event"], line["log_level"], line["job_id"], line["attempt"]) == ("progress", "info", "j", 3)
    assert (line["seq"], line["step"], line["loss"]) == (7, 7, 0.5)
    assert not {"v", "ts", "type"} & set(line)


def test_failures_and_warnings_have_log_levels() -> None:
    """A failure is an error with its message as `detail`, because `message` is the name of the log record."""
    failed = JobFailed(seq=1, job_id="j", attempt=1, ts=1, reason="timeout", message="it took too long")
    warning = JobWarning(seq=2, job_id="j", attempt=1, ts=2, message="look here")
    with capture_logs() as log:
        for said in (failed, warning):
            LogSink("j", 1).emit(said)
    first, second = log
    assert (first["event"], first["log_level"], first["detail"]) == ("job_failed", "error", "it took too long")
    assert (second["event"], second["log_level"]) == ("look here", "warning")
