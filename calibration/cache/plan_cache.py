"""Findings on disk, one small JSON file per signature. A damaged or stale file is a miss, never an error."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from calibration.cache.gauge_history import MACHINES, add_gauge, read_gauges, unsteadiness
from calibration.cache.signature import Signature, processor_label
from calibration.result import CalibrationResult
from preflight.contract.removed import is_removed_knob
from preflight.contract.spec import STRICT
from preflight.files.atomic_files import read_text, write_atomically

SCHEMA: Final = "preflight.plan.v2"
TTL_SECONDS: Final = 7 * 86_400.0
"""A week: long enough to serve a series of jobs, short enough to notice a host that changed unseen."""
LOW_CONFIDENCE_TTL: Final = 3_600.0
"""An hour, for a search that was cut short or disturbed: the machine was busy, or the workload large."""
CLOCK_TOLERANCE: Final = 300.0
"""Seconds an entry may lie in the future, for clocks that differ between containers on one volume."""
LARGEST_ENTRY: Final = 1 << 20
"""Most bytes of an entry; no finding comes near it."""
PLANS: Final = ("plans", ".json")
"""Folder of the entries in the cache's directory, and the ending of their names after the key."""
TRIALS: Final = ("trials", ".jsonl")
"""The same for single measurements, which a search keeps whether or not it comes to its end."""
UNFINISHED: Final = ("unfinished", ".json")
"""The same for the notes of versions up to 0.25.1 for idle time; they are deleted with the rest, and not read."""
KINDS: Final = (PLANS, TRIALS, UNFINISHED)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CachedPlan:
    """A plan that won here, and everything that led to it."""

    schema: str
    signature: str
    created: float
    """Time when it was found, in seconds since the Unix epoch."""
    what: dict[str, JsonValue]
    """Facts for a person who lists the cache: data set, model, effective batch, cores, memory in MiB, processor."""
    finding: CalibrationResult

    @property
    def age_s(self) -> float:
        """Seconds since it was found; negative where its clock was ahead of this one."""
        return time.time() - self.created

    @property
    def lasts_s(self) -> float:
        """Seconds for which the plan may be reused."""
        return TTL_SECONDS if self.finding.confidence == "high" else LOW_CONFIDENCE_TTL

    @property
    def expired(self) -> bool:
        """Whether the plan is too old to be reused."""
        return self.age_s > self.lasts_s


ENTRY = TypeAdapter(CachedPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One file of the cache."""

    key: str
    path: Path
    plan: CachedPlan | None
    """Entry of the file; None where it cannot serve: damaged, from the future, or of another version."""
    fault: str | None
    """Reason why the plan cannot serve; None for one that can, unless it has expired."""


class _Unfit(Exception):
    """An unusable entry; the message continues the name of its file."""


class PlanCache:
    """The findings kept beneath one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, signature: Signature) -> tuple[CachedPlan | None, str | None]:
        """Return the entry for `signature`, or None; and a warning where a file had to be passed over."""
        path = self._path(PLANS, signature.key)
        try:
            entry = _read(path, signature.key)
        except FileNotFoundError:
            return None, None
        except _Unfit as error:
            return None, f"the plan cache {path} {error}; measuring again"
        return (None, None) if entry.expired else (entry, None)

    def put(self, signature: Signature, finding: CalibrationResult) -> str | None:
        """Keep the finding and the machine's speed; return a warning when the directory cannot be written."""
        entry = CachedPlan(
            schema=SCHEMA, signature=signature.key, created=time.time(), what=_what(signature), finding=finding
        )
        path, gauge_s = self._path(PLANS, signature.key), finding.prediction.gauge_s
        if gauge_s:
            add_gauge(self._path(MACHINES, signature.machine_key), finding.plan.threads, gauge_s)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, ENTRY.dump_json(entry, indent=2))
        except OSError as error:
            return f"the plan could not be kept in {path}: {error.strerror}; the next job will measure again"
        return None

    def unsteadiness(self, signature: Signature) -> float:
        """Return the standard deviation of the logarithm of this machine's speed, from earlier calibrations."""
        return unsteadiness(read_gauges(self._path(MACHINES, signature.machine_key)))

    def trial_log(self, signature: Signature) -> Path:
        """Return where the single measurements for `signature` are kept (calibration/cache/trial_log.py)."""
        return self._path(TRIALS, signature.trials_key)

    def entries(self) -> list[Listed]:
        """Return the entries, the newest first, unusable ones last; raises `OSError` for the directory."""
        listed = [_listed(key, path) for key, path in self._files(PLANS)]
        return sorted(listed, key=lambda entry: (entry.plan is None, entry.plan.age_s if entry.plan else 0, entry.key))

    def keys(self) -> list[str]:
        """Return the keys under which anything is kept, in order; raises `OSError` for the directory."""
        return sorted({key for kind in KINDS for key, _ in self._files(kind)})

    def clear(self, key: str | None = None) -> int:
        """Delete everything, or the files under keys that begin with `key`.

        Single measurements have separate keys, as several plans may rest on them.

        Returns:
            Number of keys that were deleted.

        Raises:
            OSError: something cannot be deleted.
        """
        gone = set()
        for kind in KINDS:
            for name, path in self._files(kind):
                if name.startswith(key or ""):
                    path.unlink(missing_ok=True)
                    gone.add(name)
        return len(gone)

    def _files(self, kind: tuple[str, str]) -> Iterator[tuple[str, Path]]:
        folder, suffix = kind
        try:
            paths = sorted((self.directory / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        # A name that begins with a dot is a file that is being written.
        yield from ((path.stem, path) for path in paths if path.suffix == suffix and not path.name.startswith("."))

    def _path(self, kind: tuple[str, str], key: str) -> Path:
        folder, suffix = kind
        return self.directory / folder / f"{key}{suffix}"


def _read(path: Path, key: str) -> CachedPlan:
    """Return the entry in `path`; raises `FileNotFoundError` where there is none, and `_Unfit`."""
    try:
        data = read_text(path, LARGEST_ENTRY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _Unfit(f"cannot be read ({error.strerror or error})") from error
    try:
        entry = ENTRY.validate_json(_without_removed_trials(data))
    except (ValueError, RecursionError) as error:
        raise _Unfit("is damaged or of another version") from error
    if entry.schema != SCHEMA or entry.signature != key:
        raise _Unfit("belongs to another schema or signature")
    if entry.age_s < -CLOCK_TOLERANCE:
        raise _Unfit(f"is {-entry.age_s:.0f} s from the future")
    return entry


def _without_removed_trials(data: bytes) -> str | bytes:
    """Return the JSON of an entry without trials of knobs that are gone."""
    match entry := json.loads(data):
        case {"finding": {"trials": list(trials)} as finding}:
            left = [trial for trial in trials if not (isinstance(trial, dict) and is_removed_knob(trial.get("knob")))]
            return json.dumps({**entry, "finding": {**finding, "trials": left}})
    return data


def _listed(key: str, path: Path) -> Listed:
    try:
        return Listed(key=key, path=path, plan=_read(path, key), fault=None)
    except FileNotFoundError:
        return Listed(key=key, path=path, plan=None, fault="has just been deleted")
    except _Unfit as error:
        return Listed(key=key, path=path, plan=None, fault=str(error))


def _what(signature: Signature) -> dict[str, JsonValue]:
    """Return the facts by which a person recognizes a signature."""
    facts = {name: signature.workload.get(name) for name in ("dataset", "model", "batch_size")}
    memory = signature.limits.get("memory_bytes")
    return {
        **facts, "cores": signature.limits.get("cores"), "memory_mb": memory >> 20 if isinstance(memory, int) else None,
        "processor": processor_label(signature),
    }  # fmt: skip
