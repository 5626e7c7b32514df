"""The table of all pairs of the bench, and which bounds they reach."""

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from preflight.statistics import Comparison
from tools.bench.lines import Results
from tools.bench.record import judged
from tools.bench.run.cells import PAIRS, PLAIN, TUNED, Cell, all_cells
from tools.bench.run.pairs import WHOLE, Pair, best_fixed, ratio_to, whole_ratio

BEGIN, END = "<!-- table: run -->", "<!-- end of table -->"
QUIET_MEDIAN: Final = 0.97
QUIET_LEAST: Final = 0.95
BESIDE: Final = 0.9
WHOLE_LEAST: Final = 0.98
START: Final = 0.3
"""Most seconds that the first step may come later."""
HEAD: Final = "| script | CPUs | beside | pairs | best fixed | its steps/s | tuned / best | tuned / plain | whole |"


def render(results: Results[Pair]) -> str:
    """Return the table as Markdown, with where it was measured, and the bounds."""
    pairs = results.values
    if not pairs:
        return "Nothing was measured yet."
    by_cell: dict[Cell, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_cell[pair.cell].append(pair)
    cells = sorted(by_cell, key=lambda cell: (cell.kind != "quiet", cell.kind, cell.cpus, cell.script))
    rows = []
    against: dict[Cell, Comparison] = {}
    whole: dict[Cell, Comparison] = {}
    for cell in cells:
        found = by_cell[cell]
        best, rate = best_fixed(found)
        against[cell], whole[cell] = ratio_to(best, found), whole_ratio(found)
        rows.append(
            f"| {cell.script} | {cell.cpus:g} | {cell.kind} | {len(found)} | {best} | {_rate(rate)} | "
            f"{_ratio(against[cell])} | {_ratio(ratio_to(PLAIN, found))} | {_ratio(whole[cell])} |"
        )
    loads = sorted(pair.load for pair in pairs)
    versions = ", ".join(sorted({pair.version for pair in pairs}))
    machines = "; ".join(sorted({pair.machine for pair in pairs}))
    days = sorted({pair.at[:10] for pair in pairs})
    seconds = sorted({f"{pair.counted:g} s of steps after {pair.after:g}" for pair in pairs})
    origin = (
        f"`PYTHONPATH=tests python -m tools.bench.run table`: {len(pairs)} pairs, version {versions}, "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {machines}; {', '.join(seconds)}; load average before a "
        f"pair {loads[0]:.1f} to {loads[-1]:.1f}; {len(results.lost)} more were begun and interrupted. Tuned is "
        "`preflight run`. Ratios: the median of the pairs with its 95 % interval; of one or two pairs, their range. "
        f"Whole: plain / tuned for the steps of {WHOLE:g} s, with start and search, computed from the same runs."
    )
    bounds = [_measured(by_cell), *_bounds(against), *_whole_bounds(whole, by_cell)]
    return "\n".join([origin, "", HEAD, "|" + "---|" * (HEAD.count("|") - 1), *rows, "", *bounds])


def write_into(page: Path, table: str) -> None:
    """Put a table between the marks of a page.

    Raises:
        SystemExit: it has none.
    """
    text = page.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}; add them where the table belongs")
    page.write_text(f"{head}{begin}\n{table}\n{end}{tail}")


def _measured(by_cell: dict[Cell, list[Pair]]) -> str:
    wanted = all_cells()
    counts = [len(by_cell.get(cell, ())) for cell in wanted]
    whole, none = sum(count >= PAIRS for count in counts), counts.count(0)
    return (
        f"- Of {len(wanted)} cells, {whole} have the {PAIRS} pairs that the bounds are for, "
        f"{len(wanted) - whole - none} fewer, {none} none yet."
    )


def _bounds(against: dict[Cell, Comparison]) -> list[str]:
    quiet = [found for cell, found in against.items() if cell.kind == "quiet"]
    said = []
    if quiet:
        median = statistics.median(found.ratio for found in quiet)
        below = sum(found.high < QUIET_LEAST for found in quiet)
        said += [
            f"- Quiet, median of {len(quiet)} cells: {median:.2f} of the best; bound {QUIET_MEDIAN}: "
            f"{judged(median >= QUIET_MEDIAN)}.",
            f"- Quiet, cells whose interval is wholly below {QUIET_LEAST}: {below}; bound 0: {judged(not below)}.",
        ]
    for kind in sorted({cell.kind for cell in against} - {"quiet"}):
        found = {cell: ratio for cell, ratio in against.items() if cell.kind == kind}
        least = min(found, key=_ratio_in(found))
        ratio = found[least].ratio
        said.append(
            f"- {kind}, the least of {len(found)} cells ({least.script}): {ratio:.2f} of the best; bound {BESIDE}: "
            f"{judged(ratio >= BESIDE)}."
        )
    return said


def _whole_bounds(whole: dict[Cell, Comparison], by_cell: dict[Cell, list[Pair]]) -> list[str]:
    quiet = [cell for cell in whole if cell.kind == "quiet"]
    if not quiet:
        return []
    below = sum(whole[cell].high < WHOLE_LEAST for cell in quiet)
    later = {
        cell: statistics.median(pair.runs[TUNED].start_s - pair.runs[PLAIN].start_s for pair in by_cell[cell])
        for cell in quiet
    }
    median = statistics.median(later.values())
    return [
        f"- Quiet, whole commands of {WHOLE:g} s whose interval is wholly below {WHOLE_LEAST} of the plain one: "
        f"{below} of {len(quiet)} cells; bound 0: {judged(not below)}.",
        f"- Quiet, the first step comes {median:.2f} s later in the median ({min(later.values()):.2f} to "
        f"{max(later.values()):.2f} over cells); bound {START}: {judged(median <= START)}.",
    ]


def _ratio_in(found: dict[Cell, Comparison]) -> Callable[[Cell], float]:
    return lambda cell: found[cell].ratio


def _ratio(found: Comparison) -> str:
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
