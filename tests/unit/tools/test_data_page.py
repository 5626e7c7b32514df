"""Figures of the page "Data": which value a bound is about, and the table of the newest lines."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tools.bench import record as record_module
from tools.bench.data_page.figures import FIGURE, Figure, tabulate
from tools.bench.lines import ResultFile


def figure(*values: float, of: str = "median", most: bool = True, name: str = "card drawn") -> Figure:
    return Figure(
        piece="card", name=name, values=values, form=".2f", unit=" s", bound=1.0, of=of, most=most, size="",
        version=version("preflight-worker"), at="2026-11-29T10:00:00+00:00", machine="a machine",
    )  # fmt: skip


def test_a_bound_is_one_of_the_median_or_of_the_worst() -> None:
    assert figure(0.9, 0.9, 1.1).reached
    assert not figure(0.9, 0.9, 1.1, of="worst").reached
    assert not figure(0.9, most=False).reached
    assert figure(1.0, 1.2, of="worst", most=False).reached


def test_the_newest_line_of_a_figure_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "RESULTS", tmp_path)
    file = ResultFile(tmp_path / "data-page.jsonl", FIGURE)
    with file.measuring() as writer:
        for each in (figure(2.0), figure(0.5), figure(300.0, name="bytes")):
            writer.begin("card")
            writer.append(each)
        writer.begin("upload")
    tabulate(file)
    (table,) = record_module.load("data-page").tables
    assert [row[0] for row in table.rows] == ["card drawn", "bytes"]
    assert [row[3] for row in table.rows] == ["reached", "missed"]
    assert table.notes == ["Did not end: 1."]
