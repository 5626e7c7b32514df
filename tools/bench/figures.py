"""Write the tables of README.md and docs/ from tools/bench/results/: `make figures`.

With `--check` nothing is written, and the exit code is 1 where a page differs from its results. A table that was not
measured yet says by which command it is.
"""

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tools.bench.calibration.matrix.chart import draw_matrix
from tools.bench.measure import command_for
from tools.bench.record import RESULTS, Cell, Record, load

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    ROOT / page
    for page in (
        "README.md", "docs/benchmarks.md", "docs/benchmark-tables.md", "docs/explanation/architecture.md",
        "docs/how-to/run.md",
    )
)  # fmt: skip
CHART: Final = ROOT / "docs" / "calibration-matrix.svg"
SECTION: Final = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Shown(NamedTuple):
    """A row of README: its table and row, and the figures of it that are shown."""

    label: str
    benchmark: str
    table: int
    key: str
    """First cell of the row."""
    figure: str
    """Format of the figures, with the numbers of columns in braces."""
    bound: tuple[int, int] | None = None
    """Columns of bound and verdict."""


BESIDE: Final = "{1} times as long alone, at least {2} times beside a busy process"
README: Final = (
    Shown("a plain PyTorch script against `preflight train` of the same training, the first time",
          "claim", 0, "the first training of its kind", BESIDE),
    Shown("each further time", "claim", 0, "each further one", BESIDE),
    Shown("epochs within the 95 % interval that was predicted, every run", "calibration-matrix", 0,
          "95 % intervals that hold the measured epoch", "{1}", (5, 6)),
    Shown("recipe `fast`, warm: seconds from enqueue to result", "job", 0, "warm: enqueue to result", "{2}"),
    Shown("of them not spent on training", "job", 0, "warm: beyond `train_seconds`", "{2}", (3, 4)),
    Shown("seconds to 99.0 %, `fast` and the plain PyTorch example", "accuracy", 0,
          "seconds to 99.0%, `fast` and the plain PyTorch example", "{1} and {2}", (3, 4)),
    Shown("an idle worker of the image, resident", "footprint", 0, "idle worker, resident, the image's packages",
          "{1}", (2, 3)),
)  # fmt: skip
LEAD: Final = ("claim", "calibration-matrix")
"""Benchmarks of whose rows README begins with the first."""
STAGES: Final = (
    ("taken from the queue", "taken"), ("data set ready", "data set ready"), ("plan ready", "plan ready"),
    ("first step done", "first step done"), ("last step done", "last step done"), ("result there", "result"),
    ("after it: report ready", "report"),
)  # fmt: skip
"""Row of the stages of a job, and its box in the drawing of them."""


def main() -> int:
    """Write the pages, or compare them; return the exit code."""
    texts = {page: render(page.read_text()) for page in PAGES} | {CHART: draw_matrix()}
    differing = {page: text for page, text in texts.items() if not page.exists() or text != page.read_text()}
    if "--check" in sys.argv:
        for page in differing:
            print(f"{page.relative_to(ROOT)} differs from tools/bench/results/; run `make figures`", file=sys.stderr)
        return int(bool(differing))
    for page, text in differing.items():
        page.write_text(text)
    return 0


def render(page: str) -> str:
    """Return a page with the tables of the current results between its markers."""
    return SECTION.sub(lambda found: f"{found[1]}{_section(found[2])}\n{found[3]}", page)


def _section(name: str) -> str:
    if name == "stages":
        return _stages()
    if name == "lead":
        return _lead()
    if name == "readme":
        return _readme()
    record = _load(name)
    if record is None:
        return f"Not measured yet: `{command_for(name)}` makes these figures."
    return "\n\n".join([_origin(record), *("\n".join(table.lines()) for table in record.tables)])


def _load(name: str) -> Record | None:
    return load(name) if (RESULTS / f"{name}.json").exists() else None


def _origin(record: Record) -> str:
    lines = [f"`{record.command}`: version {record.version}, {record.date}, {record.machine}."]
    if record.leaves_out:
        lines.append(f"Left out: {record.leaves_out}.")
    return "\n".join(lines)


def _readme() -> str:
    lines = ["| figure | median (range) | bound | | version |", "|---|---|---|---|---|"]
    records: dict[str, Record] = {}
    for shown in README:
        record = _load(shown.benchmark)
        if record is None:
            continue
        records[shown.benchmark] = record
        cells = _row(record, shown)
        bound, verdict = (str(cells[column]) for column in shown.bound) if shown.bound else ("", "")
        link = f"[{record.version}]({_page_of(shown.benchmark)}#{shown.benchmark})"
        lines.append(f"| {shown.label} | {shown.figure.format(*cells)} | {bound} | {verdict} | {link} |")
    parts = [part for record in records.values() for part in record.machine.split("; ")]
    machines = sorted({re.sub(r" \(\d+ runs\)$", "", part) for part in parts})  # of a table that several made
    return "\n".join([*lines, "", f"Machines: {'; '.join(machines)}. What a row leaves out stands above its table."])


def _page_of(name: str) -> str:
    """Return the page that has a table."""
    mark = f"<!-- figures: {name} -->"
    return next(str(page.relative_to(ROOT)) for page in PAGES if mark in page.read_text())


def _lead() -> str:
    """Return the first figure of each benchmark of `LEAD`, with its origin."""
    found = [(name, record) for name in LEAD if (record := _load(name)) is not None]
    said = []
    for name, record in found:
        shown = next(one for one in README if one.benchmark == name)
        figure = shown.figure.format(*_row(record, shown))
        said.append(f"{shown.label}: {figure} ([{record.version}]({_page_of(name)}#{name}))")
    return "**Measured, and every run counts:** " + ";\n".join(said) + "."


def _row(record: Record, shown: Shown) -> tuple[Cell, ...]:
    """Return the cells of a row."""
    (cells,) = (row for row in record.tables[shown.table].rows if row[0] == shown.key)
    return cells


def _stages() -> str:
    """Draw the stages of a job with their median seconds, warm and cold."""
    record = load("job")
    rows = {row[0]: row for row in record.tables[1].rows}
    boxes, before = ['    s0["enqueued"]'], "s0"
    for number, (row, box) in enumerate(STAGES, 1):
        warm, cold = (str(rows[row][column]).split(" ", 1)[0] for column in (2, 4))
        boxes.append(f'    {before} -->|"{warm} s, cold {cold} s"| s{number}["{box}"]')
        before = f"s{number}"
    origin = f"Medians of {record.version}, recipe `fast` ([benchmarks.md](../benchmarks.md#job))."
    return "\n".join(["```mermaid", "flowchart LR", *boxes, "```", "", origin])


if __name__ == "__main__":
    sys.exit(main())
