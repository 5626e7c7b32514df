"""The calibration child: measures a handful of plans, the user's own first, and records each improvement."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from calibration.candidates import knobs
from training.journal import JournalWriter
from training.plan import Plan
from training.process import StopFlag, run_child
from training.spec import TrainSpec

if TYPE_CHECKING:
    from calibration.measure import Contender
    from training.store import Store

MODULE = "calibration.child"


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class CalibrationRequest:
    """What the calibration child is asked to do."""

    spec: TrainSpec
    baseline: Plan
    """The user's own configuration."""
    threads: tuple[int, ...]
    samples: int
    """Steps measured of each plan."""
    seconds: float
    """After this long no further plan is begun; importing torch does not count."""
    store: Path


REQUEST = TypeAdapter(CalibrationRequest)


@dataclass(slots=True)
class Search:
    """The state of one calibration: what won so far, and what it was measured against."""

    request: CalibrationRequest
    store: "Store"
    journal: JournalWriter
    should_stop: StopFlag
    deadline: float
    best_epoch_s: float = float("inf")

    def over(self) -> bool:
        """Whether no further plan shall be begun."""
        return self.should_stop() or time.perf_counter() >= self.deadline

    def contender(self, plan: Plan) -> "Contender":
        """Return a new contender, its attempt recorded before it runs."""
        from calibration.measure import Contender

        self.journal.write("attempt", {"plan": asdict(plan)}, durable=True)
        return Contender(self.request.spec, plan, self.store)

    def record(self, contender: "Contender", ratio: float | None, *, won: bool, note: str = "") -> None:
        """Record a trial, and an improvement when it is one."""
        predicted = contender.predicted_epoch_s()
        trial: dict[str, JsonValue] = {
            "plan": asdict(contender.plan),
            "predicted_epoch_s": predicted,
            "step_s": contender.step_s,
            "samples_per_s": self.request.spec.batch_size / contender.step_s,
            "steps": len(contender.seconds),
            "ratio": ratio,
            "won": won,
            "note": note,
        }
        self.journal.write("trial", trial)
        if won and predicted < self.best_epoch_s:
            self.best_epoch_s = predicted
            self.journal.write("improve", trial, durable=True)


def calibrate(request: CalibrationRequest, journal: JournalWriter, should_stop: StopFlag) -> None:
    """Measure until the plans or the seconds run out; record start, attempt, trial, improve and done."""
    began = time.perf_counter()
    import torch

    from training.store import open_store

    torch.set_num_interop_threads(request.baseline.interop)
    journal.write("start", {"import_seconds": time.perf_counter() - began})
    deadline = time.perf_counter() + request.seconds
    _search(Search(request, open_store(request.store), journal, should_stop, deadline))
    journal.write("done", {}, durable=True)


def _search(search: Search) -> None:
    from training.step import tune_allocator

    own = search.contender(search.request.baseline)
    own.warm_up()
    own.measure(search.request.samples)
    search.record(own, None, won=True)
    if search.over():
        return
    best = own
    if own.plan.allocator == "default" and tune_allocator():
        # From here on every plan runs tuned, because the allocator cannot be untuned in this process.
        best = search.contender(replace(own.plan, allocator="tuned"))
        best.warm_up()
        best.measure(search.request.samples)
        gain = own.step_s / best.step_s
        search.record(best, gain, won=gain > 1)
    for knob in knobs(search.request.threads):
        for plan in knob(best.plan):
            if not search.over():
                best = _try(search, best, plan)
    _settle(search, best)


def _settle(search: Search, best: "Contender") -> None:
    """Predict from the winner running alone, as training will: in a race each one cools the other's caches."""
    if best.plan.allocator == "default":
        return  # measured alone already, before the allocator was tuned
    best.seconds.clear()
    best.warm_up()
    best.measure(search.request.samples)
    search.best_epoch_s = float("inf")
    search.record(best, None, won=True, note="alone")


def _try(search: Search, best: "Contender", plan: Plan) -> "Contender":
    """Race `plan` against the best one and return the winner."""
    from calibration.measure import gradients_agree, race

    challenger = search.contender(plan)
    if plan.precision != "float32" and not gradients_agree(
        search.request.spec, plan, replace(plan, precision="float32"), search.store
    ):
        search.journal.write("reject", {"plan": asdict(plan), "note": "its gradients differ from float32"})
        return best
    outcome = race(best, challenger, search.request.samples)
    note = "dropped early" if outcome.dropped else ""
    search.record(challenger, outcome.ratio, won=outcome.won, note=note)
    return challenger if outcome.won else best


if __name__ == "__main__":
    run_child(REQUEST, calibrate)
