"""Draws a job for TensorBoard while it runs."""

import json
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import JsonValue

from training.config.spec import TrainSpec
from worker.config.settings import Settings
from worker.exporters import tfevents as event_file
from worker.exporters.scalars import points
from worker.wire import AnyEvent, JobResumed, Progress, TrainingConfig, TrainJob, TrainResult


class TensorBoardSink:
    """Writes one attempt of a job as an event file. What goes wrong is logged once, and nothing waits for it."""

    def __init__(self, directory: Path, job_id: str, attempt: int, spec: TrainSpec) -> None:
        """Write into `directory`/`job_id`; both are made when there is something to draw."""
        self._directory = directory / job_id
        self._attempt = attempt
        self._spec = spec
        self._path: Path | None = None
        self._failed = False
        self._done = (0, 0)
        """Epochs, and steps of the next, that were done when the training process began."""
        self._fresh = False
        """Whether that process has said no progress yet."""

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Draw the event."""
        if self._failed:
            return
        try:
            self._append(event.ts, self._drawn(event))
        except OSError as error:
            self._failed = True  # the last record may be torn: no other must follow it
            structlog.get_logger("preflight").warning(
                "tensorboard_stopped", directory=str(self._directory),
                detail=f"{error.strerror}; the job goes on and is no longer drawn",
            )  # fmt: skip

    def _drawn(self, event: AnyEvent) -> bytes:
        """Return the records of an event."""
        records = []
        match event:
            case TrainingConfig():
                self._done, self._fresh = (0, 0), True
                plan = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "attempt", "ts", "type"})
                records = [_text(event.ts, "spec", asdict(self._spec)), _text(event.ts, "plan", plan)]
            case JobResumed():
                self._done = event.epochs_done, event.steps_done
            case Progress() if self._fresh:
                # What a process that was killed has drawn beyond its last checkpoint is drawn again.
                epochs, steps = self._done
                self._fresh = False
                records = [event_file.start(event.ts, epochs * event.steps + steps + 1)]
        scalars = [event_file.scalar(event.ts, point.step, point.tag, point.value) for point in points(event)]
        return b"".join([*records, *scalars])

    def _append(self, when: float, records: bytes) -> None:
        if not records:
            return
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a directory in the order of their names.
            self._path = self._directory / f"events.out.tfevents.{int(when):010d}.{self._attempt}"
            records = event_file.header(when) + records
        with self._path.open("ab") as file:
            file.write(records)


def drawing(settings: Settings, job: TrainJob, job_id: str, attempt: int) -> list[TensorBoardSink]:
    """Return the sink that draws an attempt, where the settings ask for one; raises `InvalidConfig`."""
    directory = settings.tensorboard_dir
    return [] if directory is None else [TensorBoardSink(directory, job_id, attempt, job.spec())]


def _text(when: float, tag: str, fields: dict[str, JsonValue]) -> bytes:
    """Return the record of a text at the beginning: JSON, indented as Markdown has code."""
    code = "\n".join(f"    {line}" for line in json.dumps(fields, indent=2).splitlines())
    return event_file.text(when, 0, tag, code)
