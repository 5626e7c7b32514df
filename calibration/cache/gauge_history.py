"""Gauge history: how fast the machine itself was at each calibration, from which its unsteadiness over days follows.

Each kind of container (`Signature.machine_key`) has a small file next to the plans. A damaged file counts as empty, and
a failed write is ignored: a prediction then has the interval of a machine of which nothing is known.
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
"""Folder of the files in the cache's directory, and the ending of their names after the key."""
MAX_ENTRIES: Final = 64
MAX_AGE: Final = 30 * 86_400.0
"""Seconds after which an entry is ignored: hosts are slowly replaced, and after a month this may be another one."""
LARGEST_FILE: Final = 1 << 16
"""Most bytes of a file; its entries take a tenth."""
USUAL: Final = 0.05
"""Standard deviation of the logarithm of a machine's speed while nothing is known of it (docs/decisions.md)."""
WEIGHT: Final = 5
"""Number of calibrations that this assumption counts as."""
MOST: Final = math.log(1.5)
"""Largest deviation that counts: beyond it a machine is another one, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gauge:
    """The reference workload, timed at one calibration."""

    at: float
    """Time of the measurement, in seconds since the Unix epoch."""
    threads: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _History:
    schema: Literal["preflight.machine.v1"] = "preflight.machine.v1"
    gauges: tuple[Gauge, ...] = ()


HISTORY = TypeAdapter(_History)


def read_gauges(path: Path) -> Sequence[Gauge]:
    """Return the gauges of a file that are not too old, the oldest first; none where it is damaged or absent."""
    try:
        gauges = HISTORY.validate_json(read_text(path, LARGEST_FILE)).gauges
    except (OSError, ValidationError):
        return ()
    return [gauge for gauge in gauges if abs(time.time() - gauge.at) <= MAX_AGE][-MAX_ENTRIES:]


def add_gauge(path: Path, threads: int, seconds: float) -> None:
    """Keep the time that the reference workload took on `threads` threads; a failed write is ignored."""
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
