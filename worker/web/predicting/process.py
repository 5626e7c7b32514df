"""The prediction process as the web service sees it: started with the first request, and again when it has ended."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from mmap import PAGESIZE
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from preflight.errors import ChildFailed, PreflightError, error_from_reason
from training.artifacts.predict_server import (
    MODULE,
    REQUEST,
    Asked,
    Serving,
    Summary,
    parse_answer,
    request_frame,
    take_frames,
)
from training.process.child import Child
from training.process.runner import raise_failure
from training.system.requirements import NEEDED, require_packages

IDLE_SECONDS: Final = 3600.0
"""Seconds without a request after which the process ends, so that its memory is free."""
START_SECONDS: Final = 60.0
"""Longest start of the process, in seconds, on a busy machine from a cold disk."""
ANSWER_SECONDS: Final = 20.0
"""Longest wait for an answer, in seconds; then the process is replaced."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the memory and at the oldest request."""
MAX_MEMORY: Final = 512 << 20
"""Bytes that the process may have in memory, its libraries apart, before it is replaced."""
MAX_PIXELS: Final = 20_000_000
"""Most pixels of a picture: decoding takes several bytes for each."""
ATTEMPTS: Final = 2
"""Processes to which a request is sent: if the first one ends or does not answer, a second one gets it."""
PAUSE_SECONDS: Final = 2.0
"""Least seconds between starts of a process that ends before it has answered."""
SOCKET: Final = "socket"


class Unanswered(ChildFailed):
    """The prediction process ended, or took too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the process to one request."""

    summary: Summary
    body: bytes
    """JSON objects, separated by commas."""


def can_predict() -> bool:
    """Whether what predictions need is installed here: ONNX Runtime or torch."""
    return find_spec("PIL") is not None and (
        find_spec("onnxruntime") is not None or all(find_spec(name) is not None for name in NEEDED)
    )


class PredictProcess:
    """Sends requests to one process, many at a time; all calls come from the thread of the event loop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the process with this environment once it is needed."""
        self._environment = environment
        # The kernel ends the process together with the thread that started it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predict")
        self._connection: _Connection | None = None
        self._starting: asyncio.Task[_Connection] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        """Tasks that end lost processes."""
        self._next_start = 0.0
        self.starts = 0
        """Number of processes that were started."""

    async def ask(self, asked: Asked, pictures: Sequence[bytes]) -> Answer:
        """Return the answer of the process.

        Raises:
            MissingPackage: neither ONNX Runtime nor torch is installed here.
            Unanswered: two processes in turn ended or took too long.
            PreflightError: the model cannot be used.
        """
        for attempt in range(ATTEMPTS):
            connection = self._connection or await self._connected()
            try:
                answer = await connection.send(asked, pictures)
            except Unanswered:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            reason = answer.summary.get("reason")
            if reason is not None:
                raise error_from_reason(reason, answer.body.decode(), "model")
            return answer
        raise AssertionError("each attempt returns or raises")

    async def close(self) -> None:
        """End the process."""
        if self._starting is not None:
            with suppress(PreflightError):
                await self._starting
        if self._connection is not None:
            await self._connection.end()
        await asyncio.gather(*self._endings)
        self._thread.shutdown(wait=False)

    async def _connected(self) -> "_Connection":
        """Return a connection; requests that wait for it share one start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        finally:
            if self._starting is starting and starting.done():
                self._starting = None

    async def _start(self) -> "_Connection":
        if find_spec("onnxruntime") is None:
            require_packages(NEEDED, "predictions need it, or onnxruntime", "train")
        require_packages(("numpy", "PIL"), "predictions need it", "train")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next_start - time.monotonic()))
        self._next_start = time.monotonic() + PAUSE_SECONDS
        self.starts += 1
        connection = _Connection(self._environment, self._thread, self._lost)
        server = await loop.create_unix_server(lambda: connection, connection.path)
        try:
            await loop.run_in_executor(self._thread, connection.start_child)
            await connection.wait_until_ready()
        except BaseException:
            await connection.end()
            raise
        finally:
            server.close()
        self._connection = connection
        return connection

    def _lost(self, connection: "_Connection", ending: asyncio.Task[None]) -> None:
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        if connection.has_answered:
            self._next_start = 0.0
        if self._connection is connection:
            self._connection = None


class _Connection(asyncio.Protocol):
    """One process and the requests that it has not answered."""

    def __init__(
        self, environment: Mapping[str, str], thread: ThreadPoolExecutor,
        lost: "Callable[[_Connection, asyncio.Task[None]], None]",
    ) -> None:  # fmt: skip
        self._environment, self._thread, self._on_lost = environment, thread, lost
        self._max_memory = MAX_MEMORY
        self._loop = asyncio.get_running_loop()
        self._resources = ExitStack()
        self._directory = Path(self._resources.enter_context(TemporaryDirectory(prefix="preflight-")))
        self.path = str(self._directory / SOCKET)
        self.has_answered = False
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._ready = asyncio.Event()
        self._received = bytearray()
        self._waiting: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        """Number -> the answer, and when the request was sent; the oldest first."""
        self._sent = 0
        self._watch: asyncio.TimerHandle | None = None
        self._why = "the prediction process ended"
        self._ending: asyncio.Task[None] | None = None

    # --- in the thread of the process

    def start_child(self) -> None:
        """Start the process; raises `ChildFailed`."""
        body = REQUEST.dump_json(
            Serving(socket=Path(self.path), idle_seconds=IDLE_SECONDS, most_pixels=MAX_PIXELS)
        )  # fmt: skip
        child = Child(MODULE, body, self._directory, self._environment, task="prediction")
        self._child = self._resources.enter_context(child)

    def _raise_if_ended(self) -> None:
        if self._child is not None and not self._child.running():
            for record in self._child.records():
                if record.kind == "fail":
                    raise_failure(record)
            raise self._child.exit_status().error(self._child.task)

    def _close_child(self) -> str | None:
        """End the process and remove its files; returns how it ended where it did so by itself."""
        why = None
        if self._child is not None and not self._child.running():
            why = self._child.exit_status().error(self._child.task).message
        self._resources.close()
        return why

    # --- in the event loop

    async def wait_until_ready(self) -> None:
        """Wait until the process has connected; raises `ChildFailed` where it ends, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), 0.1)
                return
            await self._loop.run_in_executor(self._thread, self._raise_if_ended)
            if time.monotonic() > deadline:
                raise Unanswered(f"the prediction process did not start within {START_SECONDS:g} s")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the process takes requests."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} carries no requests")
        self._transport = transport
        self._watch = self._loop.call_later(LOOK_SECONDS, self._look)
        self._ready.set()

    def send(self, asked: Asked, pictures: Sequence[bytes]) -> "asyncio.Future[Answer]":
        """Send a request; its answer raises `Unanswered` where the process ends."""
        future = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(Unanswered(self._why))
            return future
        self._sent += 1
        self._waiting[self._sent] = future, self._loop.time()
        self._transport.write(request_frame(self._sent, asked, pictures))
        return future

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that have come."""
        self._received += data
        for frame in take_frames(self._received):
            number, summary, body = parse_answer(frame)
            future, _ = self._waiting.pop(number)
            self.has_answered = True
            if not future.done():  # else its client has left
                future.set_result(Answer(summary, body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Fail what was not answered; the process is ended."""
        if self._watch is not None:
            self._watch.cancel()
        self._ending = self._ending or self._loop.create_task(self._end())
        self._on_lost(self, self._ending)
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(Unanswered(self._why))
        self._waiting.clear()

    async def end(self) -> None:
        """Close the connection and end the process."""
        if self._transport is not None:
            self._transport.close()
        self._ending = self._ending or self._loop.create_task(self._end())
        await self._ending

    async def _end(self) -> None:
        why = await self._loop.run_in_executor(self._thread, self._close_child)
        if why is not None:
            structlog.get_logger("preflight").warning("prediction_process_ended", message=why)

    def _look(self) -> None:
        """Replace a process that does not answer, or takes too much memory."""
        oldest = next(iter(self._waiting.values()), None)
        if oldest is not None and self._loop.time() - oldest[1] > ANSWER_SECONDS:
            self._abort(f"the prediction process did not answer within {ANSWER_SECONDS:g} s")
        elif self._resident() > self._max_memory:
            self._abort(f"the prediction process has more than {self._max_memory >> 20} MiB in memory")
        else:
            self._watch = self._loop.call_later(LOOK_SECONDS, self._look)

    def _resident(self) -> int:
        """Return the private memory of the process in bytes; 0 where that is not known."""
        pid = None if self._child is None else self._child.pid
        try:
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
            return (int(resident) - int(shared)) * PAGESIZE  # libraries are shared, and can be read again
        except (OSError, ValueError):
            return 0

    def _abort(self, why: str) -> None:
        self._why = why
        structlog.get_logger("preflight").warning("prediction_process_replaced", message=f"{why}; it is replaced")
        if self._transport is not None:
            self._transport.abort()
