"""History: findings of earlier starts of a workload about the settings that only a start can set.

One of them is tried at a start, the one before it kept or dropped by the seconds of a step once the running settings
have settled. The files lie in a cache: without them the trials begin again.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Final

from preflight.container.resources import Resources
from preflight.launch.findings import Findings, Process, fields, integer, number, text
from preflight.launch.starts import LIBRARIES, Before, Start, StartSetting, possible
from preflight.numbers import rough_interval
from preflight.statistics import Comparison
from preflight.tuner.journal import Record

LONGEST: Final = 600.0
"""Seconds of the last run beyond which nothing is tried: a whole run has the setting, whether it is slower or not."""
LEAST_GAIN: Final = 1.02
"""Ratio above which the whole interval has to be, to keep a setting: runs of the same settings differ."""
OTHERS: Final = 0.3
"""Processors in use by others by which two runs may differ and still be compared."""
MOST_TRIES: Final = 3
"""Starts until a setting whose runs were never comparable is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of a step in one run, with the 95 % interval, and the processors that others used."""

    step_s: float
    low_s: float
    high_s: float
    others: float
    """Processors in use by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Record of a workload; another `signature` means another workload."""

    signature: str = ""
    container: str = ""
    seconds: float = 0.0
    """Seconds of the last run."""
    before: Record = field(default_factory=dict)
    base: Record = field(default_factory=dict)
    """Speed with the kept settings."""
    kept: Record = field(default_factory=dict)
    """Name of a kept setting -> ratio, low, high."""
    dropped: Record = field(default_factory=dict)
    """Name of a dropped setting -> the reason."""
    tries: Record = field(default_factory=dict)
    """Name of a setting -> starts whose runs could not be compared."""


class History:
    """The records of one command."""

    def __init__(
        self, folder: Path, command: Sequence[str], resources: Resources, libraries: Sequence[Path] = LIBRARIES
    ) -> None:  # fmt: skip
        """Read the record of the workload that the program had last, in `folder`; allocators lie in `libraries`."""
        self._folder = folder
        self._libraries = libraries
        self._container = f"{resources.cores} {resources.quota} {resources.memory_bytes >> 20} {os.uname().machine}"
        self._quota = resources.quota
        digest = hashlib.sha256(os.fsencode("\0".join([str(Path.cwd()), *program_of(command)]))).hexdigest()[:24]
        self._program = folder / f"program-{digest}"
        self._workload = Workload()
        with suppress(OSError):
            self._workload = self._read(self._program.read_text().strip())

    def choose(self, variables: Mapping[str, str]) -> Start:
        """Return how to start the command in an environment of these variables."""
        known = self._workload
        if not known.signature or known.container != self._container:
            return Start()
        before = fields(known.before)
        settings = possible(
            variables,
            Before(
                threads=integer(before.get("threads")) or 1, interop=integer(before.get("interop")) or 1,
                interop_at_import=integer(before.get("interop_at_import")) or 1,
                is_compiled=before.get("is_compiled") is True,
            ),
            self._quota,
            self._libraries,
        )  # fmt: skip
        kept = tuple(each for each in settings if each.name in known.kept)
        is_other_malloc = any(each.kind == "allocator" for each in kept)
        trial = None
        if known.base and known.seconds <= LONGEST:
            trial = next((
                each for each in settings
                if each.name not in known.kept and each.name not in known.dropped
                and not (is_other_malloc and each.kind == "huge pages")
            ), None)  # fmt: skip
        return Start(kept=kept, trial=trial)

    def learn(self, start: Start, findings: Findings, status: int) -> list[str]:
        """Record how a run ended; return the sentences about its start, and about the next one."""
        said = [f"started with {each.name}, {_times(self._workload.kept, each.name)}" for each in start.kept]
        if not findings.processes:
            return [*said, *self._drop_failed(start, status)]
        main = findings.processes[0]
        speed = _speed_of(main)
        signature = _signature(main, self._container)
        if speed is None or text(main.start.get("reason")):
            return [*said, *self._drop_failed(start, status)]
        if signature != self._workload.signature:
            self._workload = replace(self._read(signature), signature=signature, container=self._container)
            if start.settings or self._workload.kept:  # this start was chosen for another workload, the next one is not
                self._write()
                return []
        before: Record = {
            "threads": integer(fields(main.summary.get("settings")).get("threads")),
            "interop": integer(main.start.get("interop")),
            "interop_at_import": integer(main.start.get("interop_at_import")),
            "is_compiled": main.summary.get("is_compiled") is True,
        }  # fmt: skip
        if start.trial is not None:  # the script's own number is that of a start without one
            before = {**before, **{name: self._workload.before.get(name) for name in ("interop", "interop_at_import")}}
        self._workload = replace(
            self._workload, signature=signature, container=self._container, before=before,
            seconds=number(main.summary.get("seconds")) or 0.0,
        )  # fmt: skip
        if start.trial is None:
            self._workload = replace(self._workload, base=asdict(speed))
        else:
            said.append(self._judge(start.trial, speed))
        self._write()
        return said

    def _judge(self, trial: StartSetting, speed: Speed) -> str:
        known = self._workload
        base = {name: number(value) or 0.0 for name, value in known.base.items()}
        found = Comparison(
            base["step_s"] / speed.step_s, base["low_s"] / speed.high_s, base["high_s"] / speed.low_s, 1
        )  # fmt: skip
        tried = f"this start tried {trial.name}: {found.ratio:.2f}x ({rough_interval(found.low, found.high)})"
        if abs(base["others"] - speed.others) > OTHERS:
            tries = (integer(known.tries.get(trial.name)) or 0) + 1
            if tries < MOST_TRIES:
                self._workload = replace(known, tries={**known.tries, trial.name: tries})
                return f"{tried}; other processes disturbed one of the two runs, so the next start tries it again"
            self._workload = replace(known, dropped={**known.dropped, trial.name: "disturbed"})
            return f"{tried}; not kept, as other processes disturbed one of two runs {MOST_TRIES} times"
        figures: Record = {"ratio": found.ratio, "low": found.low, "high": found.high}
        if found.low <= LEAST_GAIN:
            self._workload = replace(known, dropped={**known.dropped, trial.name: figures})
            return f"{tried}; not kept"
        self._workload = replace(known, kept={**known.kept, trial.name: figures}, base=asdict(speed))
        return f"{tried}; kept for the next starts"

    def _drop_failed(self, start: Start, status: int) -> list[str]:
        """Drop a trial with which the command failed before it could be measured."""
        if start.trial is None or status == 0 or not self._workload.signature:
            return []
        name = start.trial.name
        self._workload = replace(self._workload, dropped={**self._workload.dropped, name: f"exit code {status}"})
        self._write()
        return [f"this start tried {name}; it is not tried again, as the command failed"]

    def _read(self, signature: str) -> Workload:
        nothing = Workload()
        with suppress(OSError, ValueError, TypeError):
            found = Workload(**json.loads((self._folder / f"{signature}.json").read_text()))
            is_typed = all(isinstance(value, type(getattr(nothing, name))) for name, value in asdict(found).items())
            speed = [number(found.base.get(each.name)) for each in dataclass_fields(Speed)]
            if is_typed and (not found.base or None not in speed):
                return found
        return nothing

    def _write(self) -> None:
        """Write the record; where the folder cannot be written, the next start learns the same again."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            signature = self._workload.signature
            for path, content in (
                (self._folder / f"{signature}.json", json.dumps(asdict(self._workload))), (self._program, signature),
            ):  # fmt: skip
                new = path.with_name(f"{path.name}.{os.getpid()}")
                new.write_text(content)
                new.replace(path)


def program_of(command: Sequence[str]) -> list[str]:
    """Return a command up to the script or module that it runs; all of it where there is none."""
    for number_of, word in enumerate(command[1:], 1):
        with suppress(OSError):  # a name that is too long
            if command[number_of - 1] == "-m" or (not word.startswith("-") and Path(word).is_file()):
                return list(command[: number_of + 1])
    return list(command)


def _signature(main: Process, container: str) -> str:
    workload, start = fields(main.start.get("workload")), main.start
    parts = [
        container, start.get("torch"), start.get("python"), workload.get("shapes"), workload.get("batch"),
        workload.get("workers"), fields(start.get("own")).get("threads"),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _speed_of(main: Process) -> Speed | None:
    """Return the speed of a run whose settings had settled; None: it was too short, or was killed."""
    steady = fields(main.summary.get("steady"))
    figures = [number(steady.get(name)) for name in ("step_s", "low_s", "high_s")]
    if None in figures:
        return None
    step_s, low_s, high_s = (value or 0.0 for value in figures)
    return Speed(step_s=step_s, low_s=low_s, high_s=high_s, others=number(main.summary.get("others")) or 0.0)


def _times(kept: Record, name: str) -> str:
    figures = fields(kept.get(name))
    ratio, low, high = (number(figures.get(each)) or 0.0 for each in ("ratio", "low", "high"))
    return f"which an earlier start found {ratio:.2f}x ({rough_interval(low, high)}) as fast"
