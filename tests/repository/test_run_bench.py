"""The bench of `preflight run`: which fixed settings it compares with, and the table of all pairs."""

from pathlib import Path

import pytest

from tools.bench.run.cells import GRID, PLAIN, TUNED, Cell, Kind
from tools.bench.run.pairs import Pair, best_fixed, fixed_to_measure, ratio_to
from tools.bench.run.table import render, write_into


def pair(tuned: float, best: float = 10.0, kind: Kind = "quiet", **more: float) -> Pair:
    rates = {PLAIN: 5.0, TUNED: tuned, "1 default": 3.0, "2 default": 9.0, "1 tuned": 4.0, "2 tuned": best, **more}
    return Pair(
        cell=Cell("mlp", 2.0, kind), rates=rates, at="2026-11-29T10:00:00+00:00", version="0.28.0",
        machine="a machine", load=0.1, counted=15.0, after=60.0,
    )  # fmt: skip


def test_fixed_settings_that_are_far_behind_are_measured_once() -> None:
    assert fixed_to_measure([]) == list(GRID)
    assert fixed_to_measure([pair(9.0)]) == ["2 default", "2 tuned"]
    later = pair(9.0)
    for name in ("1 default", "1 tuned"):
        del later.rates[name]
    assert best_fixed([pair(9.0), later]) == ("2 tuned", 10.0)


def test_ratios_have_an_interval_from_three_pairs_on() -> None:
    two = ratio_to("2 tuned", [pair(9.0), pair(10.0)])
    assert (two.low, two.high) == (0.9, 1.0)
    three = ratio_to("2 tuned", [pair(9.0), pair(9.5), pair(10.0)])
    assert three.ratio == pytest.approx(0.95)
    assert 0.9 <= three.low <= three.high <= 1.0


def test_the_table_has_all_cells_and_their_bounds(tmp_path: Path) -> None:
    table = render([pair(9.8), pair(9.9), pair(10.0), pair(8.0, kind="1 neighbour")])
    assert "| mlp | 2 | quiet | 3 | 2 tuned | 10 | 0.99 (" in table
    assert "Quiet, median of 1 cells: 0.99 of the best; bound 0.97: reached." in table
    assert "1 neighbour, the least of 1 cells (mlp): 0.80 of the best; bound 0.9: missed." in table
    page = tmp_path / "run.md"
    page.write_text("before\n<!-- table: run -->\nold\n<!-- end of table -->\nafter\n")
    write_into(page, table)
    assert page.read_text() == f"before\n<!-- table: run -->\n{table}\n<!-- end of table -->\nafter\n"
    with pytest.raises(SystemExit, match="has no lines"):
        write_into(tmp_path / "run.md", "") if page.write_text("nothing") else None
