"""Training on a GPU; skipped where torch finds none, as on the machines that the tests run on by themselves."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from preflight.contract.plan import Plan, Precision
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildKilled, OutOfMemory
from preflight.files.journal import Record
from training.checkpoints.resume import find_resume_points
from training.data.batches import Batches
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.loop import child as training_child
from training.loop.child import REQUEST, TrainingRequest
from training.process.child import Child
from training.process.runner import iter_records
from training.system.digests import Digests

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=8, batch_size=32, learning_rate=0.002, deterministic=True)
CPU = Plan(threads=1, micro_batch=32)
CUDA = replace(CPU, device="cuda")


def train(place: Path, store: DatasetInfo, plan: Plan, *, killed: bool = False, spec: TrainSpec = SPEC) -> list[Record]:
    """Train in a child, from the best checkpoint in `place`; return its records, up to a checkpoint if `killed`."""
    place.mkdir(exist_ok=True)
    found, _ = find_resume_points(place / "state", spec, store, Digests())
    attempt = str(len(list(place.iterdir())))
    request = TrainingRequest(
        spec=spec, plan=plan, store=store.path, facts={}, artifact=place / f"model-{attempt}",
        checkpoints=place / "state" / attempt, checkpoint_seconds=0.02, resume=tuple(each.path for each in found),
    )  # fmt: skip
    records: list[Record] = []
    with (
        Child(training_child.MODULE, REQUEST.dump_json(request), place, dict(os.environ)) as child,
        suppress(ChildKilled),
    ):
        for record in iter_records(child, lambda: None):
            records.append(record)
            if killed and record.kind == "checkpoint" and record.payload["epoch"] == SPEC.epochs // 2:
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
    return records


def test_batches_for_a_gpu_are_pinned(digits_store: DatasetInfo) -> None:
    """In the memory format of the plan, so that copying them does not wait."""
    store = open_dataset(digits_store.path)
    images, labels = next(Batches(store, SPEC, replace(CUDA, memory_format="channels_last")).of(0))
    assert images.is_pinned()
    assert labels.is_pinned()
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_gpu_that_is_full_is_out_of_memory(tmp_path: Path, digits_store: DatasetInfo) -> None:
    """By its reason, so that the supervisor halves the micro-batch."""
    free, _ = torch.cuda.mem_get_info()
    full = torch.empty(free - (700 << 20), dtype=torch.uint8, device="cuda")  # room for a context, not for a batch
    spec = replace(SPEC, model="resnet18", batch_size=1024, train_samples=1024)
    with pytest.raises(OutOfMemory, match="a GPU with more memory"):
        train(tmp_path / "full", digits_store, replace(CUDA, micro_batch=1024), spec=spec)
    del full


def accuracy(records: list[Record]) -> float:
    """Return the test accuracy of a training that ended well, 0..1."""
    found = records[-1].payload.get("test_accuracy")
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_learns_what_a_cpu_learns(precision: Precision, tmp_path: Path, digits_store: DatasetInfo) -> None:
    """As accurate, in either precision, with the memory format of convolutions."""
    cpu = accuracy(train(tmp_path / "cpu", digits_store, CPU))
    plan = replace(CUDA, precision=precision, memory_format="channels_last")
    cuda = accuracy(train(tmp_path / "cuda", digits_store, plan))
    assert min(cpu, cuda) > 0.9
    assert abs(cpu - cuda) < 0.04  # three standard deviations with 297 test images


def test_a_deterministic_training_on_a_gpu_repeats_itself_and_survives_a_kill(
    tmp_path: Path, digits_store: DatasetInfo
) -> None:
    """Twice alone, and once killed half-way and resumed from its checkpoint: the same weights, bit for bit."""
    models = [train(tmp_path / name, digits_store, CUDA)[-1].payload["model_sha256"] for name in ("first", "second")]
    cut = train(tmp_path / "killed", digits_store, CUDA, killed=True)
    assert cut[-1].kind != "done"
    resumed = train(tmp_path / "killed", digits_store, CUDA)
    assert "resumed" in [record.kind for record in resumed]
    assert {*models, resumed[-1].payload["model_sha256"]} == {models[0]}
