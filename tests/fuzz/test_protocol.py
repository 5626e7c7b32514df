"""The protocol fuzzer: producers, workers, kills, lost answers, lost data, garbage and wrong clocks in any order.

What is tried is the protocol between them: Redis, worker processes, supervisors, signals and files are real, the
training is not (`stages`), and waits are a twentieth of themselves. `world` says what must hold after each storm.

`budget` says for how long. A failure names the seed that begins with the storm that failed; the same seed again takes
the same steps, at other moments.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

import pytest
from budget import SEED, STORMS_S, TIMEOUT_S, WITHOUT
from faulty_redis import Fault, Role
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from stages import BEHAVIOURS, Behaviour
from world import Options, World

from worker.broker.embedded_redis import redis_server

STORMS: Final = 10
"""Storms from one seed: hypothesis begins with the simplest, which is a waste for one alone."""
STEPS: Final = 20
COMMANDS: Final = (b"{", b'{"command": "kill-horse"}', b'{"command": "stop-job", "job_id": 1}', b"[" * 5000, b"\xff")

numbers = some.integers(0, 2**31)
roles: some.SearchStrategy[Role] = some.sampled_from(("worker", "supervisor"))
behaviours: some.SearchStrategy[Behaviour] = some.sampled_from(BEHAVIOURS)
faults = some.sampled_from([fault for fault in Fault if fault is not Fault.NONE])
options = some.builds(
    Options, result_ttl=some.sampled_from((None, None, 0, -1, 1, 500)),
    failure_ttl=some.sampled_from((None, None, 0, -1, 500)), ttl=some.sampled_from((None, None, None, 1, 500)),
    retries=some.sampled_from((0, 0, 1, 3)), at_front=some.booleans(),
)  # fmt: skip


def allowed(name: str) -> Callable[[object], bool]:
    """Return a function that says whether a rule is to be used."""
    return lambda _: name not in WITHOUT


class OutOfTime(BaseException):
    """The budget is used up; not an Exception, so that hypothesis lets it through."""


class Broken(BaseException):
    """A promise was broken; not an Exception, because the same storm again may take another course."""


class Storm(RuleBasedStateMachine):
    """One storm, and the calm after it."""

    make: ClassVar[Callable[[], World]]
    deadline: ClassVar[float]
    count: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        self.world = type(self).make()

    @initialize(first=some.lists(behaviours, max_size=3), workers=some.integers(0, 2))
    def begin(self, first: list[Behaviour], workers: int) -> None:
        for behaviour in first:
            self.world.enqueue(behaviour, ensure=False)
        for _ in range(workers):
            self.world.start_worker()

    @rule(behaviour=behaviours, ensure=some.booleans())
    def enqueue(self, behaviour: Behaviour, ensure: bool) -> None:
        self.world.enqueue(behaviour, ensure=ensure)

    @rule()
    def start_worker(self) -> None:
        self.world.start_worker()

    @rule(behaviour=behaviours, options=options)
    def enqueue_by_rq(self, behaviour: Behaviour, options: Options) -> None:
        self.world.enqueue_by_rq(behaviour, options)

    @rule(number=numbers)
    def enqueue_again(self, number: int) -> None:
        self.world.enqueue_again(number)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        self.world.cancel(number)

    @rule(number=numbers)
    def stop_command(self, number: int) -> None:
        self.world.stop(number)

    @rule(command=some.sampled_from(COMMANDS))
    def odd_command(self, command: bytes) -> None:
        self.world.command(command)

    @rule(number=numbers, role=roles, fault=faults, commands=some.integers(0, 40))
    def trap(self, number: int, role: Role, fault: Fault, commands: int) -> None:
        self.world.trap(number, role, fault, commands)

    @rule(number=numbers, role=roles)
    def kill(self, number: int, role: Role) -> None:
        self.world.kill(number, role)

    @rule(number=numbers, role=roles)
    def freeze(self, number: int, role: Role) -> None:
        self.world.freeze(number, role)

    @rule(number=numbers)
    def go_on(self, number: int) -> None:
        self.world.go_on(number)

    @rule(number=numbers)
    def tell_to_stop(self, number: int) -> None:
        self.world.tell_to_stop(number)

    @rule(seconds=some.sampled_from((0.005, 0.02, 0.05, 0.1, 0.3, 0.8)))
    def let_time_pass(self, seconds: float) -> None:
        self.world.sleep(seconds)

    @rule(seconds=some.sampled_from((-86_400, -3600, 3600, 86_400, 0)))
    def set_clock(self, seconds: int) -> None:
        self.world.set_clock(seconds)

    @precondition(allowed("empty"))
    @rule()
    def empty(self) -> None:
        self.world.empty()

    @precondition(allowed("roll_back"))
    @rule()
    def take_snapshot(self) -> None:
        self.world.take_snapshot()

    @precondition(allowed("roll_back"))
    @rule()
    def roll_back(self) -> None:
        self.world.roll_back()

    @rule()
    def cut(self) -> None:
        self.world.cut()

    @rule(full=some.booleans())
    def fill(self, full: bool) -> None:
        self.world.fill(full=full)

    @precondition(allowed("garbage"))
    @rule(which=numbers, how=numbers)
    def garbage(self, which: int, how: int) -> None:
        self.world.garbage(which, how)

    def teardown(self) -> None:
        world = self.world
        try:
            problems = world.drain()
            report = world.report(problems) if problems else ""
        finally:
            world.close()
        if problems:
            raise Broken(report)
        if time.monotonic() > self.deadline:
            raise OutOfTime  # here and not before the storm: hypothesis insists on the same draws after the same draws


@pytest.fixture
def storms(tmp_path: Path) -> Iterator[type[Storm]]:
    """The machine, on a Redis of its own."""
    with redis_server() as url:

        class Storms(Storm):
            make = lambda: World(url, tmp_path / str(Storms.count))  # noqa: E731 - looked up on the class
            deadline = time.monotonic() + STORMS_S

        yield Storms


@pytest.mark.timeout(TIMEOUT_S)
def test_nothing_is_lost_in_any_storm(storms: type[Storm], capsys: pytest.CaptureFixture[str]) -> None:
    """As many storms as the budget allows."""
    number = SEED
    with capsys.disabled():
        print(f"\nprotocol fuzzer: FUZZ_SEED={SEED}, {STORMS_S:g} s", flush=True)
    with pytest.raises(OutOfTime):
        while True:
            _some_storms(storms, number)
            number += 1
    with capsys.disabled():
        print(f"protocol fuzzer: {storms.count} storms", flush=True)


def _some_storms(storms: type[Storm], number: int) -> None:
    try:
        run_state_machine_as_test(
            seed(number)(storms),
            settings=settings(
                max_examples=STORMS, stateful_step_count=STEPS, phases=[Phase.generate], database=None, deadline=None,
                suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet, derandomize=False,
            ),
        )  # fmt: skip
    except Broken as broken:
        pytest.fail(f"FUZZ_SEED={number} begins with this storm\n{broken}", pytrace=False)
