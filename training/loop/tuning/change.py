"""One change of a running plan."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting of the plan that changes, or that stays changed after a trial."""

    field: Literal["threads", "micro_batch"]
    before: int
    after: int
    reason: str
