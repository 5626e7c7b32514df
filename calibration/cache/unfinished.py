"""Unfinished searches: those that a training was too short for, with what it takes to go on while no job waits.

One small JSON file per signature, beside its plan. A file that is damaged, of another version or too old goes; one that
cannot be written is none: idle time is no condition for anything.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from calibration.cache.plan_cache import CLOCK_TOLERANCE, TRIALS, TTL_SECONDS, UNFINISHED
from calibration.cache.signature import Signature
from calibration.cache.trial_log import end_attempts
from calibration.result import Bytes, CalibrationResult, Seconds
from preflight.contract.plan import Plan
from preflight.contract.spec import STRICT, TrainSpec
from preflight.contract.verdicts import Knob
from preflight.files.atomic_files import read_text, write_atomically

SCHEMA: Final = "preflight.unfinished.v1"
MAX_SEARCHES: Final = 32
"""Kept at once; the oldest go first."""
MAX_TRIES: Final = 3
"""Searches that end without an undisturbed finding, or die, before the workload is left alone."""
MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class UnfinishedSearch:
    """A workload whose plan may be improved, and what its job asked of the calibration."""

    schema: str
    key: str
    """Of the finding."""
    trials_key: str
    created: float
    """Seconds since the epoch."""
    spec: TrainSpec
    own: Plan
    store: Path
    """The prepared data set."""
    samples: int | None
    """As in `calibration.task.Options`, like the two below."""
    seconds: Seconds
    knobs: tuple[Knob, ...] | None
    peak_bytes: Bytes
    """Most memory that a measuring process has taken so far."""
    tries: Annotated[int, Field(ge=0)] = 0
    """Begun, and not excused."""

    @property
    def workload(self) -> str:
        """For a person."""
        return f"{self.spec.model} on {self.spec.dataset}"


SEARCH = TypeAdapter(UnfinishedSearch)


def is_cut_short(finding: CalibrationResult) -> bool:
    """Whether plans were left out for the time that they take, or the figures are in doubt."""
    return finding.confidence == "low" or finding.cut_short or finding.searched_epochs is not None


class UnfinishedSearches:
    """The unfinished searches beneath the directory of the plan cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._directory = cache / UNFINISHED[0]

    def add(self, search: UnfinishedSearch) -> None:
        """Keep a search; the oldest beyond `MAX_SEARCHES` go."""
        with suppress(OSError):
            self._write(search)
        for old in self.waiting()[MAX_SEARCHES:]:
            self.remove(old)

    def waiting(self) -> Sequence[UnfinishedSearch]:
        """Return the searches that may go on here, the newest workload first; what cannot serve is deleted."""
        try:
            names = [path for path in self._directory.iterdir() if path.suffix == UNFINISHED[1]]
        except OSError:
            return []
        found = [search for path in names if (search := _read(path)) is not None]
        return sorted(found, key=lambda search: -search.created)

    def begin(self, search: UnfinishedSearch) -> None:
        """Count a try, on disk before this returns, so that nothing is tried for ever; raises `OSError`."""
        self._write(replace(search, tries=search.tries + 1))

    def excuse(self, search: UnfinishedSearch) -> None:
        """Take back the try that began with `search`, as its process was killed for a reason of its own."""
        if self._path(search).exists():
            with suppress(OSError):
                self._write(search)

    def end_attempts(self, search: UnfinishedSearch) -> None:
        """Have later searches not take the plan that was being measured for one that kills."""
        end_attempts(self._cache / TRIALS[0] / f"{search.trials_key}{TRIALS[1]}")

    def remove(self, search: UnfinishedSearch) -> None:
        """Forget a search."""
        with suppress(OSError):
            self._path(search).unlink(missing_ok=True)

    def _write(self, search: UnfinishedSearch) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(search), SEARCH.dump_json(search))

    def _path(self, search: UnfinishedSearch) -> Path:
        return self._directory / f"{search.key}{UNFINISHED[1]}"


def unfinished(
    key: Signature, spec: TrainSpec, own: Plan, store: Path, finding: CalibrationResult, *,
    samples: int | None, seconds: float, knobs: tuple[Knob, ...] | None,
) -> UnfinishedSearch:  # fmt: skip
    """Return what it takes to go on with the search that led to `finding`."""
    peaks = [trial.peak_bytes or 0 for trial in finding.trials]
    return UnfinishedSearch(
        schema=SCHEMA, key=key.key, trials_key=key.trials_key, created=time.time(), spec=spec, own=own, store=store,
        samples=samples, seconds=seconds, knobs=knobs, peak_bytes=max(peaks, default=0),
    )  # fmt: skip


def _read(path: Path) -> UnfinishedSearch | None:
    """Return the search in `path`; delete a file that can serve no more."""
    try:
        search = SEARCH.validate_json(read_text(path, MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        search = None
    if search is None or search.schema != SCHEMA or search.key != path.stem or not _is_current(search):
        with suppress(OSError):
            path.unlink()
        return None
    return search


def _is_current(search: UnfinishedSearch) -> bool:
    age_s = time.time() - search.created
    return search.tries < MAX_TRIES and -CLOCK_TOLERANCE <= age_s <= TTL_SECONDS
