"""Interference: whether other processes disturb a measurement, from differences of the kernel's counters.

Our own threads look much like a neighbour: they cause CPU pressure where they outnumber the processors or the quota,
and OpenMP's spinning counts as work. So counters are combined; interference is one of

- stolen time: the hypervisor gave our processors to another machine;
- a neighbour: our threads waited for a processor *while* others used ours. Waiting without others is our own doing,
  and others without waiting have processors of their own;
- throttling that we did not cause: it set in below our quota, so that others in our cgroup used it, or the quota is
  less than it was.

Memory that is too short slows a process, too, as the kernel discards pages of its code: that is our own doing.
Processes that share only caches or memory bandwidth with us are not seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STOLEN: Final = 0.05
"""Share of our processors' time: half of the deviation that warns, and more than one tick in 200 ms."""
WAITED: Final = 0.05
"""Seconds per second that our threads wait: with barriers in each layer, all wait for one."""
OTHERS: Final = 0.1
"""Processors in use by others: two ticks in 200 ms, more than the error of the kernel's sampling."""
THROTTLED: Final = 0.05
"""Seconds per second, summed over processors; as for waiting."""
REREAD: Final = 50.0
"""Major faults a second: below 5 where the memory is enough, 100 to 220 in the midst of a training where it is not
(`resnet18`, 512 MiB)."""
FULL: Final = 0.9
"""Share of the quota above which we have used it up ourselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Difference of two samples, per second of wall time."""

    seconds: float
    """Seconds between the two samples."""
    processors: int
    """Processors that we may use."""
    own: float
    """CPU seconds of this process and its children; OpenMP's spinning included."""
    others: float
    """CPU seconds of all others on those processors."""
    stolen: float
    """Share of their time that the hypervisor took, 0..1."""
    waited: float | None
    """Seconds that our threads were ready and had no processor, summed; None: the kernel does not tell."""
    pressure: float | None
    """Share of the time in which any task was waiting, 0..1: in our cgroup, else on the machine; None: not known."""
    throttled: float
    """Seconds, summed over processors, for which the quota of a cgroup held its tasks back."""
    quota: float | None
    """Processors of the quota at the second look; None: no limit."""
    period_s: float = 0.1
    """Period of that quota, in seconds."""
    lowered: bool
    """Whether the quota is less than when the machine was first looked at."""
    switches: float
    """Times that a thread of ours was made to give way."""
    reread: float
    """Times that we waited for a page from disk."""

    @property
    def neighbour(self) -> bool:
        """Whether our threads waited while others used our processors."""
        # Throttled threads count as waiting, too.
        waited = self.pressure if self.waited is None else self.waited - self.throttled
        return waited is not None and waited >= WAITED and self.others >= OTHERS

    @property
    def held_back(self) -> bool:
        """Whether a quota held us back, also where we used it up ourselves."""
        return self.quota is not None and self.throttled >= THROTTLED

    @property
    def throttled_by_others(self) -> bool:
        """Whether a quota held us back that we have not used up ourselves, or that was lowered."""
        if self.quota is None:
            return False
        # The use of the quota before the first sample, in the same period, was not counted.
        spare = self.own + self.quota * self.period_s / self.seconds < FULL * self.quota
        return self.held_back and (spare or self.lowered)

    @property
    def short_of_memory(self) -> bool:
        """Whether pages of the program were discarded and read again all the time."""
        return self.reread >= REREAD

    @property
    def noisy(self) -> bool:
        """Whether a measurement between the two samples was disturbed."""
        return self.stolen >= STOLEN or self.neighbour or self.throttled_by_others

    @property
    def free(self) -> int | None:
        """Processors that neither others nor the hypervisor held; None: the kernel does not tell."""
        if not self.processors:
            return None
        return max(0, round(self.processors * (1 - self.stolen) - self.others))

    def describe(self) -> str:
        """Return the interference as a clause."""
        said = []
        if self.stolen >= STOLEN:
            said.append(f"the hypervisor took {self.stolen:.0%} of the time of {_processors(self.processors)}")
        if self.neighbour:
            pressure = "" if self.pressure is None else f", CPU pressure {self.pressure:.0%}"
            waited = "" if self.waited is None else f" for {self.waited:.2f} s a second"
            said.append(f"others used {self.others:.1f} of {_processors(self.processors)} while our threads waited"
                        f"{waited} ({self.switches:,.0f} forced switches a second{pressure})")  # fmt: skip
        if self.throttled_by_others:
            whose = "was lowered" if self.lowered else "others used up"
            said.append(f"a CPU quota that {whose} held us back for {self.throttled:.2f} s a second")
        return " and ".join(said) or "the machine was quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """The kernel's counters at one moment; only differences have a meaning."""

    at: float
    """Seconds, of time.perf_counter."""
    busy: Mapping[str, float]
    """Processor that we may use -> CPU seconds of all processes."""
    stolen: Mapping[str, float]
    """Processor that we may use -> seconds that the hypervisor took."""
    own: float
    """CPU seconds of this process and its children."""
    waited: Mapping[str, float] | None
    """Thread of ours -> seconds that it waited for a processor; None: the kernel does not tell."""
    pressure: float | None
    """Seconds in which any task was waiting; None: the kernel does not tell."""
    throttled: float
    """Seconds of throttling, summed over processors."""
    quota: float | None
    """Processors of the quota; None: no limit."""
    period_s: float = 0.1
    """Period of that quota, in seconds."""
    lowered: bool
    """Whether the quota is less than when the machine was first looked at."""
    switches: int
    """Times that a thread of this process was made to give way."""
    reread: int
    """Its major faults: times that it waited for a page from disk."""

    def since(self, before: "CounterSample") -> Interference:
        """Return the interference since `before`, an earlier sample."""
        seconds = max(self.at - before.at, 1e-9)
        own = max(0.0, self.own - before.own)
        waited = None if self.waited is None or before.waited is None else _grown(self.waited, before.waited)
        pressure = None if self.pressure is None or before.pressure is None else self.pressure - before.pressure
        return Interference(
            seconds=seconds,
            processors=len(self.busy),
            own=own / seconds,
            others=max(0.0, _grown(self.busy, before.busy) - own) / seconds,
            stolen=_grown(self.stolen, before.stolen) / seconds / max(1, len(self.stolen)),
            waited=None if waited is None else waited / seconds,
            pressure=None if pressure is None else max(0.0, pressure) / seconds,
            throttled=max(0.0, self.throttled - before.throttled) / seconds,
            quota=self.quota,
            period_s=self.period_s,
            lowered=self.lowered,
            switches=(self.switches - before.switches) / seconds,
            reread=(self.reread - before.reread) / seconds,
        )


def _grown(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    """Return by how much the counters that are in both have grown: threads and processors come and go."""
    return sum(max(0.0, value - before[name]) for name, value in now.items() if name in before)


def _processors(count: int) -> str:
    return "1 processor" if count == 1 else f"{count} processors"
