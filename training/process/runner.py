"""Child runner: read the records of a child process until it is done."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn

from pydantic import JsonValue

from preflight.errors import ChildFailed, error_from_reason
from preflight.files.journal import Record
from training.process.child import Child

TICK_SECONDS: Final = 0.2
"""Longest wait for a record: a signal, or the cancellation of a job, is noticed after as long."""


def run_child(
    module: str, body: bytes, directory: Path, environment: Mapping[str, str], *, task: str,
    check: Callable[[], None] = lambda: None, on_record: Callable[[Record], None] | None = None,
) -> dict[str, JsonValue]:  # fmt: skip
    """Run a child of `task` to its end and return the payload of its `done` record.

    Raises:
        OSError: `directory` cannot be written.
        PreflightError: as `iter_records`.
    """
    with Child(module, body, directory, environment, task=task) as child:
        return read_to_end(child, check, on_record)


def read_to_end(
    child: Child, check: Callable[[], None], on_record: Callable[[Record], None] | None = None
) -> dict[str, JsonValue]:
    """Call `on_record` for the records of a child before `done`, whose payload is returned; as `iter_records`."""
    for record in iter_records(child, check):
        if record.kind == "done":
            return record.payload
        if on_record is not None:
            on_record(record)
    raise AssertionError("iter_records() ends with `done` or raises")


def iter_records(child: Child, check: Callable[[], None]) -> Iterator[Record]:
    """Yield a child's records as they come; the last one is `done`.

    `check` is called every `TICK_SECONDS` or more often; its exceptions end the wait.

    Raises:
        PreflightError: the failure that the child recorded.
        OutOfMemory: the kernel killed it for memory.
        ChildFailed: it ended without `done` or `fail`; `ChildKilled` where a signal ended it.
    """
    while True:
        ended = not child.running()
        for record in child.records():
            if record.kind == "fail":
                raise_failure(record)
            yield record
            if record.kind == "done":
                return
        if ended:
            raise child.exit_status().error(child.task)
        check()
        while not child.wait(TICK_SECONDS):
            check()


def raise_failure(record: Record) -> NoReturn:
    """Raise the exception of a `fail` record."""
    match record.payload:
        case {"reason": str(reason), "message": str(message), "field": None | str() as field}:
            raise error_from_reason(reason, message, field)
    raise ChildFailed(f"a child failed with an invalid record: {record.payload!r}")
