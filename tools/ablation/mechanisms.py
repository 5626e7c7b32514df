"""The mechanisms of calibration that can be turned off, each with its replacement."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

from calibration.races.baseline import measure_baseline
from calibration.space import Space
from calibration.worth.expectation import Expected
from calibration.worth.priors import Prior

Change = tuple[str, object]
"""Dotted name, and its replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Something that a search does, and could do without."""

    what: str
    off: Sequence[Change] = ()
    stays: str = ""
    """Why it stays whatever it costs to turn it off; empty: that decides."""

    @contextmanager
    def turned_off(self) -> Iterator[None]:
        """Replace the parts that the mechanism consists of."""
        with ExitStack() as stack:
            for name, value in self.off:
                stack.enter_context(patch(name, value))
            yield


def _worth(*_: object) -> Expected:
    return Expected(1e9, 1.0, 1.0)


def _everywhere(space: Space, _free: int | None) -> Space:
    return space


def together(some: Collection[Mechanism]) -> Mechanism:
    """Return a mechanism that consists of these."""
    return Mechanism(what="all that go, at once", off=[change for one in some for change in one.off])


MECHANISMS: Final[Mapping[str, Mechanism]] = {
    "own plan after the default": Mechanism(
        what="the container's default is measured before a plan of other threads or precision",
        off=[("calibration.search.search.measure_own_plan", measure_baseline)],
    ),
    "table of chances": Mechanism(
        what="each kind of change has its probability and gain; without it all have the same",
        off=[("calibration.worth.expectation.prior_of", lambda _: Prior(0.5, 1.3))],
    ),
    "only what pays": Mechanism(
        what="a trial is made only where it is expected to save more than it costs",
        off=[("calibration.search.sweep.expect", _worth)],
    ),
    "spent without a gain": Mechanism(
        what="no more is spent than was gained, or than 3 % or 2 s",
        off=[("calibration.search.sweep.is_affordable", lambda *_: True)],
    ),
    "more pairs": Mechanism(
        what="a race that leaves a gain open goes on for as many pairs",
        off=[("calibration.races.racing.is_clear", lambda _: True)],
        stays="at 0.25 CPU, which no recording has, a training kept float32 without it",
    ),
    "slower plans are dropped": Mechanism(
        what="a race ends early where the plan is clearly slower",
        off=[("calibration.races.racing.DROP_BELOW", 0.0)],
    ),
    "disturbed pairs again": Mechanism(
        what="a pair beside which something else ran is measured again", off=[("calibration.races.racing.AGAIN", 0)],
        stays="the neighbours of the recordings never leave",
    ),
    "parts of batches": Mechanism(
        what="plans are compared on parts of a batch whose step is slow",
        off=[("calibration.races.baseline.SLOW", 1e9)],
    ),
    "fresh process": Mechanism(
        what="a long training's winner is confirmed in a fresh process where races prove it already",
        off=[("calibration.acceptance.decision.needs_fresh_process", lambda *_: False),
             ("calibration.worth.expectation.needs_fresh_process", lambda *_: False)],
        stays="in the recordings a fresh process is as fast as the one before",
    ),
    "races alone": Mechanism(
        what="a short training's winner is accepted by its races, without a fresh process",
        off=[("calibration.acceptance.decision.needs_fresh_process", lambda *_: True),
             ("calibration.worth.expectation.needs_fresh_process", lambda *_: True)],
    ),
    "neighbours seen": Mechanism(
        what="the first probe tells how many processors others leave, and the search begins with so many threads",
        off=[("calibration.space.Space.beside_others", _everywhere)],
    ),
    "threads first beside others": Mechanism(
        what="where something else ran during the first measurement, threads are decided first",
        off=[("calibration.search.sweep._first_knobs", lambda *_: [])],
        stays="the neighbours of the recordings are seen by the first probe",
    ),
    "final measurement": Mechanism(
        what="the plan that stays is timed by itself, for the prediction",
        off=[("calibration.search.search.final_measurement", lambda *_: None)], stays="it serves the prediction",
    ),
}  # fmt: skip
