"""Labels of a data set that look wrong, as a search for them has found them; a file next to the version's store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Index = npt.NDArray[np.int64]


class Issue(BaseModel):
    """A sample whose label looks wrong."""

    model_config = ConfigDict(frozen=True)

    sample: int
    """Its number in the version, as `preflight data relabel` takes it."""
    given: str
    suggested: str
    own: float
    """Probability of the class that it is given."""
    probability: float
    """Probability of the suggested class."""


class Issues(BaseModel):
    """Samples of a version whose labels look wrong, the most suspicious first."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    samples: int
    estimated: int
    """Rough number of labels that are wrong."""
    accuracy: float
    """Share of the given labels that the trainings would have given, too."""
    seconds: float
    at: str
    """Time when they were found, UTC."""
    issues: tuple[Issue, ...]


def rewrite_issues(before: Path, after: Path, numbers: Index, labels: Index, names: Sequence[str]) -> None:
    """Write the issues of a version whose samples have the new `numbers` and, by their old ones, `labels`.

    A sample that is gone, or has another class now, is no issue any more. A version without the file gets none.
    Raises `OSError`.
    """
    if not before.exists():
        return
    found = Issues.model_validate_json(before.read_bytes())
    left = tuple(
        issue.model_copy(update={"sample": int(numbers[issue.sample])})
        for issue in found.issues
        if numbers[issue.sample] >= 0 and names[labels[issue.sample]] == issue.given
    )
    settled = _other_class(found.issues) - _other_class(left)
    update = {
        "issues": left, "samples": int((numbers >= 0).sum()), "estimated": max(0, found.estimated - settled),
    }  # fmt: skip
    after.write_text(found.model_copy(update=update).model_dump_json())


def _other_class(issues: Sequence[Issue]) -> int:
    """Return how many of the issues suggest another class than the given one."""
    return sum(issue.suggested != issue.given for issue in issues)
