"""Cells of the bench: a script under a CPU quota, quiet or next to other processes; and one turn of all variants."""

import array
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from tools.bench.container import container
from tools.faults.means import neighbours

SCRIPTS: Final = Path(__file__).parent / "scripts"
RECORDED: Final = Path(__file__).with_name("recorded.py")
PREFLIGHT: Final = str(Path(sys.executable).with_name("preflight"))
MEMORY: Final = 4 << 30
GRID: Final = tuple(f"{threads} {malloc}" for malloc in ("default", "tuned") for threads in (1, 2))
PLAIN: Final = "plain"
TUNED: Final = "preflight run"
TIMEOUT: Final = 120.0
"""Seconds that imports and the first step may take next to neighbours."""

Kind = Literal["quiet", "1 neighbour", "4 neighbours", "1 leaves", "16 threads"]
KINDS: Final[dict[Kind, tuple[int, Mapping[str, str]]]] = {
    "quiet": (0, {}), "1 neighbour": (1, {}), "4 neighbours": (4, {}), "1 leaves": (1, {}),
    "16 threads": (0, {"OMP_NUM_THREADS": "16"}),
}  # fmt: skip
"""Processes `while True: pass` outside of the container, and variables of an image. `1 leaves`: the neighbour ends
after `after` seconds of steps, and what follows `LEFT` seconds later counts, against fixed settings without any."""
LEFT: Final = 15.0
QUIET_CPUS: Final = (2.0, 1.0, 0.5, 1.5)
BUSY_CPUS: Final = 2.0
PAIRS: Final = 5
"""Pairs of a cell that the bounds are for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One place in the table."""

    script: str
    cpus: float
    kind: Kind


def all_cells() -> list[Cell]:
    """Return the cells that the bounds are for: each script quiet under all quotas, and the other kinds under one."""
    places = [(kind, cpus) for kind in KINDS for cpus in (QUIET_CPUS if kind == "quiet" else (BUSY_CPUS,))]
    names = sorted(path.stem for path in SCRIPTS.glob("*.py"))
    return [Cell(name, cpus, kind) for kind, cpus in places for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of runs, in seconds of steps."""

    after: float
    """Seconds of `preflight run` that are left out."""
    counted: float
    """Seconds that count then."""
    fixed_after: float
    """Seconds of all other variants that are left out; nothing changes in them but caches."""

    def of(self, variant: str, cell: Cell) -> tuple[float, float]:
        """Return how many seconds are left out, and how many there are in all."""
        if variant != TUNED:
            return self.fixed_after, self.fixed_after + self.counted
        out = self.after + LEFT * (cell.kind == "1 leaves")
        return out, out + self.counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one run of a variant did."""

    start_s: float
    """Seconds from the command to the end of its first step."""
    early_steps: int
    """Steps after that one and before those that count."""
    early_s: float
    """Seconds of these."""
    rate: float
    """Steps a second of those that count."""
    said: str = ""
    """What `preflight run` said of it."""

    def seconds_for(self, steps: float) -> float:
        """Return the seconds in which a whole command makes so many steps, which are more than the early ones."""
        return self.start_s + self.early_s + (steps - 1 - self.early_steps) / self.rate

    def steps_in(self, seconds: float) -> float:
        """Return how many steps a whole command makes in so many seconds."""
        return 1 + self.early_steps + (seconds - self.start_s - self.early_s) * self.rate


def measure_turn(cell: Cell, variants: Sequence[str], lengths: Lengths) -> dict[str, Stretch]:
    """Return what each variant did, run one after the other."""
    return {name: _run(cell, name, lengths) for name in variants}


def _run(cell: Cell, variant: str, lengths: Lengths) -> Stretch:
    count, variables = KINDS[cell.kind]
    leaves = cell.kind == "1 leaves"
    out, seconds = lengths.of(variant, cell)
    with (
        tempfile.TemporaryDirectory(prefix="preflight-bench-") as folder,
        container(cell.cpus, MEMORY) as box,
        neighbours(count if variant == TUNED or not leaves else 0) as busy,
    ):
        ends_file, begun = Path(folder) / "ends", Path(folder) / "begun"
        fixed = []
        if variant not in (PLAIN, TUNED):
            threads, malloc = variant.split()
            fixed = ["--threads", threads, "--malloc", malloc]
        script = str(SCRIPTS / f"{cell.script}.py")
        command = [sys.executable, str(RECORDED), str(ends_file), str(seconds), script, *fixed]
        report = Path(folder) / "report"
        tuning = [PREFLIGHT, "run", "--quiet", "--json", str(report), "--same-start", "--"]
        under = tuning if variant == TUNED else []
        stop = threading.Event()
        if leaves:
            threading.Thread(target=_leave, args=(busy, begun, lengths.after, stop), daemon=True).start()
        launched = time.monotonic()
        done = subprocess.run(
            [*box.enter, *under, *command, "--begun", str(begun)],
            timeout=TIMEOUT + 2 * seconds, capture_output=True, env={**os.environ, **variables}, check=False,
        )  # fmt: skip
        stop.set()
        if done.returncode:
            raise SystemExit(f"{cell.script} failed: {done.stderr.decode(errors='replace')[-2000:]}")
        ends = array.array("d", ends_file.read_bytes())
        said = str(json.loads(report.read_text())["text"]) if variant == TUNED else ""
    return replace(stretch_of(ends, launched, out), said=said)


def stretch_of(ends: Sequence[float], launched: float, out: float) -> Stretch:
    """Return what a run did; `ends`: times of its steps, by the clock of `launched`; `out`: seconds that do not count.

    Of a run with a single step after these, that step counts.
    """
    first = min(next(number for number, end in enumerate(ends) if end - ends[0] >= out), len(ends) - 2)
    return Stretch(
        start_s=ends[0] - launched, early_steps=first, early_s=ends[first] - ends[0],
        rate=(len(ends) - 1 - first) / (ends[-1] - ends[first]),
    )  # fmt: skip


def _leave(busy: Sequence[subprocess.Popen[bytes]], begun: Path, after: float, stop: threading.Event) -> None:
    """End the neighbours; `after`: seconds from the first step."""
    while not begun.exists():
        if stop.wait(0.05):
            return
    stop.wait(after)
    for each in busy:
        each.kill()
