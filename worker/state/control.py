"""Job control: what stops a job while its process waits, and what keeps it alive."""

import time
from types import FrameType
from typing import Final

SLICE_SECONDS: Final = 0.1
"""Longest time until a sleeper notices a signal."""


class Interrupted(Exception):
    """The worker was asked to stop: the job goes back into its queue."""


class RestartTraining(Exception):
    """The training process is to be started again, from a checkpoint that it saves first: the group has changed."""


class StopSignal:
    """Counts the stop signals that this process received."""

    def __init__(self) -> None:
        self.times = 0

    def note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        """Count a signal."""
        self.times += 1

    def __call__(self) -> bool:
        """Whether a stop signal has come."""
        return self.times > 0

    def sleep(self, seconds: float) -> None:
        """Sleep until `seconds` are over or a stop signal has come; Python resumes a sleep after a signal."""
        deadline = time.monotonic() + seconds
        while not self.times and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_SECONDS))

    def check(self) -> None:
        """Raise `Interrupted` after a stop signal."""
        if self.times:
            raise Interrupted


class JobControl:
    """Methods that a job calls while it waits. This class, for a job without Redis, does nothing."""

    patience = 1.0
    """Factor of the time limits of child processes."""

    def check(self) -> None:
        """Keep the job alive; raises what ends it."""

    def heartbeat(self) -> None:
        """Keep the job alive while it is being stopped."""

    def mark_progress(self) -> None:
        """Note that the job is further than in any attempt before this one."""

    def assert_current(self) -> None:
        """Return once it is certain that no newer attempt has taken over; raises where one has."""
