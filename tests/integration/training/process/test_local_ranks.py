"""Plans of several processes: real ones, which train together in one container."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from support.worker.plain_model import PLAIN_MODEL
from support.worker.python_path import importing
from torch import Tensor

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildKilled, ChildStopped, Diverged, InvalidConfig, PreflightError
from training.artifacts.model_dir import MODEL
from training.checkpoints.files import checkpoint_files
from training.data.dataset_info import DatasetInfo
from training.loop import child as training_child
from training.loop.child import REQUEST, TrainingRequest
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.runner import iter_records, run_child

SPEC = TrainSpec(dataset="digits", model="cnn-valid", epochs=2, batch_size=64, seed=3)
ONE = Plan(threads=1, micro_batch=64, eval_batch=100)
TWO = replace(ONE, processes=2)
LONG = replace(SPEC, epochs=5000)
"""Long enough to be disturbed on any machine; the test ends it."""
ENVIRONMENT = dict(os.environ)


@pytest.fixture(params=["fork server", pytest.param("fresh interpreter", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[ForkServer | None]:
    """Yield what starts children: a fork server, as a worker has one, or None."""
    if request.param == "fresh interpreter":
        yield None
        return
    server = ForkServer(ENVIRONMENT, ["training.loop.child", "training.loop.trainer"])
    server.start()
    yield server
    server.stop()


def request_of(store: DatasetInfo, directory: Path, spec: TrainSpec = SPEC, plan: Plan = TWO) -> TrainingRequest:
    return TrainingRequest(
        spec=spec, plan=plan, store=store.path, artifact=directory / "model", facts={},
        checkpoints=directory / "job" / "1", checkpoint_seconds=0.1,
    )  # fmt: skip


def train(request: TrainingRequest, directory: Path, environment: dict[str, str] = ENVIRONMENT) -> dict[str, Tensor]:
    directory.mkdir(exist_ok=True)
    run_child(training_child.MODULE, REQUEST.dump_json(request), directory, environment, task="training")
    return load_file(request.artifact / MODEL)


def start(request: TrainingRequest, directory: Path, server: ForkServer | None) -> Child:
    return Child(training_child.MODULE, REQUEST.dump_json(request), directory, ENVIRONMENT, server=server)


def at_work(child: Child) -> psutil.Process:
    """Wait until a training of two processes has made a checkpoint; return the process that the first one forked."""
    next(record for record in iter_records(child, lambda: None) if record.kind == "checkpoint")
    assert child.pid is not None
    (other,) = psutil.Process(child.pid).children()
    return other


def end_of(child: Child) -> PreflightError:
    """Return the error with which a child ends."""
    with pytest.raises(PreflightError) as ended:
        list(iter_records(child, lambda: None))
    return ended.value


def gone(process: psutil.Process) -> bool:
    """Whether a process ends within a moment."""
    deadline = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.covers_children
@pytest.mark.parametrize(
    "plan", [TWO, pytest.param(replace(TWO, processes=3, micro_batch=10), marks=pytest.mark.slow)], ids=["2", "3"]
)
def test_processes_learn_what_one_learns(
    digits_store: DatasetInfo, tmp_path: Path, install_package: Callable[..., None], plan: Plan
) -> None:
    """Without batch norms, weights differ by rounding alone: each sample counts once, and micro-batches are summed."""
    install_package("preflight.models", {"plain": "plain:plain"}, "plain", PLAIN_MODEL)
    environment, spec = importing(tmp_path / "site"), replace(SPEC, model="plain", epochs=1, deterministic=True)
    expected = train(request_of(digits_store, tmp_path / "one", spec, ONE), tmp_path / "one", environment)
    directory = tmp_path / "several"
    found = train(request_of(digits_store, directory, spec, plan), directory, environment)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_a_killed_process_ends_all_as_if_the_training_were_killed(
    digits_store: DatasetInfo, tmp_path: Path, server: ForkServer | None
) -> None:
    """Its checkpoint is resumed from; nothing is left running, whichever process was killed."""
    request = request_of(digits_store, tmp_path, LONG)
    with start(request, tmp_path, server) as child:
        other = at_work(child)
        other.kill()
        error = end_of(child)
        assert isinstance(error, ChildKilled), error
        assert "was killed (SIGKILL)" in error.message
    (tmp_path / "again").mkdir()
    found = sorted((path for _, path in checkpoint_files(tmp_path / "job")), reverse=True)
    resumed = replace(request, checkpoints=tmp_path / "job" / "2", resume=tuple(found))
    with start(resumed, tmp_path / "again", server) as child:
        records = iter_records(child, lambda: None)
        assert next(record for record in records if record.kind in ("resumed", "epoch")).kind == "resumed"
        other = at_work(child)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert isinstance(end_of(child), ChildKilled)
        assert gone(other)


def test_a_stop_saves_a_checkpoint_and_ends_all(digits_store: DatasetInfo, tmp_path: Path) -> None:
    with start(request_of(digits_store, tmp_path, LONG), tmp_path, None) as child:
        other = at_work(child)
        child.ask_to_stop()
        assert isinstance(end_of(child), ChildStopped)
        assert gone(other)


def test_the_failure_is_that_of_the_training(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """A loss that is not finite is said once, whichever process sees it first."""
    with pytest.raises(Diverged, match="lower learning_rate"):
        train(request_of(digits_store, tmp_path, replace(SPEC, learning_rate=100.0, optimizer="sgd")), tmp_path)


def test_each_process_needs_a_share(digits_store: DatasetInfo, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="2 processes would share batches of 3 samples"):
        train(request_of(digits_store, tmp_path, replace(SPEC, batch_size=3)), tmp_path)
