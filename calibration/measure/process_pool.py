"""The measuring processes of one calibration, seen from its parent: one for each setting, started when it is needed.

A process that dies, hangs or runs out of memory costs the measurement under way; the next one gets a new process.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.child import MODULE
from calibration.measure.protocol import (
    BENCH,
    REQUEST,
    Bench,
    Check,
    Checked,
    Clear,
    Gauge,
    Gauged,
    Measure,
    Measured,
    Probe,
    Probed,
    Request,
    Validate,
    Validated,
)
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildFailed, OutOfMemory
from preflight.files.journal import Record
from training.process.child import KILL_TIMEOUT, Child
from training.process.fork_server.client import ForkServer
from training.process.launch import ProcessConfig, environment_for, process_config
from training.process.runner import TICK_SECONDS, raise_failure

START_LIMIT: Final = 120.0
"""Seconds after which a process that has not begun is given up; importing torch from a cold disk takes a while."""

Reply = TypeVar("Reply")
MEASURED, PROBED = TypeAdapter(Measured), TypeAdapter(Probed)
VALIDATED, CHECKED, GAUGED = TypeAdapter(Validated), TypeAdapter(Checked), TypeAdapter(Gauged)
NOTHING = TypeAdapter(dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Settings of the measuring processes."""

    store: Path
    """Directory of the prepared data set."""
    directory: Path
    """Directory for the processes' files."""
    environment: Mapping[str, str]
    shares: int = 1
    """Shares that the container is divided into; the processes have one of them."""
    server: ForkServer | None = None
    """Server that forks the processes, where it can; None: they are fresh interpreters."""


class ProcessPool:
    """Measures in processes of this machine. Use as a context: leaving it ends them."""

    def __init__(self, spec: TrainSpec, settings: ProcessSettings, tick: Callable[[], None]) -> None:
        """Call `tick` while waiting, which may raise to end it all."""
        self.import_seconds = 0.0
        self._spec = spec
        self._settings = settings
        self._tick = tick
        self._numbers = itertools.count(1)
        self._children: dict[ProcessConfig, tuple[Child, ExitStack]] = {}
        self._began = time.monotonic()
        self._deadline = float("inf")

    def now(self) -> float:
        """Return the seconds since the calibration began, without the starting of processes."""
        return time.monotonic() - self._began - self.import_seconds

    def limit(self, deadline: float) -> None:
        """End the process of any request that is unanswered at `deadline`."""
        self._deadline = deadline

    def measure(self, order: Measure) -> Measured:
        """Time the steps of `order`."""
        measured = self._ask(order.plan, order, MEASURED)
        self.import_seconds += measured.start_s
        least = order.steps if order.most_s is None else min(1, order.steps)
        if not least <= len(measured.seconds) <= order.steps:  # without measured steps any plan would look fast
            raise PlanFailed(f"{len(measured.seconds)} steps were measured, where {order.steps} were asked for")
        return measured

    def probe(self, plan: Plan) -> Probed:
        """Measure the memory of one micro-batch of the plan."""
        return self._ask(plan, Probe(plan=plan), PROBED)

    def validate(self, plan: Plan, samples: int) -> Validated:
        """Time an evaluation of `samples` samples."""
        return self._ask(plan, Validate(plan=plan, samples=samples), VALIDATED)

    def check(self, plan: Plan, reference: Plan, *, steps: int, samples: int) -> Checked:
        """Compare the gradients under two plans of one setting, after `steps` steps of `samples` samples."""
        return self._ask(plan, Check(plan=plan, reference=reference, steps=steps, samples=samples), CHECKED)

    def gauge(self, plan: Plan) -> Gauged:
        """Time the reference workload on the plan's threads."""
        return self._ask(plan, Gauge(plan=plan), GAUGED)

    def isolate(self, plan: Plan) -> None:
        """Forget the warm models of the plan's process, and end the processes of other settings."""
        for setting in [setting for setting in self._children if setting != process_config(plan)]:
            self._end(setting)
        if process_config(plan) in self._children:
            self._ask(plan, Clear(), NOTHING)

    def restart(self, plan: Plan) -> None:
        """End the process of the plan's setting."""
        self._end(process_config(plan))

    def _ask(self, plan: Plan, order: Request, reply: TypeAdapter[Reply]) -> Reply:
        setting = process_config(plan)
        try:
            child = self._child(setting, plan)
            child.send(REQUEST.dump_json(order))
            record = self._hear(child, lambda: self.now() >= self._deadline)
        except (ChildFailed, OutOfMemory, OSError) as error:
            self._end(setting)
            late = self.now() >= self._deadline
            raise WorkerLost(str(error), memory=isinstance(error, OutOfMemory), late=late) from error
        if record.kind == "broken":
            raise PlanFailed(str(record.payload.get("message")))
        try:
            return reply.validate_python(record.payload, strict=False)
        except ValidationError as error:
            self._end(setting)
            raise WorkerLost("the calibration process gave an answer that cannot be read") from error

    def _child(self, setting: ProcessConfig, plan: Plan) -> Child:
        """Return the process of a setting, started and ready."""
        if setting not in self._children:
            began = time.monotonic()
            where = self._settings
            body = BENCH.dump_json(Bench(spec=self._spec, plan=plan, store=where.store, shares=where.shares))
            name = f"calibration-{next(self._numbers)}"
            with ExitStack() as stack:
                environment = environment_for(plan, where.environment)
                child = stack.enter_context(
                    Child(
                        MODULE, body, where.directory, environment, task="calibration", name=name, listens=True,
                        shares=where.shares, server=where.server,
                    )
                )  # fmt: skip
                self._children[setting] = child, stack.pop_all()
            self._hear(child, lambda: time.monotonic() - began >= START_LIMIT)
            self.import_seconds += time.monotonic() - began
        return self._children[setting][0]

    def _hear(self, child: Child, overdue: Callable[[], bool]) -> Record:
        """Return the next record of a child.

        Raises:
            ChildFailed: the child ended, or sent nothing before it was overdue; `OutOfMemory` for memory.
            PreflightError: the failure that the child recorded.
        """
        while True:
            ended = not child.running()
            for record in child.records():
                if record.kind == "fail":
                    raise_failure(record)
                return record
            if ended:
                raise child.exit_status().error(child.task)
            self._tick()
            if overdue():
                child.end(KILL_TIMEOUT)
                raise ChildFailed(f"the {child.task} process did not answer in time and was ended")
            child.wait(TICK_SECONDS)

    def _end(self, setting: ProcessConfig) -> None:
        if setting in self._children:
            child, stack = self._children.pop(setting)
            child.end(0)  # it has nothing to save
            stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for setting in list(self._children):
            self._end(setting)
