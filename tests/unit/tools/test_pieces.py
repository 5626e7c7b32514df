"""Benchmarks in parts: the next call continues, and the table has the last run of each part."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tools.bench import pieces
from tools.bench import record as record_module
from tools.bench.lines import Deadline
from tools.bench.pieces import Bench, Row
from tools.bench.record import load, samples


def test_parts_continue_and_the_last_run_of_each_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, record_module):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    ran: list[str] = []

    def part(name: str) -> list[Row]:
        ran.append(name)
        return [(name, samples([len(ran)], "g"), "", "", "reached")]

    bench = Bench(name="b", command="b", leaves_out="", parts={"one": lambda: part("one"), "two": lambda: part("two")})
    with pytest.raises(SystemExit, match="nothing was measured yet"):
        bench.run(["table"], Deadline.after(1))
    bench.run(["two"], Deadline.after(1))
    bench.run([], Deadline.after(0))
    assert ran == ["two"]
    rows = load("b").tables[0].rows
    assert [str(row[0]) for row in rows] == ["one: not measured yet", "two"]
    bench.run([], Deadline.after(1))
    bench.run(["two"], Deadline.after(1))
    assert ran == ["two", "one", "two"]
    assert [(str(row[0]), str(row[1])) for row in load("b").tables[0].rows] == [("one", "2"), ("two", "3")]
    assert load("b").version == version("preflight-worker")
    with pytest.raises(SystemExit):
        bench.parser(None).parse_args(["three"])
