"""Parent stage: find the trained model whose weights a job starts from, and see that it suits the job."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from preflight.contract.recipes import NETWORKS
from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from preflight.files.atomic_files import read_text, write_atomically
from preflight.wire import TrainJob, is_job_id
from preflight.wire.results import Lineage
from training.artifacts.loading import InitialWeights, ModelArtifact, find
from training.artifacts.model_dir import MODEL, read_manifest
from training.checkpoints.files import checkpoint_files
from training.data.dataset_info import DatasetInfo
from worker.jobs.context import JobContext
from worker.models.records import UnknownAlias
from worker.models.store import open_store

FILE: Final = "parent.json"
"""In the directory of a job: the model that its first attempt found."""
MAX_BYTES: Final = 4096
FIELD: Final = "init_from"


@dataclass(frozen=True, slots=True)
class Parent:
    """The model that a training starts from."""

    lineage: Lineage
    weights: InitialWeights


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
        directory = context.settings.artifact_dir / kept.job_id
        return Parent(kept, InitialWeights(directory=directory, model_sha256=kept.model_sha256))
    directory = resolve(context, job.init_from, kept)
    found = find(directory)
    _require_suitable(job.init_from, found, spec, store)
    lineage = _lineage(job.init_from, found, store)
    if kept is not None and kept.model_sha256 != lineage.model_sha256:
        raise InvalidConfig(
            f"init_from is {job.init_from!r}, which was the model {kept.model_sha256[:12]} when the job began and is "
            f"{lineage.model_sha256[:12]} now; enqueue the job again under another id",
            field=FIELD,
        )
    if kept is None:
        write_atomically(path, lineage.model_dump_json().encode())
    _announce(context, lineage, found, store)
    return Parent(lineage, InitialWeights(directory=directory, model_sha256=lineage.model_sha256))


def resolve(context: JobContext, reference: str, kept: Lineage | None = None) -> Path:
    """Return the directory of the model that an alias, `alias@hash` or a job id names; an alias comes first.

    Names of jobs come from producers, those of aliases do not: a job cannot pass itself off as one. `kept`: what the
    job's first attempt found, which the alias may no longer point to.
    """
    name, at, _ = reference.partition("@")
    models = open_store(context.settings)
    if kept is not None:
        with suppress(UnknownAlias, InvalidConfig):
            return models.resolve(f"{name}@{kept.model_sha256}").directory
    try:
        return models.resolve(reference).directory
    except InvalidConfig as error:
        if at:
            raise InvalidConfig(f"init_from is {reference!r}: {error.message}", field=FIELD) from error
    artifact = context.settings.artifact_dir / name
    if not is_job_id(name) or read_manifest(artifact, context.control.check) is None:
        raise InvalidConfig(
            f"init_from is {reference!r}, but no alias has this name and {context.settings.artifact_dir} holds no "
            "whole model of such a job, which may be running, have failed or be deleted; name a finished job, or an "
            "alias that `preflight models list` shows",
            field=FIELD,
        )
    return artifact


def _kept(path: Path) -> Lineage | None:
    with suppress(OSError, ValidationError):
        return Lineage.model_validate_json(read_text(path, MAX_BYTES))
    return None


def _require_suitable(reference: str, found: ModelArtifact, spec: TrainSpec, store: DatasetInfo) -> None:
    """Raise `InvalidConfig` where the model is another network, or reads other images."""
    if found.name != spec.model:
        recipe = NETWORKS.get(found.name)
        remedy = f"set model to {found.name!r}" if recipe is None else f"set recipe to {recipe!r}"
        raise InvalidConfig(
            f"init_from is {reference!r}, whose network is {found.name!r}, but the job trains {spec.model!r}; "
            f"{remedy}, or name a model of that network",
            field=FIELD,
        )
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
