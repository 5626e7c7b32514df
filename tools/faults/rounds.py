"""Verdicts on rounds, each a line of JSON as soon as it has ended: a thousand rounds can be made in pieces."""

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from preflight.redis.server.embedded import executable
from tools.faults.jobs import Verdict

CPU_INFO: Final = Path("/proc/cpuinfo")
Company = tuple[int, int]
ALONE: Final[Company] = (0, 1)
"""No busy process, one job at a time."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round: with the same seed, fault and number it throws the same dice."""

    service: str
    version: str
    """Version of the service: this one's, or RQ's."""
    seed: int
    fault: str
    number: int
    """Number of rounds of this fault before it."""
    neighbours: int = 0
    """Busy processes on the same processors."""
    jobs: int = 1
    """Jobs that a worker runs at a time when a fault strikes one of them."""

    @property
    def company(self) -> Company:
        """Busy processes on the same processors, and jobs at a time."""
        return self.neighbours, self.jobs


@dataclass(frozen=True, slots=True)
class Ended:
    """A round that has ended."""

    round: Round
    verdict: Verdict
    seconds: float
    at: str
    """Day on which it ended."""
    machine: str


ENDED = TypeAdapter(Ended)


def read(path: Path) -> list[Ended]:
    """Return the rounds in a file; a line that was cut off is passed over."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(ValidationError):
            found.append(ENDED.validate_json(line))
    return found


def append(path: Path, ended: Ended) -> None:
    """Add a round to a file, behind a whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("ab") as file:
        file.write((b"\n" if torn else b"") + ENDED.dump_json(ended, exclude_defaults=True) + b"\n")


def outstanding(wanted: Sequence[Round], ended: Iterable[Ended]) -> list[Round]:
    """Return the rounds that have not ended yet."""
    over = {one.round for one in ended}
    return [one for one in wanted if one not in over]


def of_run(ended: Sequence[Ended], seed: int, version: str, company: Company = ALONE) -> list[Ended]:
    """Return the rounds of a seed: those of this version, and those of the newest RQ that was tried with it."""
    of_seed = [one for one in ended if (one.round.seed, one.round.company) == (seed, company)]
    ours = [one for one in of_seed if one.round.service == "preflight" and one.round.version == version]
    stock = [one for one in of_seed if one.round.service == "stock RQ"]
    return ours + [one for one in stock if one.round.version == stock[-1].round.version]


def newest(ended: Sequence[Ended]) -> list[Ended]:
    """Return of each fault, service and company the rounds of the version and seed that tried it last."""

    def tried(one: Ended) -> tuple[str, str, Company]:
        return one.round.service, one.round.fault, one.round.company

    last = {tried(one): (one.round.version, one.round.seed) for one in ended}
    return [one for one in ended if last[tried(one)] == (one.round.version, one.round.seed)]


def today() -> str:
    """Return the date of this day."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def machine() -> str:
    """Return a description of the machine that the rounds run on."""
    names = [line.partition(":")[2].strip() for line in CPU_INFO.read_text().splitlines() if "model name" in line]
    control = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").is_file() else "v1"
    said = subprocess.run([str(executable()), "--version"], capture_output=True, text=True, check=True).stdout
    redis = next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "of no known version")
    name = names[0] if names else platform.machine()
    return f"{os.cpu_count()} CPUs ({name}), Linux with cgroup {control}, Redis {redis}, torch {version('torch')}"
