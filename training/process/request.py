"""Child request: the file that a child process reads at its start."""

from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ChildRequest:
    """Request to a child."""

    task: str
    """Name of the process in ps and top, of which the kernel keeps 15 characters."""
    run: str
    journal: Path
    body: str
    """Request of the task, as JSON."""
    procs: Path | None = None
    """`cgroup.procs` of the cgroup that the child joins."""


CHILD_REQUEST = TypeAdapter(ChildRequest)
