"""Write the tables of README.md and docs/benchmarks.md from bench/results/: `make figures`.

With `--check` nothing is written, and the exit code is 1 where a page differs from its results.
"""

import re
import sys
from pathlib import Path
from typing import Final

from bench.record import Record, load

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
SECTION: Final = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
README: Final = (
    ("recipe `fast`, warm: seconds from enqueue to result", "job", 0, "warm: enqueue to result", (2,)),
    ("of them not spent on training", "job", 0, "warm: beyond `train_seconds`", (2, 3, 4)),
    ("recipe `fast`, test accuracy", "accuracy", 0, "recipe `fast`", (1,)),
    ("in seconds of training, testing and saving", "accuracy", 0, "recipe `fast`", (3, 5, 6)),
    ("the plain PyTorch example takes, to 99.0 %", "accuracy", 0, "plain PyTorch example", (3,)),
    ("recipe `balanced`, test accuracy", "accuracy", 0, "recipe `balanced`", (1,)),
    ("in seconds of the same", "accuracy", 0, "recipe `balanced`", (3, 5, 6)),
    ("recipe `best`, test accuracy", "accuracy", 0, "recipe `best`", (1,)),
    ("in seconds of the same", "accuracy", 0, "recipe `best`", (3, 5, 6)),
    ("calibrated plan beside the user's own, `cnn`, times as fast", "training", 1, "speed-up, seed by seed", (1,)),
    ("a worker listens after", "footprint", 0, "worker listens after", (1, 2, 3)),
    ("an idle worker, resident", "footprint", 0, "idle worker, resident", (1, 2, 3)),
)
"""Label, benchmark, number of its table, first cell of the row, columns: figure, bound, verdict."""


def main() -> int:
    """Write the pages, or compare them; return the exit code."""
    differing = {page: text for page in PAGES if (text := render(page.read_text())) != page.read_text()}
    if "--check" in sys.argv:
        for page in differing:
            print(f"{page.relative_to(ROOT)} differs from bench/results/; run `make figures`", file=sys.stderr)
        return int(bool(differing))
    for page, text in differing.items():
        page.write_text(text)
    return 0


def render(page: str) -> str:
    """Return a page with the tables of the current results between its markers."""
    return SECTION.sub(lambda found: f"{found[1]}{_section(found[2])}\n{found[3]}", page)


def _section(name: str) -> str:
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
    machine = f"Machine: {load('accuracy').machine}. Seconds leave out: {load('accuracy').leaves_out}."
    return "\n".join([*lines, "", machine])


if __name__ == "__main__":
    sys.exit(main())
