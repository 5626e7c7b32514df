"""A simulated CFS bandwidth controller: the wall time of work under it, period by period (sched-bwc.rst)."""

from dataclasses import dataclass


@dataclass
class Bandwidth:
    """A quota whose periods begin at 0; the process that it holds back is alone in its cgroup."""

    processors: float
    period_s: float = 0.1
    burst_s: float = 0.0
    """CPU seconds that were saved before."""
    clock: float = 0.0
    throttled_s: float = 0.0
    """Seconds for which it held the process back so far."""
    _period: int = -1
    _left_s: float = 0.0

    def work(self, wall_s: float, cpu_s: float) -> float:
        """Return the wall seconds of work that takes `wall_s` at full speed and `cpu_s` CPU seconds meanwhile."""
        began, rate = self.clock, cpu_s / wall_s
        while wall_s > 1e-12:
            period = int(self.clock / self.period_s + 1e-9)
            if period > self._period:
                saved, self._left_s = self._left_s, self.processors * self.period_s
                if self._period < 0:
                    self._left_s += self.burst_s
                else:
                    self._left_s += min(saved, self.burst_s)
                self._period = period
            until = (period + 1) * self.period_s
            run = min(wall_s, until - self.clock, self._left_s / rate)
            self.clock, wall_s, self._left_s = self.clock + run, wall_s - run, self._left_s - run * rate
            if wall_s > 1e-12 and self._left_s < 1e-12:
                self.throttled_s += until - self.clock
                self.clock = until
        return self.clock - began
