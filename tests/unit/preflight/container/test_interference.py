"""Noise as the kernel's files tell of it: on made-up file trees, and on this machine."""

import dataclasses
from pathlib import Path

import pytest

from preflight.container.counters import SystemCounters
from preflight.container.interference import CounterSample, Interference

MOUNTS = {"v1": "1 1 0:1 / /cg rw - cgroup x rw,cpu\n", "v2": "1 1 0:1 / /cg rw - cgroup2 x rw\n"}
THROTTLED = {"v1": "nr_throttled 5\nthrottled_time {}000000\n", "v2": "nr_throttled 5\nthrottled_usec {}000\n"}


class Kernel:
    """A made-up /proc and cgroup tree of two processors, whose counters a test sets as totals."""

    def __init__(self, root: Path, version: str = "v2") -> None:
        self.root = root
        self._version = version
        self.write("proc/self/mountinfo", MOUNTS[version])
        self.write("proc/self/cgroup", "1:cpu:/job\n0::/job\n")
        self.write("proc/self/task/7/children", "8 9 \n")
        self.quota("max")

    def write(self, path: str, content: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def quota(self, microseconds: str) -> None:
        """Set the quota of the job's cgroup in 100 ms."""
        if self._version == "v2":
            self.write("cg/job/cpu.max", f"{microseconds} 100000\n")
        else:
            self.write("cg/job/cpu.cfs_quota_us", "-1\n" if microseconds == "max" else f"{microseconds}\n")
            self.write("cg/job/cpu.cfs_period_us", "100000\n")

    def count(
        self, *, busy: int = 0, stolen: int = 0, own: int = 0, child: int = 0, waited: int = 0, pressure: int = 0,
        throttled: int = 0,
    ) -> None:  # fmt: skip
        """Write totals in milliseconds; `busy` and `stolen` of each processor."""
        line = f"{{}} {busy // 10} 0 0 99 9 0 0 {stolen // 10} 50 0\n"
        self.write("proc/stat", "".join(line.format(name) for name in ("cpu ", "cpu0", "cpu1", "cpu2")) + "intr 5 5\n")
        times = "{} {} R 1 1 1 0 -1 0 0 0 0 0 {} 0 0 0 20 0 1 0 5 0\n"
        self.write("proc/self/stat", times.format(7, "(a) b)", own // 10))
        self.write("proc/8/stat", times.format(8, "(loader)", child // 10))
        self.write("proc/self/task/7/schedstat", f"{own + 1}000000 {waited}000000 7\n")
        self.write("proc/self/task/70/schedstat", "1 0 7\n")
        self.write("proc/pressure/cpu", f"some avg10=1.37 avg60=5.24 avg300=6.23 total={pressure}000\nfull total=9\n")
        self.write("cg/job/cpu.stat", "usage_usec 5\n" + THROTTLED[self._version].format(throttled))


@pytest.fixture(params=["v1", "v2"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, request.param)


TOTALS = {"busy": 5000, "own": 700, "child": 30, "waited": 4000, "pressure": 3000, "throttled": 90, "stolen": 20}
"""Milliseconds that the counters show at first."""


def over_a_second(kernel: Kernel, machine: SystemCounters | None = None, **counters: int) -> Interference:
    """Return what a second brings in which the counters grow by milliseconds."""
    kernel.count(**TOTALS)
    machine = machine or SystemCounters(kernel.root, affinity=frozenset({0, 1}))
    before = machine.sample()
    kernel.count(**{name: total + counters.get(name, 0) for name, total in TOTALS.items()})
    return dataclasses.replace(machine.sample(), at=before.at + 1).since(before)


def test_every_counter_is_read(kernel: Kernel) -> None:
    """Seconds a second of each, in cgroup v1 and v2; processors that we may not use do not count."""
    counters = {"busy": 900, "own": 1000, "child": 200, "waited": 100, "pressure": 300, "throttled": 40, "stolen": 100}
    noise = over_a_second(kernel, None, **counters)
    seen = (noise.seconds, noise.own, noise.others, noise.stolen, noise.waited, noise.pressure, noise.throttled)
    assert seen == pytest.approx((1, 1.2, 0.6, 0.1, 0.1, 0.3, 0.04))
    assert (noise.processors, noise.quota, noise.lowered) == (2, None, False)


def test_own_threads_are_no_interference(kernel: Kernel) -> None:
    """Four spinning threads on two processors wait for each other, and press; nobody else is there."""
    noise = over_a_second(kernel, busy=1000, own=2000, waited=2000, pressure=1000)
    assert (noise.neighbour, noise.noisy, noise.describe()) == (False, False, "the machine was quiet")


def test_who_keeps_us_waiting_is_a_neighbour(kernel: Kernel) -> None:
    """Others that work while our threads wait are named with both figures; one that keeps nobody waiting is none."""
    noise = over_a_second(kernel, busy=1000, own=1100, waited=400, pressure=900)
    assert noise.noisy
    assert noise.describe().startswith("others used 0.9 of 2 processors while our threads waited for 0.40 s a second")
    assert noise.describe().endswith("CPU pressure 90%)")
    assert not over_a_second(kernel, busy=1000, own=1000, waited=10, pressure=20).noisy


def test_others_leave_room_for_as_many_threads_as_there_are_idle_processors(kernel: Kernel) -> None:
    """To the nearest one; where the kernel does not tell, there is room for all that are asked for."""
    beside = over_a_second(kernel, busy=900, own=900)
    assert beside.free == 1
    assert over_a_second(kernel, busy=600, own=900).free == 2
    assert dataclasses.replace(beside, processors=0, others=0.0).free is None
    assert dataclasses.replace(beside, others=0.0, stolen=0.5).free == 1


def test_stolen_time_is_noise(kernel: Kernel) -> None:
    """A hypervisor that takes a tenth of our time is named."""
    noise = over_a_second(kernel, busy=900, own=1800, stolen=100)
    assert noise.noisy
    assert noise.describe() == "the hypervisor took 10% of the time of 2 processors"


def test_a_quota_that_others_use_up_is_noise(kernel: Kernel) -> None:
    """Under a quota of 1.5 we are held back by the plan where our two threads use it, and by others where they do."""
    kernel.quota("150000")
    ours = over_a_second(kernel, busy=1000, own=1500, waited=480, pressure=500, throttled=500)
    assert (ours.quota, ours.noisy) == (1.5, False)
    theirs = over_a_second(kernel, busy=750, own=750, waited=480, throttled=500)
    assert theirs.describe() == "a CPU quota that others used up held us back for 0.50 s a second"


def test_what_a_short_look_cannot_tell_is_no_interference(kernel: Kernel) -> None:
    """In 200 ms that began when the quota of the first period had been used up, half of it is all that can be had."""
    kernel.quota("50000")
    kernel.count(**TOTALS)
    machine = SystemCounters(kernel.root, affinity=frozenset({0, 1}))
    before = machine.sample()
    kernel.count(**{**TOTALS, "own": TOTALS["own"] + 50, "throttled": TOTALS["throttled"] + 150})
    after = machine.sample()
    short, long = (dataclasses.replace(after, at=before.at + seconds).since(before) for seconds in (0.2, 2.0))
    assert (short.held_back, short.throttled_by_others) == (True, False)
    assert (long.held_back, long.throttled_by_others) == (True, True)


def test_a_share_of_a_quota_that_is_used_up_is_no_noise(kernel: Kernel) -> None:
    """Half of two processors, all of which this process used; the whole of them would be spare."""
    kernel.quota("200000")
    kernel.count()
    shared = SystemCounters(kernel.root, affinity=frozenset({0, 1}), shares=2)
    assert not over_a_second(kernel, shared, busy=500, own=1000, throttled=500).noisy
    assert over_a_second(kernel, None, busy=500, own=1000, throttled=500).noisy


@pytest.mark.parametrize("before", ["max", "200000"])
def test_a_quota_that_is_lowered_is_noise(kernel: Kernel, before: str) -> None:
    """The container is no longer the one that was measured."""
    kernel.quota(before)
    kernel.count()
    machine = SystemCounters(kernel.root, affinity=frozenset({0, 1}))
    kernel.quota("100000")
    noise = over_a_second(kernel, machine, busy=500, own=1000, throttled=500)
    assert noise.describe() == "a CPU quota that was lowered held us back for 0.50 s a second"


def test_the_own_cgroup_tells_more_than_the_machine(tmp_path: Path) -> None:
    """Where v2 shows the pressure on our own tasks, that of the whole machine does not count."""
    kernel = Kernel(tmp_path, "v2")
    kernel.write("cg/job/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
    assert over_a_second(kernel, pressure=900).pressure == 0


def test_without_waiting_times_pressure_counts(kernel: Kernel) -> None:
    """A kernel that does not count how long its tasks wait still knows pressure."""

    def uncounted(snapshot: CounterSample) -> CounterSample:
        return dataclasses.replace(snapshot, waited=None)

    kernel.count()
    before = uncounted(SystemCounters(kernel.root, affinity=frozenset({0, 1})).sample())
    kernel.count(busy=1000, own=1000, pressure=900)
    after = SystemCounters(kernel.root, affinity=frozenset({0, 1})).sample()
    noise = dataclasses.replace(uncounted(after), at=before.at + 1).since(before)
    assert (noise.waited, noise.neighbour) == (None, True)
    kernel.write("proc/self/task/7/schedstat", "0 0 0\n")
    kernel.write("proc/self/task/70/schedstat", "0 0 0\n")
    assert SystemCounters(kernel.root).sample().waited is None


@pytest.mark.parametrize("spoil", ["nothing", "garbage", b"\xff\x00"], ids=str)
def test_nothing_in_a_file_raises(kernel: Kernel, spoil: str | bytes) -> None:
    """Without files, or with garbage in all of them, the machine is quiet."""
    kernel.count()
    machine = SystemCounters(kernel.root)
    for path in [path for path in kernel.root.rglob("*") if path.is_file()]:
        path.unlink()
        if spoil != "nothing":
            path.write_bytes(spoil if isinstance(spoil, bytes) else spoil.encode())
    for looker in (machine, SystemCounters(kernel.root)):
        noise = looker.sample().since(looker.sample())
        assert (noise.noisy, noise.describe()) == (False, "the machine was quiet")


def test_threads_and_children_come_and_go(kernel: Kernel) -> None:
    """What is not in both looks is not counted, and nothing ever counts as negative."""
    kernel.count(own=1000, child=500, waited=700)
    machine = SystemCounters(kernel.root, affinity=frozenset({0, 1}))
    before = machine.sample()
    (kernel.root / "proc/self/task/7/schedstat").unlink()
    (kernel.root / "proc/8/stat").unlink()
    kernel.write("proc/self/task/71/schedstat", "5 5000000000 5\n")
    noise = machine.sample().since(before)
    assert (noise.own, noise.waited) == (0, 0)


def test_this_machine_can_be_looked_at() -> None:
    """What this process works is seen as its own."""
    machine = SystemCounters()
    before = machine.sample()

    while machine.sample().own < before.own + 0.02:
        sum(range(10_000))
    noise = machine.sample().since(before)
    assert noise.processors >= 1
    assert noise.own > 0
    assert noise.describe()
