"""Gauge history: how fast the machine itself was at each calibration, from which its unsteadiness over days follows.

A small file beside the plans for each kind of container (`Signature.machine_key`). A damaged one is an empty one, and
what cannot be written is left out: a prediction then has the interval of a machine of which nothing is known.
"""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.files.atomic_files import read_text, write_atomically

MACHINES: Final = ("machines", ".json")
"""Where the files lie beneath the cache's directory, and how their names end after the key."""
MAX_ENTRIES: Final = 64
MAX_AGE: Final = 30 * 86_400.0
"""Seconds; a month of a host that is slowly replaced says nothing of this one."""
LARGEST_FILE: Final = 1 << 16
"""Bytes; the entries take a tenth."""
USUAL: Final = 0.05
"""Standard deviation of the logarithm of a machine's speed while nothing is known of it (docs/decisions.md)."""
WEIGHT: Final = 5
"""Calibrations that this assumption weighs as many as."""
MOST: Final = math.log(1.5)
"""Deviation from which on a machine is another one, or hangs: it counts as so much."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gauge:
    """The reference workload, timed at one calibration."""

    at: float
    """Seconds since the epoch."""
    threads: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _History:
    schema: Literal["preflight.machine.v1"] = "preflight.machine.v1"
    gauges: tuple[Gauge, ...] = ()


HISTORY = TypeAdapter(_History)


def read_gauges(path: Path) -> Sequence[Gauge]:
    """Return what is kept in a file and not too old, the oldest first; nothing for one that is damaged or absent."""
    try:
        gauges = HISTORY.validate_json(read_text(path, LARGEST_FILE)).gauges
    except (OSError, ValidationError):
        return ()
    return [gauge for gauge in gauges if abs(time.time() - gauge.at) <= MAX_AGE][-MAX_ENTRIES:]


def add_gauge(path: Path, threads: int, seconds: float) -> None:
    """Keep the time that the reference workload took on `threads` threads; a disk that takes no files is no error."""
    kept = [*read_gauges(path), Gauge(at=time.time(), threads=threads, seconds=seconds)][-MAX_ENTRIES:]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, HISTORY.dump_json(_History(gauges=tuple(kept))))


def unsteadiness(gauges: Sequence[Gauge]) -> float:
    """Return the standard deviation of the logarithm of the machine's speed, that of any machine where few are known.

    Times on different numbers of threads are not compared.
    """
    known = sorted(gauges, key=lambda gauge: gauge.threads)
    squares: list[float] = []
    for _, group in itertools.groupby(known, key=lambda gauge: gauge.threads):
        logs = [math.log(gauge.seconds) for gauge in group]
        centre = statistics.median(logs)
        squares += sorted(min(abs(each - centre), MOST) ** 2 for each in logs)[1:]  # the centre is one of them
    return math.sqrt((WEIGHT * USUAL**2 + sum(squares)) / (WEIGHT + len(squares)))
