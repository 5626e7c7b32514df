"""Hooks: how a feature takes part in jobs. The core knows features by these alone.

`worker.features.entries` is the list of features. The worker and the commands hand it down in their contexts; a hook
that a feature leaves out does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from calibration.result import CalibrationResult
    from preflight.wire import TrainJob
    from training.process.fork_server.client import ForkServer
    from worker.config.settings import Settings
    from worker.events.log_sink import Sink
    from worker.jobs.context import JobContext
    from worker.jobs.stages.group import Group
    from worker.jobs.stages.training import TrainingRun
    from worker.jobs.worker_context import WorkerContext

    Renderer = Callable[[CalibrationResult, str, dict[str, str]], str]
    """Function that makes a page of a calibration, its subject and its facts."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of `preflight doctor` and its result."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Work that follows the result of a job: it has an event, and its failure is a warning."""

    name: str
    """Name of the extra in `training_done.extras` and in the file of pending extras."""
    event: str
    """Type of its event."""
    field: str
    """Field of the event, and perhaps of the result, that is set where this extra is done."""
    is_repeated: bool
    """Whether an extra whose failure may pass is tried again later."""
    select: Callable[[JobContext, TrainingRun | None], dict[str, JsonValue] | None]
    """Returns the request to keep; None: no extra is wanted. Without a training: the model was published earlier."""
    run: Callable[[JobContext, Mapping[str, JsonValue]], dict[str, JsonValue]]
    """Does what the request asks for; returns the fields of the event. Raises `PreflightError`, `OSError`."""
    explain: Callable[[JobContext, Exception], str]
    """Returns a sentence about a failure."""


class Host(Protocol):
    """Processes of an idle worker, for work on jobs that others lead."""

    @property
    def server(self) -> ForkServer | None:
        """Server that forks the children of a process; None: they are fresh interpreters."""

    def prepare_idle(self) -> None:
        """Start the server for work that may come."""

    def run(self, job_id: str, work: Callable[[], None]) -> str | None:
        """Call `work` in a process until it ends; return why it died, None where it ended or was asked to."""


class IdleWork(Protocol):
    """Work of an idle worker for jobs that others lead; each method raises `redis.exceptions.RedisError`."""

    def look(self, *, offered: bool) -> None:
        """Read which work is offered; `offered`: Redis has the key of offers."""

    def has_offer(self, *, short: bool) -> bool:
        """Whether work is offered; `short`: only for a job that cannot be trained without more workers."""

    def sit(self, *, short: bool) -> bool:
        """Do the work until it ends; return whether anything was done."""


def _nothing(*_: object) -> tuple[()]:
    return ()


def _none(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The functions of a feature, by hook."""

    require: Callable[[Settings], None] = _none
    """Called before a worker or a local training begins; raises `PreflightError` where the settings cannot work."""
    admit: Callable[[JobContext, TrainJob], None] = _none
    """Called when an attempt has started, before it prepares anything; raises `PreflightError`."""
    gather: Callable[[TrainingRun], Group | None] = _none
    """Returns, before a training, the group that trains; None: this worker alone. Raises `GroupShort`."""
    seating: Callable[[WorkerContext, Host], IdleWork | None] = _none
    """Returns, when a worker starts, its work while it is idle; None: no such work."""
    sinks: Callable[[Settings, TrainJob, str, int], Sequence[Sink]] = _nothing
    """Returns further receivers of the events of an attempt, of the job with this id."""
    extras: Callable[[Settings], Sequence[Extra]] = _nothing
    """Returns the extras of results under these settings; later ones find the files of earlier ones."""
    preloads: Callable[[Settings], Sequence[str]] = _nothing
    """Returns the modules that the processes of its extras import; torch is not among them."""
    renderer: Callable[[Settings], Renderer | None] = _none
    """Returns the renderer for `preflight calibrate --report`; raises `MissingPackage`."""
    upload: Callable[[Settings, str, Path, Path], Sequence[str]] = _nothing
    """Sends, for `preflight upload`, a job's model from a directory, with that of its attempts; returns URLs."""
    probe: Callable[[Settings], Iterable[Check]] = _nothing
    """Returns the checks for `preflight doctor`."""
