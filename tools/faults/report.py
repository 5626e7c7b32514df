"""Texts that the suite prints and writes into a page: a row for each fault, and the sums."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.faults.catalogue import Fault
from tools.faults.jobs import Moment, Verdict
from tools.faults.preflight import CHECKPOINT_SECONDS, SLACK_SECONDS
from tools.faults.rounds import ALONE, Company, Ended
from tools.faults.stock import BEYOND

BEGIN: Final = "<!-- python -m tools.faults writes what follows -->"
END: Final = "<!-- and no further -->"


@dataclass(slots=True)
class Row:
    """Verdicts on one fault, for this service and for stock RQ."""

    fault: Fault
    ours: list[Verdict] = field(default_factory=list)
    stock: list[Verdict] = field(default_factory=list)


def rows(faults: Sequence[Fault], ended: Sequence[Ended], company: Company = ALONE) -> list[Row]:
    """Return a row for each fault, of the rounds in this company."""

    def verdicts(fault: Fault, service: str) -> list[Verdict]:
        wanted = (fault.name, service, company)
        return [one.verdict for one in ended if (one.round.fault, one.round.service, one.round.company) == wanted]

    return [Row(fault, verdicts(fault, "preflight"), verdicts(fault, "stock RQ")) for fault in faults]


def tables(rows: Sequence[Row]) -> str:
    """Return all tables of the rounds."""
    stock = any(row.stock for row in rows)
    beside = (
        f"\n\nstock RQ: {sums(rows, lambda row: row.stock)}; "
        f"a job that has not ended {BEYOND:.0f} s after its time counts as lost"
    )
    return (
        f"{table(rows, stock=stock)}\n\n{moments(rows)}\n\n"
        f"Work lost: seconds of training done again; checkpoints every {CHECKPOINT_SECONDS:g} s, and up to "
        f"{SLACK_SECONDS:g} s are allowed for writing and measuring.\n\n"
        f"preflight: {sums(rows, lambda row: row.ours)}{beside if stock else ''}"
    )


def page(rows: Sequence[Row], ended: Sequence[Ended]) -> str:
    """Return the text of a page: versions, days and machines of the rounds, and their results."""
    beside = "".join(
        f"\n\n{sums_beside([row.fault for row in rows], ended, company)}"
        for company in sorted({one.round.company for one in ended} - {ALONE})
    )
    days = sorted({one.at for one in ended})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"
    made = [one.round for one in ended]
    versions = "; ".join(dict.fromkeys(f"{one.service} {one.version} (seed {one.seed})" for one in made))
    where = "; ".join(dict.fromkeys(one.machine for one in ended))
    return f"{versions}, {when}. {where}.\n\n{tables(rows)}{beside}"


def write(path: Path, text: str) -> None:
    """Put `text` between the markers of a page.

    Raises:
        ValueError: the page has no markers, or not one of each.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"{path} must have {BEGIN!r} once, and {END!r} once behind it")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


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
    """Return the anchor of a row, spelled as GitHub spells a heading."""
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


def sums_beside(faults: Sequence[Fault], ended: Sequence[Ended], company: Company) -> str:
    """Return one line about all rounds of this service in this company."""
    neighbours, jobs = company
    busy = {0: "", 1: " beside one busy process"}.get(neighbours, f" beside {neighbours} busy processes")
    found = rows(faults, ended, company)
    overlapped = sum(verdict.at_once >= jobs for row in found for verdict in row.ours)
    at_once = "" if jobs == 1 else f" with {jobs} jobs at a time (seen to train together in {overlapped} rounds)"
    return f"preflight{busy}{at_once}: {sums(found, lambda row: row.ours)}"
