"""What the suite prints: a row for each fault, and the sums."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.faults.catalogue import Fault
from bench.faults.scene import Moment, Verdict


@dataclass(slots=True)
class Row:
    """What came of one fault."""

    fault: Fault
    ours: list[Verdict] = field(default_factory=list)
    stock: list[Verdict] = field(default_factory=list)


def table(rows: Sequence[Row], *, stock: bool) -> str:
    """Return the Markdown table."""
    lines = [
        "| fault | tried | survived | work lost, median / worst | double runs |" + (" stock RQ |" if stock else ""),
        "|---|---|---|---|---|" + ("---|" if stock else ""),
    ]
    for row in rows:
        cells = [f'<a id="{anchor(row.fault.name)}"></a>{row.fault.name}', *_figures(row.ours)]
        if stock:
            cells.append(row.fault.stock if isinstance(row.fault.stock, str) else _in_short(row.stock))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def anchor(name: str) -> str:
    """Return how links name a row, spelled as GitHub spells a heading."""
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def moments(rows: Sequence[Row]) -> str:
    """Return the Markdown table of the moments at which faults struck."""
    verdicts = [verdict for row in rows for verdict in row.ours]
    lines = ["| moment | tried | survived | came too late for it |", "|---|---|---|---|"]
    for moment in Moment:
        found = [verdict for verdict in verdicts if verdict.moment is moment]
        late = sum(verdict.missed.count(moment) for verdict in verdicts)
        lines.append(f"| {moment} | {len(found)} | {sum(verdict.survived for verdict in found)} | {late} |")
    return "\n".join(lines)


def _figures(verdicts: Sequence[Verdict]) -> list[str]:
    tried = [verdict for verdict in verdicts if verdict.not_run is None]
    if not tried:
        return ["0", f"not run: {verdicts[0].not_run}" if verdicts else "not run", "", ""]
    lost = [verdict.lost_s for verdict in tried if verdict.lost_s is not None]
    return [
        str(len(tried)),
        str(sum(verdict.survived for verdict in tried)),
        f"{statistics.median(lost):.1f} / {max(lost):.1f} s" if lost else "",
        str(sum(verdict.double_runs for verdict in tried)),
    ]


def _in_short(verdicts: Sequence[Verdict]) -> str:
    """Return in one cell how often a fault was survived, and what happened where it was not."""
    tried = [verdict for verdict in verdicts if verdict.not_run is None]
    if not tried:
        return "not run"
    kinds = dict.fromkeys(problem.replace("|", "/") for verdict in tried for problem in verdict.problems + verdict.late)
    survived = sum(verdict.survived for verdict in tried)
    lost = max((verdict.lost_s or 0.0 for verdict in tried), default=0.0)
    what = [*kinds, *([f"{lost:.1f} s of work lost"] if lost else [])]
    return f"{survived} of {len(tried)}" + (f": {'; '.join(what)}" if what else "")


def sums(rows: Iterable[Row], which: Callable[[Row], Sequence[Verdict]]) -> str:
    """Return one line about all rounds."""
    found = [(row, verdict) for row in rows for verdict in which(row) if verdict.not_run is None]
    takeovers = [verdict.takeover_s for row, verdict in found if row.fault.name == "host dies" and verdict.takeover_s]
    lost = [verdict.lost_s for _, verdict in found if verdict.lost_s is not None]
    return (
        f"{len(found)} rounds: {sum(verdict.lost for _, verdict in found)} jobs lost, "
        f"{sum(verdict.double_publications for _, verdict in found)} double publications, "
        f"{sum(verdict.orphans for _, verdict in found)} orphans after 10 s, "
        f"at most {max(lost, default=0):.1f} s of work lost, "
        f"takeover after the death of a host within {max(takeovers, default=0):.1f} s, "
        f"{sum(not verdict.survived for _, verdict in found)} rounds with a broken promise"
    )
