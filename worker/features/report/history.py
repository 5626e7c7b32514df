"""History of an attempt for its report: the training loss, and the group of workers that trained."""

from collections.abc import Sequence
from typing import Final

from preflight.numbers import plural
from preflight.wire import AnyEvent, GroupEvent, GroupFormed, GroupMeasured, Progress, TrainResult
from worker.features.report.request import Group

MAX_POINTS: Final = 512
"""Points of the training loss; a plot has no room for more."""


class History:
    """Sink that keeps the training loss by window, thinned to fewer than `MAX_POINTS`, and the events of a group."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._every = 1
        self._seen = 0
        self._group: list[GroupEvent] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - the signature of sinks
        """Keep what the report shows of the event."""
        if isinstance(event, Progress):
            self.add_loss(event.epoch - 1 + event.step / event.steps, event.loss)
        elif isinstance(event, GroupEvent):
            self._group.append(event)

    def add_loss(self, at: float, loss: float) -> None:
        """Add the loss after `at` epochs; after a resume it replaces the points behind the checkpoint."""
        while self.points and self.points[-1][0] >= at:
            self.points.pop()
        self._seen += 1
        if self._seen % self._every == 0:
            self.points.append((at, loss))
        if len(self.points) == MAX_POINTS:
            self.points, self._every = self.points[1::2], 2 * self._every

    def group(self) -> Group | None:
        """Return the workers that trained together; None: one trained alone."""
        return group_of(self._group)


def _cores(count: float) -> str:
    return plural(int(count), "core") if count.is_integer() else f"{count:g} cores"


def group_of(events: Sequence[GroupEvent]) -> Group | None:
    """Return the group that the events of an attempt describe; None where there was none."""
    containers: dict[str, str] = {}
    speeds: dict[str, str] = {}
    for event in events:
        match event:
            case GroupFormed():
                sizes = zip(event.members, event.cores, event.memory_mib, strict=False)
                containers |= {name: f"{_cores(cores)}, {memory:,} MiB" for name, cores, memory in sizes}
            case GroupMeasured():
                speeds |= {name: f"{speed:,.0f}" for name, speed in zip(event.members, event.speeds, strict=False)}
    names = dict.fromkeys(name for event in events for name in event.members)
    if not names:
        return None
    return Group(
        workers=next((event.workers for event in reversed(events) if not isinstance(event, GroupMeasured)), 1),
        members=tuple((name, containers.get(name, ""), speeds.get(name, "")) for name in names),
        history=tuple(event.message for event in events),
    )
