"""Write the tables of README.md and docs/ from tools/bench/results/: `make figures`.

With `--check` nothing is written, and the exit code is 1 where a page differs from its results.
"""

import re
import sys
from pathlib import Path
from typing import Final

from tools.bench.calibration.matrix.chart import draw_matrix
from tools.bench.record import Record, load

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    ROOT / page
    for page in ("README.md", "docs/benchmarks.md", "docs/benchmark-tables.md", "docs/explanation/architecture.md")
)
CHART: Final = ROOT / "docs" / "calibration-matrix.svg"
SECTION: Final = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
README: Final = (
    ("recipe `fast`, warm: seconds from enqueue to result", "job", 0, "warm: enqueue to result", (2,)),
    ("of them not spent on training", "job", 0, "warm: beyond `train_seconds`", (2, 3, 4)),
    ("recipe `fast`, test accuracy, five seeds", "accuracy", 0, "recipe `fast`", (1,)),
    ("the plain PyTorch example takes, to 99.0 %", "accuracy", 0, "plain PyTorch example", (3,)),
    ("an idle worker of the image, resident", "footprint", 0, "idle worker, resident, the image's packages", (1, 2, 3)),
)
"""Label, benchmark, number of its table, first cell of the row, columns: figure, bound, verdict."""
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
    if name == "claim":
        return _claim()
    return _readme() if name == "readme" else "\n\n".join([_origin(load(name)), *_tables(load(name))])


def _origin(record: Record) -> str:
    lines = [f"`{record.command}`: version {record.version}, {record.date}, {record.machine}."]
    if record.transcribed:
        lines.append(f"Transcribed from {record.transcribed}; its samples were not kept.")
    if record.leaves_out:
        lines.append(f"Left out: {record.leaves_out}.")
    return "\n".join(lines)


def _tables(record: Record) -> list[str]:
    return ["\n".join(table.lines()) for table in record.tables]


def _readme() -> str:
    lines = ["| figure | median (range) | bound | | version |", "|---|---|---|---|---|"]
    for label, name, number, key, columns in README:
        record = load(name)
        (cells,) = (row for row in record.tables[number].rows if row[0] == key)
        shown = [str(cells[column]) for column in columns]
        link = f"[{record.version}](docs/benchmarks.md#{name})"
        lines.append(f"| {' | '.join([label, *shown, *[''] * (3 - len(shown)), link])} |")
    left_out = load("accuracy").leaves_out
    machine = (
        f"Machine: {load('job').machine}. Seconds of whole jobs leave out nothing; "
        f"those of trainings leave out {left_out}."
    )
    return "\n".join([*lines, "", machine])


def _claim() -> str:
    """Return the speed of `fast` beside the plain example, from every run of the benchmark."""
    record = load("accuracy")
    rows = {str(row[0]): row for row in record.tables[0].rows}
    fast, plain = (str(rows[name][column]) for name, column in (("recipe `fast`", 3), ("plain PyTorch example", 3)))
    return (
        f"**Recipe `fast` trains MNIST to 99.0 % in {fast} s, the plain PyTorch example takes {plain} s.**\n"
        f"Every run counts; left out are {record.leaves_out}. Version {record.version}: [how it was measured]"
        "(docs/benchmarks.md#accuracy)."
    )


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
