"""The calibration child: measures a handful of plans, the user's own first, and records each improvement."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
SHARE: Final = 0.05
"""Share of the predicted training time that a calibration may take."""
LEAST_SECONDS: Final = 5.0
"""Even a short training gets this much: the plan is kept for those that follow."""
PROVISIONAL_SECONDS: Final = 10.0
"""Budget that the user's own plan gets its slice of, before anything is known."""
SLICE: Final = 1 / 12
"""Share of the budget for warming up, and again for measuring, one plan; about six plans are tried."""
LEAST_STEPS: Final = 2
"""Steps measured of a plan however slow it is; fewer say nothing of noise."""


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
    """The state of one calibration: what won so far, and how long it may go on."""

    request: CalibrationRequest
    store: "Store"
    journal: JournalWriter
    should_stop: Callable[[], bool]
    began: float
    budget: float
    """Seconds; provisional until the own plan has shown how long the training takes."""
    best_epoch_s: float = math.inf
    """Prediction of the last improvement."""
    complete: bool = True
    """Whether every plan that was worth a measurement got one."""

    def over(self) -> bool:
        """Whether no further plan shall be begun."""
        if self.should_stop() or time.perf_counter() - self.began >= self.budget:
            self.complete = False
        return not self.complete

    def tighten(self, epoch_s: float) -> None:
        """Fit the budget to the training: a share of it, within bounds."""
        share = SHARE * self.request.spec.epochs * epoch_s
        self.budget = min(self.request.seconds, max(LEAST_SECONDS, share))

    def measure(self, contender: "Contender") -> None:
        """Warm a contender up and measure it alone, within its slice of the budget."""
        contender.warm_up(self.budget * SLICE)
        contender.measure(self.steps(contender))

    def steps(self, contender: "Contender") -> int:
        """Return how many steps of this contender fit into a slice of the budget."""
        return max(
            min(LEAST_STEPS, self.request.samples),
            min(self.request.samples, int(self.budget * SLICE / contender.step_s)),
        )

    def contender(self, plan: Plan) -> "Contender":
        """Return a new contender, its attempt recorded before it runs."""
        from calibration.measure import Contender

        self.journal.write("attempt", {"plan": asdict(plan)}, durable=True)
        return Contender(self.request.spec, plan, self.store)

    def record(self, contender: "Contender", ratio: float | None, *, won: bool, note: str = "") -> None:
        """Record a trial, and that it is the best so far when it won and is faster than the last such."""
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

    from training.step import tune_allocator
    from training.store import open_store

    torch.set_num_interop_threads(request.baseline.interop)
    if request.baseline.allocator == "tuned":
        tune_allocator()
    ready = time.perf_counter()
    journal.write("start", {"import_seconds": ready - began})
    budget = min(request.seconds, PROVISIONAL_SECONDS)
    search = Search(request, open_store(request.store), journal, should_stop, ready, budget)
    _search(search)
    journal.write("done", {"complete": search.complete}, durable=True)


def _search(search: Search) -> None:
    own = search.contender(search.request.baseline)
    search.measure(own)
    search.record(own, None, won=True)
    search.tighten(own.predicted_epoch_s())
    best = _tuned(search, own)
    for knob in knobs(search.request.threads):
        for plan in knob(best.plan):
            if search.over():
                break
            best = _try(search, best, plan)
    if best is not own:
        _settle(search, own, best)


def _tuned(search: Search, own: "Contender") -> "Contender":
    """Tune the allocator; from here on every plan runs so, because it cannot be untuned in this process."""
    from training.step import tune_allocator

    if search.over() or own.plan.allocator == "tuned" or not tune_allocator():
        return own
    tuned = search.contender(replace(own.plan, allocator="tuned"))
    search.measure(tuned)
    gain = own.step_s / tuned.step_s
    search.record(tuned, gain, won=gain > 1)
    return tuned


def _try(search: Search, best: "Contender", plan: Plan) -> "Contender":
    """Race `plan` against the best one and return the winner."""
    from calibration.measure import gradients_agree, race

    challenger = search.contender(plan)
    if plan.precision != best.plan.precision and not gradients_agree(best, plan):
        message = f"{plan.precision} is passed over: its gradients differ from those of {best.plan.precision}"
        search.journal.write("reject", {"plan": asdict(plan), "message": message})
        return best
    challenger.warm_up(search.budget * SLICE)
    outcome = race(best, challenger, search.steps(best))
    note = "dropped early" if outcome.dropped else ""
    search.record(challenger, outcome.ratio, won=outcome.won, note=note)
    return challenger if outcome.won else best


def _settle(search: Search, own: "Contender", best: "Contender") -> None:
    """Predict from the winner running alone, as training will: in a race each cools the other's caches.

    Should it not beat the user's own plan even so, that plan stays.
    """
    best.seconds.clear()
    search.measure(best)
    search.best_epoch_s = math.inf  # those of the races give way to what ran alone
    faster = best.predicted_epoch_s() < own.predicted_epoch_s()
    search.record(best, own.predicted_epoch_s() / best.predicted_epoch_s(), won=faster, note="alone")
    if not faster:
        search.record(own, None, won=True, note="no plan was faster")


if __name__ == "__main__":
    run_child(REQUEST, calibrate)
