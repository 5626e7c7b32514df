"""Groups of real agents on loopback addresses."""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import Record
from training.data.dataset_info import DatasetInfo
from training.distributed import agent
from training.group import Seat, Wire
from training.loop.child import REQUEST, TrainingRequest
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.runner import raise_failure

PATIENCE = 120.0
"""Seconds until a test gives up."""


@dataclass
class Sitting:
    """A started agent and its records."""

    name: str
    child: Child
    records: list[Record] = field(default_factory=list)

    def read(self) -> list[Record]:
        """Take the new records in, and return all."""
        self.records += self.child.records()
        return self.records

    def of(self, kind: str) -> list[dict[str, JsonValue]]:
        """Return the payloads of the records of a kind, so far."""
        return [record.payload for record in self.read() if record.kind == kind]

    def until(self, met: Callable[[], bool]) -> None:
        """Wait until a condition is met; raise the failure that the child records meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not met():
            for record in self.records:
                if record.kind == "fail":
                    raise_failure(record)
            assert time.monotonic() < deadline, [record.kind for record in self.records]
            ended = not self.child.running()
            if ended and not met():
                raise self.child.exit_status().error(self.name)
            self.child.wait(0.05)

    def told(self, kind: str, times: int = 1) -> list[dict[str, JsonValue]]:
        """Wait until there are `times` records of a kind, and return them."""
        self.until(lambda: len(self.of(kind)) >= times)
        return self.of(kind)


@dataclass(kw_only=True)
class Table:
    """The place of a group: starts agents for one training."""

    directory: Path
    store: DatasetInfo
    spec: TrainSpec
    plan: Plan = field(default_factory=lambda: Plan(threads=1, micro_batch=64, eval_batch=100))
    least: int = 1
    most: int = 2
    gather_seconds: float = 20.0
    awaited: int = 1
    measure: bool = False
    wire: Wire | None = None
    checkpoint_seconds: float | None = None
    addresses: tuple[str, ...] = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    stack: ExitStack = field(default_factory=ExitStack)
    endpoint: tuple[str, int] | None = None
    server: ForkServer | None = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    checkpoints: Path = field(init=False)
    attempt: int = 1

    def __post_init__(self) -> None:
        self.checkpoints = self.directory / "job" / str(self.attempt)

    def lead(self, resume: tuple[Path, ...] = ()) -> Sitting:
        """Start the leader, and wait until it listens."""
        leader = self._sit("leader", 0, None, resume)
        (listening,) = leader.told("listening")
        port = listening["port"]
        assert isinstance(port, int)
        self.endpoint = (self.addresses[0], port)
        return leader

    def join(self, number: int = 1) -> Sitting:
        """Start a member; its number gives its address."""
        assert self.endpoint is not None
        return self._sit(f"member-{number}", number, self.endpoint, ())

    def _sit(self, name: str, number: int, endpoint: tuple[str, int] | None, resume: tuple[Path, ...]) -> Sitting:
        place = self.directory / f"{name}-{time.monotonic_ns()}"
        place.mkdir(parents=True)
        seat = Seat(
            name=name, leader=endpoint is None, address=self.addresses[number], endpoint=endpoint, secret=self.secret,
            least=self.least, most=self.most, awaited=self.awaited, gather_seconds=self.gather_seconds,
            measure=self.measure, wire=self.wire,
        )  # fmt: skip
        request = TrainingRequest(
            spec=self.spec, plan=self.plan, store=self.store.path, facts={}, seat=seat,
            artifact=self.directory / "model" if endpoint is None else place / "model",
            checkpoints=self.checkpoints if endpoint is None else None, checkpoint_seconds=self.checkpoint_seconds,
            resume=resume,
        )  # fmt: skip
        child = self.stack.enter_context(
            Child(agent.MODULE, REQUEST.dump_json(request), place, self.environment, server=self.server)
        )
        while child.pid is None:  # a fork server's answer, or its refusal, is read by those who wait for the child
            child.wait(0.05)
        return Sitting(name, child)
