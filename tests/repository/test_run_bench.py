"""The bench of `preflight run`: which fixed settings it compares with, and the table of all pairs."""

from pathlib import Path

import pytest

from tools.bench.lines import Results
from tools.bench.run.cells import GRID, PLAIN, TUNED, Cell, Kind, Stretch, stretch_of
from tools.bench.run.pairs import Pair, best_fixed, fixed_to_measure, ratio_to, whole_ratio
from tools.bench.run.table import render, write_into


def pair(tuned: float, best: float = 10.0, kind: Kind = "quiet", **more: float) -> Pair:
    rates = {PLAIN: 5.0, TUNED: tuned, "1 default": 3.0, "2 default": 9.0, "1 tuned": 4.0, "2 tuned": best, **more}
    runs = {
        name: Stretch(start_s=3.2 if name == TUNED else 3.0, early_steps=100, early_s=50.0, rate=rate)
        for name, rate in rates.items()
    }
    return Pair(
        cell=Cell("mlp", 2.0, kind), runs=runs, at="2026-11-29T10:00:00+00:00", version="0.28.0",
        machine="a machine", load=0.1, counted=15.0, after=60.0,
    )  # fmt: skip


def test_fixed_settings_that_are_far_behind_are_measured_once() -> None:
    assert fixed_to_measure([]) == list(GRID)
    assert fixed_to_measure([pair(9.0)]) == ["2 default", "2 tuned"]
    later = pair(9.0)
    for name in ("1 default", "1 tuned"):
        del later.runs[name]
    assert best_fixed([pair(9.0), later]) == ("2 tuned", 10.0)


def test_ratios_have_an_interval_from_three_pairs_on() -> None:
    two = ratio_to("2 tuned", [pair(9.0), pair(10.0)])
    assert (two.low, two.high) == pytest.approx((0.9, 1.0))
    three = ratio_to("2 tuned", [pair(9.0), pair(9.5), pair(10.0)])
    assert three.ratio == pytest.approx(0.95)
    assert 0.9 <= three.low <= three.high <= 1.0


def test_a_run_is_its_start_its_early_steps_and_its_rate() -> None:
    run = stretch_of([103.0, 104.0, 106.0, 106.5, 107.0], 100.0, out=2.0)
    assert run == Stretch(start_s=3.0, early_steps=2, early_s=3.0, rate=2.0)
    assert run.seconds_for(run.steps_in(60.0)) == 60.0
    long_steps = stretch_of([103.0, 104.0, 124.0], 100.0, out=10.0)
    assert long_steps == Stretch(start_s=3.0, early_steps=1, early_s=1.0, rate=1 / 20)


def test_a_whole_command_counts_its_start_and_its_search() -> None:
    same_rate = whole_ratio([pair(5.0)])  # 5 steps a second as the plain command, and 0.2 s later
    assert same_rate.ratio == pytest.approx(600 / 600.2)


def test_the_table_has_all_cells_and_their_bounds(tmp_path: Path) -> None:
    table = render(Results([pair(9.8), pair(9.9), pair(10.0), pair(8.0, kind="1 neighbour")], [None]))
    assert "Of 48 cells, 0 have the 5 pairs that the bounds are for, 2 fewer, 46 none yet." in table
    assert "1 more were begun and interrupted" in table
    assert "whole commands of 600 s whose interval is wholly below 0.98 of the plain one: 0 of 1 cells" in table
    assert "the first step comes 0.20 s later in the median (0.20 to 0.20 over cells); bound 0.3: reached" in table
    assert "| mlp | 2 | quiet | 3 | 2 tuned | 10 | 0.99 (" in table
    assert "Quiet, median of 1 cells: 0.99 of the best; bound 0.97: reached." in table
    assert "1 neighbour, the least of 1 cells (mlp): 0.80 of the best; bound 0.9: missed." in table
    page = tmp_path / "run.md"
    page.write_text("before\n<!-- table: run -->\nold\n<!-- end of table -->\nafter\n")
    write_into(page, table)
    assert page.read_text() == f"before\n<!-- table: run -->\n{table}\n<!-- end of table -->\nafter\n"
    with pytest.raises(SystemExit, match="has no lines"):
        write_into(tmp_path / "run.md", "") if page.write_text("nothing") else None
