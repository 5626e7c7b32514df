"""Parent stage: find the trained model whose weights a job starts from, and see that it suits the job."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from preflight.contract.recipes import require_network
from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from preflight.files.atomic_files import read_text, write_atomically
from preflight.wire import TrainJob
from preflight.wire.results import Lineage
from training.artifacts.loading import InitialWeights, ModelArtifact, find
from training.artifacts.model_dir import MODEL, read_manifest
from training.checkpoints.files import checkpoint_files
from training.data.dataset_info import DatasetInfo
from worker.jobs.context import JobContext
from worker.models.references import find_directory
from worker.models.store import open_store

FILE: Final = "parent.json"
"""Name of the file, in the directory of a job, with the model that its first attempt found."""
MAX_BYTES: Final = 4096
FIELD: Final = "init_from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The model that a training starts from."""

    lineage: Lineage
    directory: Path
    """Directory of its artifact; perhaps gone by now."""
    mean: float
    """Mean of the pixels that it was trained on, as `ModelInput` has it; fine-tuning keeps both mean and `std`."""
    std: float

    @property
    def weights(self) -> InitialWeights:
        """The initial weights, for the training process."""
        return InitialWeights(directory=self.directory, model_sha256=self.lineage.model_sha256)


_PARENT = TypeAdapter(Parent)


def find_parent(context: JobContext, job: TrainJob, spec: TrainSpec, store: DatasetInfo) -> Parent | None:
    """Return the model that the job starts from, the one of its first attempt; None: it starts from random weights.

    Emits `model_initialized`. A job that resumes from a checkpoint needs the model's files no longer.

    Raises:
        InvalidConfig: there is no such model here, or it does not suit the network or the data set.
        ArtifactError: a file of the alias or its model is damaged.
    """
    if job.init_from is None:
        return None
    path = context.paths.job / FILE
    kept = _kept(path) if context.attempt > 1 else None
    if kept is not None and checkpoint_files(context.paths.job):
        return kept
    directory = _resolve(context, job.init_from, kept)
    found = find(directory)
    _require_suitable(job.init_from, found, spec, store)
    parent = Parent(
        lineage=_lineage(job.init_from, found, store), directory=directory, mean=found.reads.mean, std=found.reads.std
    )  # fmt: skip
    if kept is not None and kept.lineage.model_sha256 != parent.lineage.model_sha256:
        raise InvalidConfig(
            f"init_from is {job.init_from!r}, which was the model {kept.lineage.model_sha256[:12]} when the job began "
            f"and is {parent.lineage.model_sha256[:12]} now; enqueue the job again under another id",
            field=FIELD,
        )
    if kept is None:
        write_atomically(path, _PARENT.dump_json(parent))
    _announce(context, parent.lineage, found, store)
    return parent


def _resolve(context: JobContext, reference: str, kept: Parent | None) -> Path:
    """Return the directory of the model that `reference` names, or of the one that the job's first attempt found."""
    settings = context.settings
    if kept is not None:
        with suppress(InvalidConfig):  # its alias may point to another by now
            return open_store(settings).resolve(f"{reference.partition('@')[0]}@{kept.lineage.model_sha256}").directory
    try:
        return find_directory(settings, reference)
    except InvalidConfig as error:
        raise InvalidConfig(f"init_from is {reference!r}: {error.message}", field=FIELD) from error


def _kept(path: Path) -> Parent | None:
    with suppress(OSError, ValidationError):
        return _PARENT.validate_json(read_text(path, MAX_BYTES))
    return None


def _require_suitable(reference: str, found: ModelArtifact, spec: TrainSpec, store: DatasetInfo) -> None:
    """Raise `InvalidConfig` where the model is another network, or reads other images."""
    require_network(reference, found.name, spec.model)
    if found.reads.shape != store.shape:
        theirs, ours = ("x".join(map(str, shape)) for shape in (found.reads.shape, store.shape))
        raise InvalidConfig(
            f"init_from is {reference!r}, which reads images of {theirs}, but those of {store.name} are {ours}; name a "
            "model of such images",
            field=FIELD,
        )


def _lineage(reference: str, found: ModelArtifact, store: DatasetInfo) -> Lineage:
    manifest = read_manifest(found.directory) or {}
    data, digests = manifest.get("dataset"), manifest.get("sha256")
    digest = digests.get(MODEL) if isinstance(digests, dict) else None
    try:
        return Lineage.model_validate({
            "init_from": reference, "job_id": manifest.get("job_id"), "model_sha256": digest,
            "dataset": data.get("name") if isinstance(data, dict) else found.dataset,
            "dataset_sha256": data.get("sha256") if isinstance(data, dict) else None,
            "new_head": found.reads.classes != store.classes,
        })  # fmt: skip
    except ValidationError as error:
        raise InvalidConfig(
            f"init_from is {reference!r}, whose manifest in {found.directory} names no job; train that model again",
            field=FIELD,
        ) from error


def _announce(context: JobContext, lineage: Lineage, found: ModelArtifact, store: DatasetInfo) -> None:
    head = (
        f"; its last layer is drawn anew for {store.classes} classes instead of {found.reads.classes}"
        if lineage.new_head
        else ""
    )
    context.emit("model_initialized", {
        "parent": lineage.job_id, "model_sha256": lineage.model_sha256, "new_head": lineage.new_head,
        "message": f"Starts from the model {lineage.model_sha256[:12]} of job {lineage.job_id}, which was trained on "
                   f"{lineage.dataset}{head}",
    })  # fmt: skip
