"""Fork server of jobs: what its children import, and whether a container has room for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from training.process.fork_server.client import ForkServer
from training.system.resources import detect
from worker.config.settings import Settings, job_environment

PRELOADED: Final = (
    "torch", "training.loop.child", "training.loop.trainer", "training.loop.train_step", "training.data.dataset_store",
    "training.checkpoints.checkpointer", "safetensors.torch", "calibration.measure.child",
    "calibration.measure.benchmark", "training.artifacts.onnx_child",
)  # fmt: skip
"""Modules that the children of every job import. matplotlib is none: nobody waits for a report, and it takes 28 MB."""
REPORTING: Final = ("worker.report.child", "worker.report.page")
"""Modules that the report imports; torch is none of them."""
MIN_BYTES: Final = 1 << 30
"""Memory of a container, or of a share of it, below which nothing is kept beside a training."""


def new_server(settings: Settings) -> ForkServer | None:
    """Return a server that is not started yet; None where the settings or the memory forbid it."""
    if settings.standby == "off" or detect(shares=settings.processes).memory_bytes < MIN_BYTES:
        return None
    return ForkServer(job_environment(settings), PRELOADED)


@contextmanager
def started_server(settings: Settings) -> Iterator[ForkServer | None]:
    """Start a server for one job of this process, and end it afterwards; None where there is to be none."""
    with _started(new_server(settings)) as server:
        yield server


@contextmanager
def started_report_server(settings: Settings) -> Iterator[ForkServer | None]:
    """Start a server that imports what a report needs beside torch's import elsewhere; None where no core is left."""
    wanted = settings.report == "auto" and detect().cores > 1 and new_server(settings) is not None
    with _started(ForkServer(job_environment(settings), REPORTING) if wanted else None) as server:
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
