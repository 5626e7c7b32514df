"""Winning plans on disk, one small JSON file per signature. A damaged or stale file is a miss, never an error."""

import time
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from calibration.signature import Signature
from training.files import write_atomically
from training.plan import Plan
from training.spec import STRICT

SCHEMA: Final = "preflight.plan.v1"
TTL_SECONDS: Final = 7 * 86_400.0
"""A week: long enough to serve a series of jobs, short enough to notice a host that changed unseen."""
LOW_CONFIDENCE_TTL: Final = 3_600.0
"""An hour, for a search that its deadline cut short: the machine was busy, or the workload large."""
CLOCK_TOLERANCE: Final = 300.0
"""Seconds an entry may lie in the future, for clocks that differ between containers on one volume."""


Confidence = Literal["high", "low"]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CachedPlan:
    """A plan that won here, and what was measured."""

    schema: str
    signature: str
    created: float
    """Seconds since the epoch."""
    plan: Plan
    predicted_epoch_s: float
    confidence: Confidence


ENTRY = TypeAdapter(CachedPlan)


class PlanCache:
    """The plans kept beneath one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, signature: Signature) -> tuple[CachedPlan | None, str | None]:
        """Return the entry for `signature`, or None; and a warning where a file had to be passed over."""
        path = self._path(signature)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, f"the plan cache {path} cannot be read ({error.strerror}); measuring anew"
        try:
            entry = ENTRY.validate_json(data)
        except ValidationError:
            return None, f"the plan cache {path} is damaged or of another version; measuring anew"
        if entry.schema != SCHEMA or entry.signature != signature.key:
            return None, f"the plan cache {path} belongs to another schema or signature; measuring anew"
        age = time.time() - entry.created
        if age < -CLOCK_TOLERANCE:
            return None, f"the plan cache {path} is {-age:.0f} s from the future; measuring anew"
        lasts = TTL_SECONDS if entry.confidence == "high" else LOW_CONFIDENCE_TTL
        return (entry, None) if age <= lasts else (None, None)

    def put(self, signature: Signature, plan: Plan, predicted_epoch_s: float, confidence: Confidence) -> str | None:
        """Keep a measured plan; returns a warning when the directory cannot be written."""
        entry = CachedPlan(
            schema=SCHEMA, signature=signature.key, created=time.time(),
            plan=plan, predicted_epoch_s=predicted_epoch_s, confidence=confidence,
        )  # fmt: skip
        path = self._path(signature)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, ENTRY.dump_json(entry, indent=2))
        except OSError as error:
            return f"the plan could not be kept in {path}: {error.strerror}; the next job will measure again"
        return None

    def _path(self, signature: Signature) -> Path:
        return self._directory / "plans" / f"{signature.key}.json"
