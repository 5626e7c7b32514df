"""Log of the trials of one workload in one container, written to disk as they happen: each attempt before it runs.

An attempt that killed an earlier calibration is not repeated, even where the whole container was killed, and what was
measured is not measured again. A log that cannot be read or written counts as empty: it saves time and kills, and
nothing depends on it.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from calibration.cache.plan_cache import CLOCK_TOLERANCE, TTL_SECONDS
from calibration.result import Trial
from preflight.contract.plan import Plan
from preflight.contract.spec import STRICT
from preflight.contract.verdicts import ADOPTED
from preflight.files.atomic_files import read_text
from preflight.files.journal import JournalWriter, Record, decode

MAX_BYTES: Final = 4 << 20
"""Most bytes of the file; a larger one is deleted."""
DECIDED: Final = (*ADOPTED, "level", "lost", "dropped", "rejected")
"""Verdicts that stand when the same two plans meet again."""

PLAN = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Raced:
    """A trial and the plan that was best before it."""

    trial: Trial
    best: Plan


RACED = TypeAdapter(Raced)


class TrialLog:
    """Trials of earlier calibrations and of this one, which ends with the context."""

    def __init__(self, path: Path, *, reuse: bool = True, least_steps: int = 0) -> None:
        """Read and continue the file at `path`.

        Without `reuse`, earlier trials are measured again; else those of fewer than `least_steps` steps.
        """
        self._reuse = reuse
        self._least_steps = least_steps
        self._suspects: set[Plan] = set()
        self._raced: dict[tuple[Plan, Plan], Trial] = {}
        self._writer: JournalWriter | None = None
        self._read(path)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = JournalWriter(path, f"{os.getpid()}-{time.time_ns()}")
            self._writer.write("begin", {})

    def crashed_before(self, plan: Plan) -> bool:
        """Whether an earlier calibration began this plan and did not end it."""
        return plan in self._suspects

    def lookup(self, best: Plan, plan: Plan) -> Trial | None:
        """Return the trial of the plan against the best one, where that was decided undisturbed."""
        known = self._raced.get((best, plan)) if self._reuse else None
        return known if known is not None and known.steps >= self._least_steps else None

    def attempt(self, plan: Plan) -> None:
        """Note that the plan is about to run; on disk before this returns."""
        self._write("attempt", {"plan": asdict(plan)}, durable=True)

    def mark_ok(self, plan: Plan) -> None:
        """Note that the plan ran, or that its process alone was lost."""
        self._write("survived", {"plan": asdict(plan)})

    def record(self, trial: Trial, best: Plan | None) -> None:
        """Record the trial of a plan."""
        self.mark_ok(trial.plan)
        if best is not None and trial.verdict in DECIDED and not trial.disturbed:
            self._write("trial", RACED.dump_python(Raced(trial=trial, best=best), mode="json"))

    def _write(self, kind: str, payload: dict[str, object], *, durable: bool = False) -> None:
        if self._writer is not None:
            with suppress(OSError):  # the disk is full: continue without a log
                self._writer.write(kind, json.loads(json.dumps(payload)), durable=durable)

    def _read(self, path: Path) -> None:
        try:
            lines = read_text(path, MAX_BYTES).split(b"\n")
        except (OSError, ValueError):
            with suppress(OSError):
                path.unlink()
            return
        oldest, newest = time.time() - TTL_SECONDS, time.time() + CLOCK_TOLERANCE
        pending: set[Plan] = set()
        for line in lines:
            record = decode(line, None)
            if record is None or not oldest <= record.time <= newest:
                continue
            with suppress(ValidationError):
                self._take(record, pending)
        self._suspects |= pending

    def _take(self, record: Record, pending: set[Plan]) -> None:
        match record.kind:
            case "attempt":
                pending.add(_plan(record))
            case "survived":  # or was run again, despite the suspicion
                pending.discard(_plan(record))
                self._suspects.discard(_plan(record))
            case "trial":
                lookup = RACED.validate_json(json.dumps(record.payload))
                self._raced[lookup.best, lookup.trial.plan] = lookup.trial
            case "begin":  # the calibration before did not end properly
                self._suspects |= pending
                pending.clear()
            case "end":
                pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("end", {})  # after an exception, too: this process lives, so no attempt killed it
        if self._writer is not None:
            self._writer.close()


def _plan(record: Record) -> Plan:
    return PLAN.validate_json(json.dumps(record.payload.get("plan")))
