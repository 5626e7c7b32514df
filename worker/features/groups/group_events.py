"""Events of a group: it was formed, measured or changed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from preflight.container.resources import Resources
from training.group import Wire
from worker.features.groups.messages import MemberState
from worker.jobs.context import JobContext

LEAST_SPEEDUP: Final = 1.15
"""Least speedup over the leader alone for which a group continues: below, its members are worth more to other jobs."""

Speed = Annotated[float, Field(ge=0)]


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore", allow_inf_nan=False))
class Measurement:
    """The record `group_measured` of the training process."""

    alone_samples_per_s: Speed
    group_samples_per_s: Speed
    speedup: Speed
    wire: Wire | None = None
    speeds: dict[str, Speed] = Field(default_factory=dict)
    """Name of a worker -> samples a second when it trains alone."""
    slow: tuple[str, ...] = ()
    """Members without whom the group would be faster."""

    @property
    def pays(self) -> bool:
        """Whether the group is worth its members."""
        return self.speedup >= LEAST_SPEEDUP

    def speed_of(self, name: str) -> str:
        """Return the speed of a member, and that of the fastest one, in words."""
        own, best = self.speeds.get(name, 0.0), max(self.speeds.values(), default=0.0)
        return f"{own:,.0f} samples/s alone, the fastest {best:,.0f}"


MEASUREMENT = TypeAdapter(Measurement)


@dataclass(slots=True, kw_only=True)
class GroupEvents:
    """Emits the events of the group of one attempt."""

    context: JobContext
    leader: str
    resources: Resources
    """Resources of the leader's container."""
    began: float = field(default_factory=time.monotonic)
    """Monotonic time since which seats are offered."""
    _formed: bool = False

    def show(self, before: Sequence[str], ranks: Sequence[str], reported: Mapping[str, MemberState]) -> None:
        """Emit `group_formed` once several workers train, then each change from `before` to `ranks`."""
        left, joined = [each for each in before if each not in ranks], [each for each in ranks if each not in before]
        if not self._formed and len(ranks) > 1:
            self._formed = True
            seconds = time.monotonic() - self.began
            self.context.emit("group_formed", {
                "workers": len(ranks), "members": [*ranks], "took_s": seconds, **self._containers(ranks, reported),
                "message": f"{len(ranks)} workers train together after {seconds:.1f} s: {', '.join(ranks)}",
            })  # fmt: skip
        elif self._formed and (left or joined):
            self.context.emit("group_changed", {
                "workers": len(ranks), "members": [*ranks], "left": [*left], "joined": [*joined],
                "message": _changed(ranks, left, joined),
            })  # fmt: skip

    def show_measurement(self, ranks: Sequence[str], found: Measurement, *, kept: bool, demanded: int) -> None:
        """Emit the measurement and whether the group continues; `demanded`: least workers of the job."""
        speeds = [found.speeds.get(name, 0.0) for name in ranks] if found.speeds else []
        faster = (
            f"{len(ranks)} workers train at {found.group_samples_per_s:,.0f} samples/s, "
            f"{found.speedup:.2f} times as fast as {self.leader} alone"
        )
        if found.pays:
            verdict = "the group continues"
        elif kept:
            verdict = f"the group continues, as the job demands {demanded}" if demanded > 1 else "slow members leave"
        else:
            verdict = f"less than {LEAST_SPEEDUP}, so {self.leader} continues alone"
        self.context.emit("group_measured", {
            "workers": len(ranks), "members": [*ranks], "speeds": [*speeds],
            "alone_samples_per_s": found.alone_samples_per_s, "group_samples_per_s": found.group_samples_per_s,
            "speedup": found.speedup, "kept": kept, "message": f"{faster}; {verdict}",
        })  # fmt: skip

    def read_measurement(self, payload: dict[str, JsonValue]) -> Measurement:
        """Return the measurement in a record; raises `ValidationError`."""
        return MEASUREMENT.validate_python(payload)

    def _containers(self, ranks: Sequence[str], reported: Mapping[str, MemberState]) -> dict[str, JsonValue]:
        """Return cores and memory of the containers, by rank; nothing where one of them is unknown."""
        own = self.resources.quota or float(self.resources.cores), self.resources.memory_bytes >> 20
        known = {self.leader: own, **{name: (one.cores, one.memory_mb) for name, one in reported.items()}}
        if not all(name in known for name in ranks):
            return {}
        return {"cores": [known[name][0] for name in ranks], "memory_mib": [known[name][1] for name in ranks]}


def _changed(ranks: Sequence[str], left: Sequence[str], joined: Sequence[str]) -> str:
    parts = [f"{', '.join(names)} {verb}" for names, verb in ((left, "left"), (joined, "joined")) if names]
    count = f"{len(ranks)} workers train" if len(ranks) > 1 else "its leader trains alone"
    return f"{'; '.join(parts)}; {count} from the last checkpoint"
