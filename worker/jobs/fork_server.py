"""Fork server of jobs: what its children import, and whether a container has room for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from preflight.container.resources import detect
from training.process.fork_server.client import ForkServer
from worker.config.settings import Settings, job_environment
from worker.jobs.hooks import Feature

PRELOADED: Final = (
    "torch", "training.loop.child", "training.loop.trainer", "training.step.train_step", "training.data.dataset_store",
    "training.checkpoints.checkpointer", "safetensors.torch", "calibration.measure.child",
    "calibration.measure.benchmark", "training.artifacts.onnx_child",
)  # fmt: skip
"""Modules that the children of every job import. Not matplotlib: nobody waits for a report, and it takes 28 MB."""
MIN_BYTES: Final = 480 << 20
"""Memory of a container, or of a share of it, below which no server is started: half a GB has room for a server and its
children, which share what it has imported."""
MIN_EXTRAS_BYTES: Final = 1 << 30
"""The same for a server of extras, whose imports the children of the training do not share."""


def new_server(settings: Settings) -> ForkServer | None:
    """Return a server that is not started yet; None where the settings or the memory forbid it."""
    if settings.standby == "off" or detect(shares=settings.shares).memory_bytes < MIN_BYTES:
        return None
    return ForkServer(job_environment(settings), PRELOADED)


def new_extras_server(settings: Settings, features: Sequence[Feature]) -> ForkServer | None:
    """Return a server of extras that is not started yet; None where settings, memory or cores forbid it."""
    modules = tuple(module for feature in features for module in feature.preloads(settings))
    if settings.standby == "off" or not modules:
        return None
    resources = detect(shares=settings.shares)
    if resources.cores == 1 or resources.memory_bytes < MIN_EXTRAS_BYTES:
        return None
    return ForkServer(job_environment(settings), modules)


@contextmanager
def started_server(settings: Settings) -> Iterator[ForkServer | None]:
    """Start a server for one job of this process, and end it afterwards; None where settings or memory forbid it."""
    with _started(new_server(settings)) as server:
        yield server


@contextmanager
def started_extras_server(settings: Settings, features: Sequence[Feature]) -> Iterator[ForkServer | None]:
    """Start a server that imports what extras need while another one imports torch; None where no core is left."""
    with _started(new_extras_server(settings, features)) as server:
        yield server


@contextmanager
def _started(server: ForkServer | None) -> Iterator[ForkServer | None]:
    if server is None:
        yield None
        return
    try:
        server.start()
        yield server
    finally:
        server.stop()
