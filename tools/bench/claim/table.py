"""The table of the claim, over every pair: what preflight gains, in the median, at worst and at best."""

import math
import statistics
from collections.abc import Sequence

from preflight.numbers import plural
from tools.bench.claim.cells import FILE, Cell, Command, Pair
from tools.bench.lines import ResultFile, newest_minor
from tools.bench.record import Record, Table, samples


def fill(record: Record, file: ResultFile[Pair] = FILE) -> None:
    """Add the tables of every pair of the newest minor version: first the summary of all cells, then each cell."""
    found = file.read()
    version = newest_minor([pair.version for pair in found.values])
    pairs = [pair for pair in found.values if pair.version.startswith(version)]
    if not pairs:
        raise SystemExit("nothing was measured yet; run `python -m tools.bench.claim`")
    record.version, record.date = max(pair.version for pair in pairs), max(pair.at for pair in pairs)[:10]
    record.machine = "; ".join(sorted({pair.machine for pair in pairs}))
    record.tables += [_summary(pairs, found.lost_of(version)), _cells(pairs)]


def _summary(pairs: Sequence[Pair], lost: int) -> Table:
    table = Table(("seconds of plain PyTorch / of preflight", "alone", "beside one busy process"))
    kinds: dict[Command, str] = {"cold": "the first training of its kind", "warm": "each further one"}
    for command, words in kinds.items():
        beside = [[ratio(pair, command) for pair in pairs if pair.cell.busy == busy] for busy in (False, True)]
        table.rows.append((words, *(samples(ratios, ".2f") if ratios else "" for ratios in beside)))
    ended = sum(run.ended for pair in pairs for run in pair.runs.values())
    table.notes.append(
        f"Median and range: {plural(len(pairs), 'pair')} in "
        f"{plural(len({pair.cell for pair in pairs}), 'cell')}, every one counts; of {3 * len(pairs)} commands {ended} "
        f"ended in time (of the others the time that they had counts). Did not end as a pair: {lost}."
    )
    return table


def _cells(pairs: Sequence[Pair]) -> Table:
    table = Table((
        "training", "CPU", "beside", "pairs", "plain PyTorch, s", "preflight, cold, s", "warm, s",
        "plain / cold", "plain / warm", "test accuracy, plain", "cold", "warm",
    ))  # fmt: skip

    def order(cell: Cell) -> tuple[str, float, bool]:
        return cell.network, cell.cpus, cell.busy

    commands: tuple[Command, ...] = ("plain", "cold", "warm")
    for cell in sorted({pair.cell for pair in pairs}, key=order):
        mine = [pair for pair in pairs if pair.cell == cell]
        table.rows.append((
            cell.network, f"{cell.cpus:g}", "one busy process" if cell.busy else "nothing", str(len(mine)),
            *(samples([pair.runs[each].seconds for pair in mine], ".1f") for each in commands),
            *(samples([ratio(pair, each) for pair in mine], ".2f") for each in commands[1:]),
            *(_accuracy([pair.runs[each].accuracy for pair in mine]) for each in commands),
        ))  # fmt: skip
        failed = [f"{each}: {pair.runs[each].sentence}" for pair in mine for each in commands
                  if not pair.runs[each].ended]  # fmt: skip
        table.notes += [f"{cell.name}: {sentence}  " for sentence in dict.fromkeys(failed)]
    return table


def ratio(pair: Pair, command: Command) -> float:
    """Return how many times as long plain PyTorch took; 0 where preflight's command did not end."""
    mine, plain = pair.runs[command], pair.runs["plain"]
    return plain.seconds / mine.seconds if mine.ended else 0.0


def _accuracy(found: Sequence[float | None]) -> str:
    known = [each for each in found if each is not None and not math.isnan(each)]
    return f"{statistics.median(known):.2%}" if known else ""
