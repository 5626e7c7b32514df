"""The training child: `python -m training.child REQUEST` trains one spec under one plan and leaves an artifact."""

import platform
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from training.artifact import Artifact, save
from training.journal import JournalWriter
from training.plan import Plan
from training.process import StopFlag, run_child
from training.spec import TrainSpec

if TYPE_CHECKING:
    from training.fit import Fitted

MODULE = "training.child"


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TrainingRequest:
    """What the training child is asked to do."""

    spec: TrainSpec
    plan: Plan
    store: Path
    """The prepared data set."""
    artifact: Path
    """The directory that the model goes to."""
    facts: dict[str, JsonValue]
    """What the manifest shall also say: job, resources, prediction."""


REQUEST = TypeAdapter(TrainingRequest)


def train(request: TrainingRequest, journal: JournalWriter, should_stop: StopFlag) -> None:
    """Train, save, and record `start`, `progress`, `epoch` and `done`."""
    began = time.perf_counter()
    # torch is imported here, so that its seconds are counted and a bad request fails before them.
    from training.fit import fit
    from training.step import prepare_process
    from training.store import open_store

    prepare_process(request.plan)
    store = open_store(request.store)
    journal.write("start", {"import_seconds": time.perf_counter() - began})
    fitted = fit(request.spec, request.plan, store, journal, should_stop)
    metrics: dict[str, JsonValue] = {
        "test_accuracy": fitted.test.accuracy,
        "test_loss": fitted.test.loss,
        "epochs": len(fitted.epochs),
        "best_epoch": fitted.best_epoch,
        "stopped_early": fitted.stopped_early,
        "train_seconds": fitted.train_seconds,
        "samples_per_s": fitted.samples_per_s,
        "measured_epoch_s": fitted.train_seconds / len(fitted.epochs),
    }
    artifact = _save(request, fitted, metrics)
    journal.write(
        "done",
        {**metrics, "artifact": str(artifact.directory), "model_sha256": artifact.model_sha256},
        durable=True,
    )


def _save(request: TrainingRequest, fitted: "Fitted", metrics: dict[str, JsonValue]) -> Artifact:
    from safetensors.torch import save as serialize

    weights = {name: value.contiguous() for name, value in fitted.step.model.state_dict().items()}
    facts: dict[str, JsonValue] = {
        **request.facts,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "spec": asdict(request.spec),
        "plan": asdict(request.plan),
        "metrics": metrics,
        "history": [asdict(epoch) for epoch in fitted.epochs],
        "versions": {
            "preflight": version("preflight-worker"),
            "python": platform.python_version(),
            "torch": version("torch"),
            "safetensors": version("safetensors"),
        },
    }
    return save(request.artifact, serialize(weights), facts)


if __name__ == "__main__":
    run_child(REQUEST, train)
