"""Child runner: one child process of a job, watched through the job's control."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import JsonValue

from preflight.errors import Cancelled, ChildFailed, ChildStopped
from preflight.files.journal import Record
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.runner import TICK_SECONDS, read_to_end
from worker.jobs.context import JobContext
from worker.state.control import Interrupted, RestartTraining

STOP_TIMEOUT: Final = 20.0
"""Seconds that a child gets for its step and its checkpoint when it is asked to stop."""


def run_job_child(
    context: JobContext, task: str, module: str, body: bytes, environment: Mapping[str, str] | None = None, *,
    on_record: Callable[[Record], None] | None = None, seconds: float = math.inf, fresh: bool = False,
    server: ForkServer | None = None, check: Callable[[], None] = lambda: None,
) -> dict[str, JsonValue]:  # fmt: skip
    """Run a child to its end, at most `seconds`; return the payload of its `done` record.

    `environment` is by default that of the job's children; `fresh`: start an interpreter, for a child that needs no
    torch; `server` forks the child instead of that of the job; `check` is called while it runs. A child that has
    reported progress is asked to save a checkpoint before it is stopped.
    """
    seconds *= context.control.patience
    deadline = time.monotonic() + seconds

    def check_all() -> None:
        context.control.check()
        check()
        if time.monotonic() > deadline:
            raise ChildFailed(f"the {task} process took longer than {seconds:g} s")

    progressed = False

    def handle(record: Record) -> None:
        nonlocal progressed
        progressed |= record.kind == "progress"
        if on_record is not None:
            on_record(record)

    with Child(
        module, body, context.paths.attempt, environment or context.environment, task=task,
        shares=context.settings.shares, server=None if fresh else server or context.server,
    ) as child:  # fmt: skip
        try:
            return read_to_end(child, check_all, handle)
        except (Interrupted, Cancelled, KeyboardInterrupt, RestartTraining):
            # Before its first window a child has little to save, and may import torch for seconds.
            if progressed:
                _await_checkpoint(context, child, handle)
            raise
        except ChildStopped:
            context.control.check()  # the same signal may have come to this process, which decides what it means
            raise


def _await_checkpoint(context: JobContext, child: Child, on_record: Callable[[Record], None]) -> None:
    """Ask a child to stop, and wait until it has ended its step and saved."""
    child.ask_to_stop()
    deadline = time.monotonic() + STOP_TIMEOUT
    while child.running() and time.monotonic() < deadline:
        context.control.heartbeat()
        child.wait(TICK_SECONDS)
    for record in child.records():
        if record.kind != "fail":
            on_record(record)
