"""The training child: `python -m training.loop.child REQUEST` trains one spec under one plan and leaves an artifact."""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.container.resources import MemoryUse, Share
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ArtifactError, InvalidConfig
from preflight.files.journal import RecordWriter
from preflight.pictures.reading import measure_fill
from training.artifacts.evaluation import EVALUATION, evaluation_json
from training.artifacts.loading import INPUT, InitialWeights, ModelInput, copy_weights
from training.artifacts.model_dir import Artifact, save
from training.artifacts.predictions import PREDICTIONS, prediction_bytes, serialize
from training.checkpoints.files import stored_bytes
from training.group import ALONE, Group, Seat
from training.loop.limit_watch import SharedThreads
from training.prediction import Prediction
from training.process.child_main import serve_request
from training.step.profiler import no_timer
from training.system.digests import Digest
from training.system.disk_space import DiskRequirement, require_disk_space
from training.system.safetensors_file import safetensors_chunks

if TYPE_CHECKING:
    from training.data.dataset_store import PreparedDataset
    from training.loop.trainer import FitResult
    from training.step.train_step import TrainStep

MODULE = "training.loop.child"
OVERHEAD: Final = 1 << 20
"""Most bytes that a manifest or the description of a checkpoint takes in any sensible training."""
LOOKED_AT: Final = 1000
"""Number of training images on which it is measured how much of the image a drawing fills."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TrainingRequest:
    """Request to the training child."""

    spec: TrainSpec
    plan: Plan
    store: Path
    """The prepared data set."""
    artifact: Path
    """Directory of the model."""
    facts: dict[str, JsonValue]
    """Facts that are added to manifest and checkpoints: job, resources, prediction."""
    checkpoints: Path | None = None
    """The directory of this attempt, `<job>/<attempt>`, for its checkpoints; made when missing; None: keep none."""
    checkpoint_seconds: float | None = None
    """Seconds between two checkpoints; None: as the schedule decides."""
    resume: tuple[Path, ...] = ()
    """Checkpoints (JSON files) to resume from, best first; the first usable one is taken."""
    verified: tuple[Digest, ...] = ()
    """Files that the parent has hashed; they are hashed again only if they look different now."""
    max_parameters: int | None = None
    """Most parameters of the model; a larger one is refused. None: any size."""
    prediction: Prediction | None = None
    """Duration under `plan` as predicted by calibration."""
    profile: bool = False
    """Whether to time each phase of a step."""
    trace: bool = False
    """Whether to leave a trace of a few steps next to the model."""
    share: Share | None = None
    """Share of the container; None: all of it."""
    processors: Path | None = None
    """File with the number of processors that other trainings of the host leave to this one; None: none shares them."""
    frugal: bool = False
    """Whether memory ran out before."""
    normalization: tuple[float, float] | None = None
    """Mean and standard deviation of the pixels that the network expects; None: those of the training images."""
    fine_tuning: bool = False
    """Whether the training starts from a model, so that its batch norms keep their statistics."""
    parent: InitialWeights | None = None
    """Model whose weights are taken where there is no checkpoint; None: they are random, or the leader's."""
    seat: Seat | None = None
    """Place in a group; the child's module is then `training.distributed.agent`. None: trained alone."""


REQUEST = TypeAdapter(TrainingRequest)


def train(
    request: TrainingRequest, journal: RecordWriter, should_stop: Callable[[], bool], group: Group = ALONE
) -> None:
    """Train and save, or train as one rank of `group`, of which the leader saves.

    Records `start`, `model`, `resumed`, `progress`, `epoch`, `prediction`, `adapted`, `checkpoint`, `profile`,
    `warning` and `done`.
    """
    began = time.perf_counter()
    # torch is imported here, so that its seconds are counted and a bad request fails before them.
    from training.checkpoints.checkpointer import Checkpointer
    from training.data.dataset_store import open_dataset
    from training.loop.evaluate import chance_warning
    from training.loop.progress import ProgressObserver
    from training.loop.trainer import fit, run_epochs
    from training.step.profiler import TRACE, PhaseTimer, tracing
    from training.step.train_step import prepare_process

    shared = _shared(request, prediction=request.prediction)
    threads = request.plan.threads if shared is None else shared.now()
    prepare_process(replace(request.plan, threads=min(threads, request.plan.threads)), frugal=request.frugal)
    store = open_dataset(request.store)
    if request.normalization is not None:
        mean, std = request.normalization
        store = replace(store, info=replace(store.info, mean=mean, std=std))
    journal.write("start", {"import_seconds": time.perf_counter() - began})
    prediction = group.measure(request.spec, request.plan, store, request.prediction, journal)
    step = _new_step(request, store, journal)
    if group.leads:
        _require_room(step, request, prediction_bytes(store.info.test_count, store.info.classes))
    with Checkpointer(
        step, store.info, journal,
        directory=request.checkpoints, seconds=request.checkpoint_seconds, facts=request.facts,
        verified=request.verified, memory=MemoryUse(share=request.share),
    ) as checkpointer:  # fmt: skip
        state = checkpointer.resume(request.resume)
        if request.parent is not None and not state.position:
            copy_weights(step.model, request.parent)
        state = group.share_state(step, state)
        step.join(group)
        if shared is not None and threads != request.plan.threads:
            step.apply_plan(replace(request.plan, threads=threads))  # checkpoints keep those of the request
        first, timer = state.position, PhaseTimer() if request.profile else None
        with tracing(request.artifact / TRACE if request.trace else None, timer or no_timer) as step.end_phase:
            if not group.leads:
                run_epochs(step, store, ProgressObserver(step, state, journal), should_stop, checkpointer)
                return
            observer = ProgressObserver(step, state, journal, prediction, request.share, shared)
            fitted = fit(step, store, observer, should_stop, checkpointer)
    doubt = chance_warning(fitted.test, store.test_labels)
    if doubt is not None:
        journal.write("warning", {"message": doubt})
    metrics = {**_metrics(fitted, state.position), "parameters": _parameters(step)}
    if timer is not None:
        profile = timer.profile(state.position - first)
        journal.write("profile", profile)
        metrics["profile"] = profile
    artifact = _save(request, step, store, fitted, metrics)
    metrics |= {"artifact": str(artifact.directory), "model_sha256": artifact.model_sha256}
    journal.write("done", {**metrics, "dataset_sha256": checkpointer.data_sha256()}, durable=True)


def _new_step(request: TrainingRequest, store: "PreparedDataset", journal: RecordWriter) -> "TrainStep":
    """Return the step of a model of the allowed size; records `model`."""
    from training.step.train_step import TrainStep

    step = TrainStep(request.spec, request.plan, store.info.shape, store.info.classes)
    if request.fine_tuning:
        step.freeze_statistics()
        step.origin = request.parent
    parameters = _parameters(step)
    journal.write("model", {"model": request.spec.model, "parameters": parameters})
    _require_allowed_size(request.spec.model, parameters, request.max_parameters)
    return step


def _parameters(step: "TrainStep") -> int:
    """Return the number of the model's parameters."""
    return sum(parameter.numel() for parameter in step.model.parameters())


def _shared(request: TrainingRequest, prediction: Prediction | None) -> SharedThreads | None:
    """Return the training's share of the processors; None where it may not change its threads."""
    if request.processors is None or request.spec.deterministic or request.plan.compile or request.seat is not None:
        return None
    threads = request.plan.threads
    found = SharedThreads(file=request.processors, threads=threads)
    if prediction is None:
        return found
    alone, speeds = prediction.sharing(threads)
    # A plan that was measured while others ran has fewer threads than it should have without them.
    return replace(found, threads=alone if found.is_divided() else threads, speeds=speeds)


def _metrics(fitted: "FitResult", steps: int) -> dict[str, JsonValue]:
    """Return the figures of a training that took `steps` optimizer steps."""
    return {
        "test_accuracy": fitted.test.accuracy,
        "test_loss": fitted.test.loss,
        "macro_f1": fitted.test.macro_f1,
        "class_precision": [score.precision for score in fitted.test.classes],
        "class_recall": [score.recall for score in fitted.test.classes],
        "class_f1": [score.f1 for score in fitted.test.classes],
        "confidence": None if fitted.confidence is None else asdict(fitted.confidence),
        "epochs": len(fitted.epochs),
        "train_steps": steps,
        "best_epoch": fitted.best_epoch,
        "stopped_early": fitted.stopped_early,
        "train_seconds": fitted.train_seconds,
        "samples_per_s": fitted.samples_per_s,
        "measured_epoch_s": fitted.train_seconds / len(fitted.epochs),
    }


def _require_allowed_size(model: str, count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise InvalidConfig(
            f"model {model!r} has {count:,} parameters, but at most {most:,} are allowed here; "
            "use a smaller model or raise PREFLIGHT_MAX_PARAMETERS",
            field="model",
        )


def _require_room(step: "TrainStep", request: TrainingRequest, predictions: int) -> None:
    """Make the directory of the checkpoints, and check that they, the model and its `predictions` will fit on disk."""
    artifact = DiskRequirement(
        what="the model", directory=request.artifact, bytes=step.model_bytes() + predictions + OVERHEAD,
        setting="PREFLIGHT_ARTIFACT_DIR",
    )  # fmt: skip
    if request.checkpoints is None:
        require_disk_space([artifact])
        return
    # Two are kept while a third is written; those of earlier attempts make room by then.
    room = 3 * (step.checkpoint_bytes() + OVERHEAD) - stored_bytes(request.checkpoints)
    checkpoints = DiskRequirement(
        what="its checkpoints", directory=request.checkpoints, bytes=max(0, room), setting="PREFLIGHT_STATE_DIR"
    )
    require_disk_space([artifact, checkpoints])
    try:
        request.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{request.checkpoints} cannot be made ({error.strerror}); set PREFLIGHT_STATE_DIR to a writable directory"
        ) from error


def _save(
    request: TrainingRequest,
    step: "TrainStep",
    store: "PreparedDataset",
    fitted: "FitResult",
    metrics: dict[str, JsonValue],
) -> Artifact:
    from training.checkpoints.tensors import LiveTensors

    info = store.info
    reads = ModelInput(
        shape=info.shape, classes=info.classes, mean=info.mean, std=info.std,
        filled=measure_fill(store.train_images[:LOOKED_AT].numpy()), class_names=info.class_names,
        inverted=info.inverted,
    )  # fmt: skip
    facts: dict[str, JsonValue] = {
        **request.facts,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "spec": asdict(request.spec),
        "plan": asdict(request.plan),
        INPUT: asdict(reads),
        "metrics": metrics,
        "history": [asdict(epoch) for epoch in fitted.epochs],
        "versions": {
            "preflight": version("preflight-worker"),
            "python": platform.python_version(),
            "torch": version("torch"),
            "safetensors": version("safetensors"),
        },
    }
    kept = fitted.probabilities
    beside = {} if kept is None else {
        PREDICTIONS: serialize(kept, store.test_labels),
        EVALUATION: evaluation_json(
            kept.numpy(), store.test_labels.numpy(), store.test_images.numpy(), info.class_names
        ),
    }  # fmt: skip
    return save(request.artifact, safetensors_chunks(LiveTensors(step.best)), facts, beside)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, train)


if __name__ == "__main__":
    main()
