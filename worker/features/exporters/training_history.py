"""A finished job's parameters and curves, from its manifest and the journals of its training processes.

The journals also exist for `preflight train`, which has no events in Redis; the manifest has the epochs of other disks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from preflight.errors import ArtifactError
from preflight.files.journal import read_runs
from preflight.wire import EpochDone, Progress
from training.artifacts.model_dir import read_manifest
from training.loop import child as training_child
from training.process.child import file_name
from worker.features.exporters.scalars import ResumeStep, Scalar, global_step, scalars_of
from worker.state.paths import attempts

JOURNAL: Final = f"{file_name(training_child.MODULE)}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """A finished job, as it is logged."""

    job_id: str
    artifact: Path
    model_sha256: str
    params: Mapping[str, str]
    values: Sequence[tuple[Scalar, float]]
    """Each value with its time, in seconds since the epoch."""


def read_finished_job(job_id: str, artifact: Path, job: Path | None) -> FinishedJob:
    """Return the job by the manifest in `artifact` and the journals in `job`, where they exist.

    Raises:
        ArtifactError: the model is incomplete.
    """
    match read_manifest(artifact):
        case {
            "spec": dict(spec), "plan": dict(plan), "metrics": dict(metrics), "history": list(history),
            "created_at": str(created), "sha256": {"model.safetensors": str(digest)},
        }:  # fmt: skip
            ended = datetime.fromisoformat(created).timestamp()
        case _:
            raise ArtifactError(f"{artifact} holds no whole model: its manifest or its weights are missing or damaged")
    steps, epoch_ends = ([], {}) if job is None else read_journals(job, job_id)
    values = [(scalar, event.ts) for event in steps for scalar in scalars_of(event)]
    for entry in history:
        fields = entry if isinstance(entry, dict) else {}
        done = EpochDone.model_validate({**fields, "seq": 0, "job_id": job_id, "attempt": 0, "ts": ended})
        values += [(scalar, epoch_ends.get(done.epoch, ended)) for scalar in scalars_of(done)]
    values += [
        (Scalar(name.replace("test_", "test/"), len(history), float(value)), ended)
        for name, value in metrics.items()
        if isinstance(value, int | float)
    ]
    params = dict([*_flatten("spec", spec), *_flatten("plan", plan)])
    return FinishedJob(job_id=job_id, artifact=artifact, model_sha256=digest, params=params, values=values)


def read_journals(job: Path, job_id: str) -> tuple[list[Progress], dict[int, float]]:
    """Return progress and epoch ends of all attempts; repeated steps replace those of a killed process."""
    steps: list[Progress] = []
    epoch_ends: dict[int, float] = {}
    resumed = ResumeStep()
    for attempt in attempts(job):
        for record in read_runs(job / str(attempt) / JOURNAL):
            match record.kind, record.payload:
                case "start", _:
                    resumed.start()
                case "resumed", {"epoch": int(epoch), "step": int(step)}:
                    resumed.resume(epoch, step)
                case "epoch", {"epoch": int(epoch)}:
                    epoch_ends[epoch] = record.time
                case "progress", payload:
                    header: dict[str, JsonValue] = {"seq": 0, "job_id": job_id, "attempt": attempt, "ts": record.time}
                    try:
                        event = Progress.model_validate({**payload, **header})
                    except ValidationError:  # the record is of another version
                        continue
                    kept = resumed.steps_kept(event)
                    if kept is not None:
                        steps = [one for one in steps if global_step(one) <= kept]
                    steps.append(event)
    return steps, epoch_ends


def _flatten(name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each leaf of a JSON object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    else:
        yield name, str(value)
