"""Supervision: threads, tasks and steps that end without being asked to are started again, with backoff."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Final, Literal, TypeVar

import structlog
from redis.exceptions import RedisError

from preflight.redis.retry import backoff, is_wrong_type
from worker.state.control import Interrupted

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 30.0
"""Longest pause between the end of a part and its next start, in seconds."""
STEADY_SECONDS: Final = 60.0
"""Seconds after which a part that runs has recovered: its next pause is short, and health shows it as running."""
MAX_ERROR_LENGTH: Final = 200

T = TypeVar("T")

State = Literal["running", "recovering", "restarting", "ended"]


def is_outage(error: Exception) -> bool:
    """Whether an error is one of Redis as a whole, which a loop waits for, and not of what a key holds."""
    return isinstance(error, Interrupted) or (isinstance(error, RedisError) and not is_wrong_type(error))


@dataclass(frozen=True, slots=True)
class PartState:
    """A supervised thread or task at this moment."""

    name: str
    state: State
    """`recovering`: it runs again, for less than `STEADY_SECONDS`; `restarting`: it waits for its next start."""
    restarts: int
    error: str | None = None
    """Why it ended last."""


@dataclass(slots=True)
class _Part:
    """State of one part; its thread or task alone writes it."""

    name: str
    is_running: bool = False
    started_at: float = 0.0
    restarts: int = 0
    error: str | None = None
    retry_at: float = 0.0
    """Monotonic time before which a step is not taken again."""
    pauses: Iterator[float] = field(default_factory=lambda: backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))

    def begin(self) -> None:
        self.is_running, self.started_at = True, time.monotonic()

    def end(self, error: Exception | None) -> float:
        """Note the end and log it; returns the pause before the next start."""
        self.is_running = False
        self.restarts += 1
        if time.monotonic() - self.started_at >= STEADY_SECONDS:
            self.pauses = backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        pause = next(self.pauses)
        said = ascii(str(error))[1:-1]
        kind = "it returned" if error is None else f"{type(error).__name__}{': ' if said else ''}{said}"
        self.error = kind[:MAX_ERROR_LENGTH]
        structlog.get_logger("preflight").error(
            "part_ended", part=self.name, restarts=self.restarts,
            message=f"{self.name} ended ({self.error}); it is started again in {pause:.1f} s", exc_info=error,
        )  # fmt: skip
        return pause

    def state(self, *, is_closed: bool) -> PartState:
        if is_closed and not self.is_running:
            found: State = "ended"
        elif not self.is_running:
            found = "restarting"
        else:
            is_steady = not self.restarts or time.monotonic() - self.started_at >= STEADY_SECONDS
            found = "running" if is_steady else "recovering"
        return PartState(self.name, found, self.restarts, self.error)


class Supervisor:
    """Starts the parts of one service, and starts each again that ends before `close`.

    An exception of a part never ends the service, and a part that ends is never silent: it is logged and in `states`.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._closed = Event()

    def start_thread(self, name: str, run: Callable[[], None]) -> Thread:
        """Return the started daemon thread that calls `run` until `close`; `run` returns soon after that."""
        part = self._add(name)

        def supervise() -> None:
            while not self._closed.is_set():
                part.begin()
                error: Exception | None = None
                try:
                    run()
                except Exception as found:  # whatever it is, the part is needed
                    error = found
                if self._closed.is_set():
                    break
                self._closed.wait(part.end(error))
            part.is_running = False

        thread = Thread(target=supervise, name=name, daemon=True)
        thread.start()
        return thread

    def start_task(self, name: str, run: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Return the task that awaits `run` until `close`, in the running loop; cancelling it ends it, too."""
        part = self._add(name)

        async def supervise() -> None:
            try:
                while not self._closed.is_set():
                    part.begin()
                    error: Exception | None = None
                    try:
                        await run()
                    except Exception as found:
                        error = found
                    if self._closed.is_set():
                        return
                    await asyncio.sleep(part.end(error))
            finally:
                part.is_running = False

        return asyncio.get_running_loop().create_task(supervise(), name=name)

    def step(
        self, name: str, take: Callable[[], T], otherwise: T, *, passes: Callable[[Exception], bool] = lambda _: False
    ) -> T:  # fmt: skip
        """Take a step of a loop and return what it returns; `otherwise` where it fails, or failed a moment ago.

        Exceptions for which `passes` holds are the loop's own to handle, and are raised.
        """
        part = next((one for one in self._parts if one.name == name), None) or self._add(name)
        if time.monotonic() < part.retry_at:
            return otherwise
        if not part.is_running:
            part.started_at = time.monotonic()
        try:
            taken = take()
        except Exception as error:
            if passes(error):
                raise
            part.retry_at = time.monotonic() + part.end(error)
            return otherwise
        if not part.is_running:
            part.begin()
        return taken

    def close(self) -> None:
        """Start nothing again."""
        self._closed.set()

    def states(self) -> Sequence[PartState]:
        """Return the state of each part, in the order in which they were started."""
        return [part.state(is_closed=self._closed.is_set()) for part in self._parts]

    def failing(self) -> str:
        """Return the parts that do not run, or have not for long, each with why it ended; empty where all run."""
        return "; ".join(f"{part.name}: {part.error}" for part in self.states() if part.state != "running")

    def _add(self, name: str) -> _Part:
        part = _Part(name)
        self._parts.append(part)
        return part
