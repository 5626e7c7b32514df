"""End of a command: the speed of its training, the gain of the tuning, and the effects of the container.

The text for stderr, and the file of `--json`, which has the records, too.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Final

from preflight.container.interference import OTHERS
from preflight.launch.findings import Findings, Process, describe_signal, fields, integer, number, settings_of, text
from preflight.numbers import MIB, duration, plural, predicted, rough_interval
from preflight.tuner.journal import Record
from preflight.tuner.settings import Settings

NOTABLE: Final = 0.05
"""Least share of processors or periods that is worth a clause."""
KILLED: Final = 137
"""Exit code of a command that SIGKILL has ended, or that says so of a child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    seconds: float
    kills: int
    """Kills for memory that the kernel counted in this cgroup meanwhile."""
    memory_limit: int
    throttled: float
    """Share of the periods of the CPU quota in which it was used up."""
    quota: float | None


def block(findings: Findings, ended: Ended, said: Sequence[str] = (), *, is_over: bool = False) -> str:
    """Return the sentences as lines, with those that are `said` about the start.

    `is_over`: the training has ended, though its process lives.
    """
    lines = [_untouched(findings)] if not findings.processes else [_trained(findings.processes, ended)]
    main = findings.processes[0] if findings.processes else None
    if main is not None:
        lines += [_predicted(main), *_notes(main), *_advice(main)]
    lines += said
    lines.append(_killed(main, ended))
    lines += [f"the tuning stopped after an error of its own: {failure}" for failure in findings.failures]
    lines += [
        f"process {each.pid} still trains in the background; this is what it has done so far"
        for each in findings.processes[:1] if each.is_alive and not is_over
    ]  # fmt: skip
    return "\n".join(f"preflight: {line}" for line in lines if line)


def summary(command: Sequence[str], findings: Findings, ended: Ended, said: Sequence[str] = ()) -> str:
    """Return the end of a command, the findings of its processes, and the sentences of the block, as JSON."""
    found: Record = {
        "type": "preflight.run.v1", "command": list(command), **asdict(ended),
        "processes": [_process(each) for each in findings.processes],
        "failures": list(findings.failures), "text": block(findings, ended, said),
    }  # fmt: skip
    return json.dumps(found, indent=1)


def _untouched(findings: Findings) -> str:
    if not findings.loaded_python:
        why = "no Python process loaded the tuner, as none was started, or with -I, -S, -E or env -i, which keep it out"
    elif findings.is_nested and not findings.loaded_torch:
        why = "preflight was started in it, which tunes its trainings and reports them itself"
    elif not findings.loaded_torch:
        why = "no Python process imported torch"
    else:
        why = "torch was imported, but no optimizer made a step"
    return f"the command ran untouched: {why}"


def _trained(processes: Sequence[Process], ended: Ended) -> str:
    main = processes[0]
    summary = main.summary
    took = number(summary.get("seconds")) or 0.0
    parts = [_speed(main, f"{plural(main.steps, 'step')} in {duration(took)}")]
    others = number(summary.get("others")) or 0.0
    count = integer(summary.get("processors")) or 1
    if others >= OTHERS and others / count >= NOTABLE:
        parts.append(f"other processes took {min(1.0, others / count):.0%} of the processors")
    stolen = number(summary.get("stolen")) or 0.0
    if stolen >= NOTABLE:
        parts.append(f"the hypervisor took {stolen:.0%} of them")
    if ended.throttled >= NOTABLE and ended.quota is not None:
        parts.append(f"the quota of {ended.quota:g} CPU was used up in {ended.throttled:.0%} of its periods")
    peak, limit = integer(summary.get("memory_peak")), integer(summary.get("memory_limit"))
    if peak and limit:
        parts.append(f"peak {peak / MIB:,.0f} of {limit / MIB:,.0f} MiB")
    if len(processes) > 1:
        verb = "1 other process" if len(processes) == 2 else f"{len(processes) - 1} other processes"
        parts.append(f"{verb} trained, too")
    return "; ".join(parts)


def _speed(main: Process, did: str) -> str:
    """Return the steps, their settings, and how much faster those are than the script's own."""
    start, summary = main.start, main.summary
    own = settings_of(start.get("own"))
    source = text(start.get("threads_from"))
    whose = "PyTorch's default" if source == "default" else f"the script's own {describe_own(own, source)}"
    reason = text(start.get("reason"))
    now = settings_of(summary.get("settings")) or own
    if now is None or own is None:
        return did
    if reason:
        return f"{did} with {own.describe()}; nothing was raced: {reason}"
    how = f"{did} with {now.describe()}"
    gain = fields(summary.get("gain"))
    ratio, low, high = (number(gain.get(name)) for name in ("ratio", "low", "high"))
    if ratio is not None and low is not None and high is not None:
        digits = 2 if high < 2 else 1
        return f"{how}: {ratio:.{digits}f}x ({low:.{digits}f}x to {high:.{digits}f}x) {whose} here"
    if not main.named("winner"):
        return f"{how}; too few steps to find something faster"
    if now.threads != own.threads:
        return how
    return f"{did} with {own.describe()}, {whose}: nothing that was tried is faster"


def _predicted(main: Process) -> str:
    found, checked = main.named("prediction"), main.named("checked")
    if not found:
        return ""
    left, low, high = (number(found[0].get(name)) or 0.0 for name in ("left_s", "low_s", "high_s"))
    done = plural(integer(found[0].get("done")) or 0, "step")
    said = f"{predicted(left, low, high)} were predicted after {done}"
    if not checked:
        return said
    total = integer(found[0].get("total")) or 0
    if main.steps < total:
        return f"{said}; it ended after {main.steps:,} of {plural(total, 'step')}"
    return f"{said}; it took {duration(number(checked[0].get('took_s')) or 0.0, like=left)}"


def _notes(main: Process) -> list[str]:
    return list(dict.fromkeys(text(note.get("message")) for note in main.named("note")))


def _advice(main: Process) -> list[str]:
    """Return changes that would alter the result: those with a gain first, with the line to change, then the others."""
    found: list[tuple[float, str]] = []
    for each in main.named("advice"):
        change, note, line = (text(each.get(name)) for name in ("change", "note", "line"))
        figures = fields(each.get("ratio"))
        ratio, low, high = (number(figures.get(name)) for name in ("ratio", "low", "high"))
        if ratio is None or low is None or high is None:
            found.append((0.0, f"{change} was not measured: {note}"))
            continue
        said = f"{change}: {ratio:.2f}x ({rough_interval(low, high)}) {text(each.get('of'))}"
        said = f"{said}; {note}" if note else said
        found.append((low, f"{said}; change: {line}" if low > 1 else f"{said}; that is no gain"))
    lines = [line for _, line in sorted(found, key=itemgetter(0), reverse=True)]
    took = sum(number(each.get("seconds")) or 0.0 for each in main.named("advised"))
    return [*lines, f"measuring this took {duration(took)} after the last step"] if lines else []


def _killed(main: Process | None, ended: Ended) -> str:
    """Return the cause of the command's end, where it did not end by itself."""
    if ended.kills:
        peak = integer(main.summary.get("memory_peak")) if main else None
        seen = "" if peak is None else f", after a peak of {peak / MIB:,.0f} MiB"
        return (
            f"a process was killed for memory: the limit is {ended.memory_limit / MIB:,.0f} MiB{seen}; {_fitting(main)}"
        )
    name = describe_signal(ended.status)
    if name is None:
        return ""
    if ended.status == KILLED:
        return "the command was killed (SIGKILL), not by the out-of-memory killer"
    return f"the command was ended by {name}"


def _fitting(main: Process | None) -> str:
    """Return the remedy: batches take memory in proportion to their samples, weights and the program do not."""
    workload = fields(main.start.get("workload")) if main else {}
    batch, state = integer(workload.get("batch")), integer(workload.get("state_bytes"))
    base = integer(main.start.get("base_bytes")) if main else None
    if not batch or batch < 2 or state is None or base is None:
        return "give the container more memory, or make the batch smaller"
    fixed = f"{(base + state) / MIB:,.0f} MiB for the program, weights and optimizer"
    return f"batches of {batch // 2} samples instead of {batch} take half of the memory beyond {fixed}"


def describe_own(own: Settings | None, source: str) -> str:
    """Return the number of threads that the user set."""
    if own is None:
        return "settings"
    return own.describe() if source == "script" else f"{source}={own.threads}"


def _process(process: Process) -> Record:
    known = ("trial", "winner", "adapted", "prediction", "checked", "note", "advice", "advised")
    return {
        "pid": process.pid, "start": process.start, "summary": process.summary,
        "records": [record for record in process.records if record.get("what") in known],
    }  # fmt: skip
