"""Records a job for TensorBoard while it runs."""

import json
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import JsonValue

from preflight.contract.spec import TrainSpec
from preflight.wire import AnyEvent, JobResumed, Progress, TrainingConfig, TrainJob, TrainResult
from worker.config.settings import Settings
from worker.features.exporters import tfevents
from worker.features.exporters.scalars import ResumeStep, scalars_of


class TensorBoardSink:
    """Writes one attempt of a job as an event file, until a write fails."""

    def __init__(self, directory: Path, job_id: str, attempt: int, spec: TrainSpec) -> None:
        """Write into `directory`/`job_id`, created with the first record."""
        self._directory = directory / job_id
        self._attempt = attempt
        self._spec = spec
        self._path: Path | None = None
        self._failed = False
        self._resumed = ResumeStep()

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Write the records of the event."""
        if self._failed:
            return
        try:
            self._append(event.ts, self._encode(event))
        except OSError as error:
            self._failed = True  # the last record may be torn; no other may follow it
            structlog.get_logger("preflight").warning(
                "tensorboard_stopped", directory=str(self._directory),
                message=f"{error.strerror}; nothing more of this attempt is written for TensorBoard",
            )  # fmt: skip

    def _encode(self, event: AnyEvent) -> bytes:
        records = []
        match event:
            case TrainingConfig():
                self._resumed.start()
                plan = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "attempt", "ts", "type"})
                records = [_text(event.ts, "spec", asdict(self._spec)), _text(event.ts, "plan", plan)]
            case JobResumed():
                self._resumed.resume(event.epochs_done, event.steps_done)
            case Progress() if (kept := self._resumed.steps_kept(event)) is not None:
                records = [tfevents.start(event.ts, kept + 1)]
        scalars = [tfevents.scalar(event.ts, one.step, one.tag, one.value) for one in scalars_of(event)]
        return b"".join([*records, *scalars])

    def _append(self, when: float, records: bytes) -> None:
        if not records:
            return
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a directory in the order of their names.
            self._path = self._directory / f"events.out.tfevents.{int(when):010d}.{self._attempt}"
            records = tfevents.header(when) + records
        with self._path.open("ab") as file:
            file.write(records)


def tensorboard_sinks(settings: Settings, job: TrainJob, job_id: str, attempt: int) -> list[TensorBoardSink]:
    """Return the sink of an attempt, where the settings have one; raises `InvalidConfig`."""
    directory = settings.tensorboard_dir
    return [] if directory is None else [TensorBoardSink(directory, job_id, attempt, job.spec())]


def _text(when: float, tag: str, fields: dict[str, JsonValue]) -> bytes:
    """Return the record of a text at step 0: JSON as a Markdown code block."""
    code = "\n".join(f"    {line}" for line in json.dumps(fields, indent=2).splitlines())
    return tfevents.text(when, 0, tag, code)
