"""Resume points: the usable checkpoints of a job, best first; needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.checkpoints.files import checkpoint_files
from training.checkpoints.format import InvalidCheckpoint, read
from training.data import dataset_store
from training.data.dataset_info import DatasetInfo
from training.system.digests import Digests


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint that a training can resume from."""

    path: Path
    """Path of the JSON file."""
    epoch: int
    """Epochs done."""
    step: int
    """Steps done of the epoch after those."""
    position: int
    """Steps done in all."""
    plan: Plan
    """Plan under which it was trained until then."""
    facts: dict[str, JsonValue]
    """Facts of the request for that training."""


def find_resume_points(
    job_dir: Path, spec: TrainSpec, info: DatasetInfo, digests: Digests
) -> tuple[list[ResumePoint], list[str]]:
    """Return the usable checkpoints of all attempts, best first, and a sentence for each unusable one.

    Best is the highest position, then the highest attempt. Nothing in `job_dir` raises; symbolic links are not
    followed. Data and tensors are hashed unless `digests` knows them.

    Raises:
        DatasetError: the data set cannot be read.
    """
    found: list[tuple[int, int, ResumePoint]] = []
    warnings: list[str] = []
    described = checkpoint_files(job_dir)
    data_sha256 = dataset_store.checksum(info, digests) if described else ""
    for attempt, path in described:
        try:
            checkpoint = read(path, spec, data_sha256, digests)
        except InvalidCheckpoint as error:
            warnings.append(skip_message(path, error))
            continue
        state = checkpoint.course
        usable = ResumePoint(path, state.epoch, state.step, state.position, checkpoint.plan, checkpoint.facts)
        found.append((state.position, attempt, usable))
    found.sort(key=lambda each: each[:2], reverse=True)
    return [usable for _, _, usable in found], warnings


def skip_message(path: Path, why: InvalidCheckpoint) -> str:
    """Return the sentence that says why the checkpoint at `path` is not used."""
    return f"checkpoint {path} is passed over because {why}"
