"""Fuzzer of the protocol: producers, workers, kills, lost answers, lost data, garbage and wrong clocks in any order.

Redis, worker processes, supervisors, signals and files are real; the training is not (`stages`), and waits are a
twentieth of the real ones. `world` says what must hold after each storm. A failure names the seed of its storm; the
same seed takes the same steps, at other moments.
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

from preflight.redis.server.embedded import redis_server

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
    retries=some.sampled_from((0, 0, 1, 3)), interval=some.sampled_from((0, 0, 1)), at_front=some.booleans(),
    delay=some.sampled_from((0, 0, 0, 1)), repeats=some.sampled_from((0, 0, 0, 1)),
    depends=some.sampled_from((False, False, True)),
)  # fmt: skip


Step = Callable[..., None]


def step(name: str, as_rule: Callable[[Step], Step]) -> Step:
    """Return the rule that calls the method `name` of the world, unless the budget leaves it out."""

    def call(storm: "Storm", **drawn: object) -> None:
        getattr(storm.world, name)(**drawn)

    call.__name__ = name
    return precondition(lambda _: name not in WITHOUT)(as_rule(call))


class OutOfTime(BaseException):
    """The budget is used up; no Exception, so that hypothesis lets it through."""


class Broken(BaseException):
    """A guarantee was broken; no Exception, because a repeated storm may take another course."""


class Storm(RuleBasedStateMachine):
    """One storm, and the recovery after it."""

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

    enqueue = step("enqueue", rule(behaviour=behaviours, ensure=some.booleans()))
    start_worker = step("start_worker", rule())
    enqueue_by_rq = step("enqueue_by_rq", rule(behaviour=behaviours, options=options))
    enqueue_again = step("enqueue_again", rule(number=numbers))
    suspend = step("suspend", rule(suspended=some.booleans()))
    cancel = step("cancel", rule(number=numbers))
    delete = step("delete", rule(number=numbers))
    stop = step("stop", rule(number=numbers))
    command = step("command", rule(command=some.sampled_from(COMMANDS)))
    trap = step("trap", rule(number=numbers, role=roles, fault=faults, commands=some.integers(0, 40)))
    kill = step("kill", rule(number=numbers, role=roles))
    freeze = step("freeze", rule(number=numbers, role=roles))
    resume = step("resume", rule(number=numbers))
    terminate = step("terminate", rule(number=numbers))
    sleep = step("sleep", rule(seconds=some.sampled_from((0.005, 0.02, 0.05, 0.1, 0.3, 0.8))))
    set_clock = step("set_clock", rule(seconds=some.sampled_from((-86_400, -3600, 3600, 86_400, 0))))
    empty = step("empty", rule())
    take_snapshot = step("take_snapshot", rule())
    roll_back = step("roll_back", rule())
    cut = step("cut", rule())
    fill = step("fill", rule(full=some.booleans()))
    garbage = step("garbage", rule(which=numbers, how=numbers))
    offer = step("offer", rule(which=numbers))
    enqueue_garbage = step("enqueue_garbage", rule(which=numbers))

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
    """The state machine with its own Redis."""
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
