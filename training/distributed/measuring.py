"""Measurement of the group: real steps with real exchange of gradients, compared with those of the leader alone.

They are steps of a scratch model: the training begins with its own weights and random state.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import torch
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked
from torch._C._distributed_c10d import Store

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import RecordWriter
from training.data.batches import Batches
from training.data.dataset_store import PreparedDataset
from training.distributed.ranks import Ranks
from training.group import ALONE, Group, Wire
from training.prediction import Prediction
from training.step.train_step import TrainStep

MEASURE_SECONDS: Final = 0.5
"""Seconds for which steps are timed, each way."""
LEAST_STEPS, MOST_STEPS = 3, 50
WARM_UP: Final = 2
"""Steps that do not count; in the second one DistributedDataParallel sorts its buckets."""
NARROW_GAIN: Final = 1.03
"""Ratio by which bfloat16 between ranks has to be quicker to be chosen: it rounds gradients to 8 bits."""
KEY: Final = "measured"


@checked(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measurement of an attempt; later rounds without a new name use it."""

    names: tuple[str, ...]
    wire: Wire
    factor: float = Field(gt=0)
    """Seconds of a step of the group, divided by those of a step of the leader alone."""


MEASUREMENT: Final = TypeAdapter(Measurement | None)


@dataclass(slots=True, kw_only=True)
class MeasuredRanks(Ranks):
    """Ranks that measure whether and how they train together."""

    measures: bool
    """Whether to measure; the same for all ranks."""
    wanted: Wire | None
    """Precision of gradients between ranks; None: the one that is measured to be quicker."""
    memory: Store
    """Store of the attempt, which outlasts a round."""

    def measure(
        self, spec: TrainSpec, plan: Plan, data: PreparedDataset, prediction: Prediction | None, report: RecordWriter
    ) -> Prediction | None:
        """Choose the precision between ranks, and return the prediction of the group; records `group_measured`."""
        self.wire = self.wanted or "float32"
        if not self.measures or self.size == 1:
            return prediction
        found = MEASUREMENT.validate_json(self.tell(MEASUREMENT.dump_json(self._remembered())))
        if found is None:
            found = self._measure(spec, plan, data, report)
        self.wire = found.wire
        return prediction.scaled(found.factor) if prediction else None

    def _remembered(self) -> Measurement | None:
        """Return the measurement of an earlier round in which all of these took part; on the leader."""
        if not (self.leads and self.memory.check([KEY])):
            return None
        found = MEASUREMENT.validate_json(self.memory.get(KEY))
        return found if found and {*self.names} <= {*found.names} else None

    def _measure(self, spec: TrainSpec, plan: Plan, data: PreparedDataset, report: RecordWriter) -> Measurement:
        plan = replace(plan, loader_workers=0, prefetch_factor=None)
        part: Group = ALONE if self.leads else self
        samples = len(part.share_of(torch.empty(self.batch_size)))
        alone_s = time_steps(_steps(spec, plan, data, part, ALONE), LEAST_STEPS, MEASURE_SECONDS)
        speeds = dict(zip(self.names, self.gather(samples / alone_s), strict=True))
        leader_s = self.batch_size / speeds[self.names[0]]
        count = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(MEASURE_SECONDS / leader_s)))
        seconds: dict[Wire, float] = {}
        for wire in self._wires(spec):
            self.wire = wire
            seconds[wire] = self.gather(time_steps(_steps(spec, plan, data, self, self), count, 0.0))[0]
        wire = quicker(seconds)
        found = Measurement(names=(*self.names,), wire=wire, factor=seconds[wire] / leader_s)
        if self.leads:
            self.memory.set(KEY, MEASUREMENT.dump_json(found).decode())
            report.write("group_measured", {
                "alone_samples_per_s": self.batch_size / leader_s,
                "group_samples_per_s": self.batch_size / seconds[wire],
                "speedup": leader_s / seconds[wire], "wire": wire, "speeds": {**speeds},
                "slow": [*slow_members(speeds, self.names[0])],
            })  # fmt: skip
        return found

    def _wires(self, spec: TrainSpec) -> tuple[Wire, ...]:
        """Return the precisions to try: a deterministic training must not depend on what was quicker today."""
        return ("float32", "bfloat16") if self.wanted is None and not spec.deterministic else (self.wire,)


def quicker(seconds: Mapping[Wire, float]) -> Wire:
    """Return the precision to take, for the seconds of a step with each that was tried."""
    plain, narrow = seconds.get("float32"), seconds.get("bfloat16")
    if plain is None or narrow is None:
        return "bfloat16" if plain is None else "float32"
    return "bfloat16" if narrow * NARROW_GAIN < plain else "float32"


def _steps(spec: TrainSpec, plan: Plan, data: PreparedDataset, part: Group, together: Group) -> Iterator[TrainStep]:
    """Train a model that is thrown away on the share that `part` has of each batch, as a rank of `together`."""
    step = TrainStep(spec, plan, data.info.shape, data.info.classes)
    step.join(together)
    batches = Batches(data, spec, plan, part)
    for images, labels in chain.from_iterable(batches.of(epoch) for epoch in itertools.count()):
        step.run(images, labels, step.rate(0, 2, 2))
        yield step


def time_steps(steps: Iterator[TrainStep], least: int, seconds: float) -> float:
    """Return the mean seconds of `least` steps or more, until `seconds` are over; they are warm."""
    for _ in range(WARM_UP):
        next(steps)
    began = time.perf_counter()
    for done in itertools.count(1):
        next(steps)
        spent = time.perf_counter() - began
        if done >= least and spent >= seconds:
            return spent / done
    raise AssertionError("count() does not end")


def slow_members(speeds: Mapping[str, float], leader: str) -> list[str]:
    """Return the members without whom the others would be faster, the slowest first.

    Each rank has an equal share of a batch, so that k ranks are as fast as k times the slowest of them.

    Args:
        speeds: samples/s of each rank alone, by name.
        leader: name of the leader, which stays in any case.
    """
    members = sorted((name for name in speeds if name != leader), key=lambda name: speeds[name], reverse=True)
    kept = max(
        range(len(members) + 1),
        key=lambda count: (count + 1) * min(speeds[name] for name in (leader, *members[:count])),
    )
    return members[kept:][::-1]
