"""Job contexts without Redis, and a sink that keeps their events."""

from pathlib import Path

from preflight.wire import EXTRA_EVENTS, AnyEvent, JobWarning, TrainResult
from worker.config.settings import load
from worker.events.log_sink import Sink
from worker.features.entries import FEATURES
from worker.jobs.context import JobContext
from worker.state.control import JobControl
from worker.state.paths import open_paths


class ListSink:
    """Keeps events in a list."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        assert result is None or event.type in ("training_done", *EXTRA_EVENTS)
        self.events.append(event)

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, JobWarning)]

    @property
    def only_warnings(self) -> list[str]:
        assert all(isinstance(event, JobWarning) for event in self.events)
        return self.warnings


class Ending(JobControl):
    """Ends the job at the first check."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self) -> None:
        raise self._error


def context_of(directory: Path, *sinks: Sink, control: JobControl | None = None, **own: object) -> JobContext:
    """Return the context of the first attempt of job `j`, with all features and its `own` settings."""
    settings = load(
        artifact_dir=directory / "artifacts", cache_dir=directory / "cache", state_dir=directory / "state",
        **{"report": "auto", **own},
    )  # fmt: skip
    return JobContext(
        settings=settings, worker="w", job_id="j", attempt=1, sinks=sinks, paths=open_paths(settings, "j", 1),
        control=control or JobControl(), features=FEATURES,
    )  # fmt: skip
