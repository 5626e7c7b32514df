"""Figures of uploads and of the page "Data": `PYTHONPATH=tests python -m tools.bench.data_page [PIECE ...]`.

`card`: a data set of 100,000 samples in a real Chromium, until its first samples are drawn, and the bytes that came.
`upload`: 200 MB to the web service, its peak memory, and how long other requests wait meanwhile. `beside`: trainings
with and without an import on the same worker, in turns. `flipped`: 60,000 labels of MNIST, 1 % of them wrong, and how
many of those are among the first 1,000 that a search lists.

A piece becomes a line for each figure in tools/bench/results/data-page.jsonl; the table is made of the newest ones.
Needs MNIST in PREFLIGHT_DATA_DIR, and for `card` Debian's `chromium` and `chromium-driver`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.bench.data_page.figures import COMMAND, FIGURE, Figure, tabulate
from tools.bench.data_page.pieces import Bench, Sizes
from tools.bench.lines import ResultFile, Writer
from tools.bench.record import RESULTS, samples

PIECES: Final = ("card", "upload", "beside", "flipped")


def measure(pieces: Sequence[str], sizes: Sizes, writer: Writer[Figure] | None) -> None:
    """Measure pieces; without a writer their figures are printed alone."""
    for piece in pieces:
        if writer is not None:
            writer.begin(piece)
        with tempfile.TemporaryDirectory(prefix="preflight-bench-", ignore_cleanup_errors=True) as directory:
            bench = Bench(Path(directory), sizes)
            getattr(bench, piece)()
        for figure in bench.figures:
            print(f"{figure.name}: {samples(figure.values, figure.form, figure.unit)} ({figure.size})", flush=True)
            if writer is not None:
                writer.append(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the pieces that are named, or all."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"table, or of {', '.join(PIECES)}; all without any")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="all small, nothing is written: does the bench itself run")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.pieces) - {*PIECES, "table"}:
        parser.error(f"there is no piece {', '.join(sorted(unknown))}; there are table, {', '.join(PIECES)}")
    pieces = [piece for piece in PIECES if piece in (asked.pieces or PIECES)]
    if asked.trial:
        measure(pieces, Sizes(1, 2_000, 5_000_000, 20, 500, 600), None)
        return
    file = ResultFile(RESULTS / "data-page.jsonl", FIGURE)
    with file.measuring() as writer:
        measure(pieces, Sizes(asked.rounds, 100_000, 200_000_000, 600, 60_000, 60_000), writer)
    tabulate(file)


if __name__ == "__main__":
    main()
