"""The claim: what plain PyTorch and preflight take for the same training, over every pair; all figures in pieces."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.bench import figures, measure
from tools.bench import record as record_module
from tools.bench.claim import table
from tools.bench.claim.cells import PAIR, Cell, Command, Network, Pair, Run, command_of, limit_of, run_command
from tools.bench.lines import Deadline, ResultFile
from tools.bench.measure import Piece
from tools.bench.record import Record

VERSION = version("preflight-worker")
ALONE, BESIDE = Cell("cnn", 1.0, False), Cell("cnn", 1.0, True)


def pair(cell: Cell, plain: float, cold: float, warm: float, version: str = VERSION) -> Pair:
    seconds: dict[Command, float] = {"plain": plain, "cold": cold, "warm": warm}
    runs = {each: Run(seconds=taken, ended=True, accuracy=0.99) for each, taken in seconds.items()}
    return Pair(cell=cell, runs=runs, at="2026-11-29T10:00:00+00:00", version=version, machine="a machine")


def rendered(tmp_path: Path, pairs: Sequence[Pair]) -> str:
    file = ResultFile(tmp_path / "claim.jsonl", PAIR)
    with file.measuring() as writer:
        for each in pairs:
            writer.begin(each.cell.name)
            writer.append(each)
        writer.begin("one that is killed")
    record = Record("claim", "command", "", "", "")
    table.fill(record, file)
    return "\n".join(line for each in record.tables for line in each.lines())


def test_the_worst_pair_stands_in_the_table_and_a_failure_is_the_worst(tmp_path: Path) -> None:
    failed = pair(BESIDE, 200.0, 20.0, 10.0)
    failed.runs["cold"] = Run(seconds=3.0, ended=False, sentence="RuntimeError: no")
    pairs = [pair(ALONE, 20.0, 10.0, 5.0), pair(ALONE, 20.0, 25.0, 5.0), pair(BESIDE, 200.0, 20.0, 10.0), failed]
    shown = rendered(tmp_path, [*pairs, pair(ALONE, 1.0, 100.0, 100.0, version="0.26.9")])
    assert "| the first training of its kind | 1.40 (0.80 to 2.00) | 5.00 (0.00 to 10.00) |" in shown
    assert "| each further one | 4.00 (4.00 to 4.00) | 20.00 (20.00 to 20.00) |" in shown
    assert "of 12 commands 11 ended in time" in shown
    assert "Did not end as a pair: 1." in shown
    assert "cnn, 1 CPU, one neighbour: cold: RuntimeError: no" in shown


def test_the_readme_shows_what_is_measured_with_its_version_and_the_rest_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (record_module, figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    record = Record("claim", "command", "", "", "")
    file = ResultFile(tmp_path / "claim.jsonl", PAIR)
    with file.measuring() as writer:
        writer.append(pair(ALONE, 20.0, 10.0, 5.0))
        writer.append(pair(BESIDE, 200.0, 20.0, 10.0))
    table.fill(record, file)
    record.write()
    shown = figures.render("<!-- figures: readme -->\n<!-- end of figures -->")
    figure = "2.00 times as long alone, at least 10.00 times beside a busy process"
    assert f"| {figure} |  |  | [{VERSION}](docs/benchmarks.md#claim) |" in shown
    assert "recipe `fast`" not in shown
    headline = figures.render("<!-- figures: lead -->\n<!-- end of figures -->")
    assert f"the first time: {figure} ([{VERSION}](docs/benchmarks.md#claim))." in headline
    other = figures.render("<!-- figures: accuracy -->\n<!-- end of figures -->")
    assert "Not measured yet: `python -m tools.bench.measure accuracy` makes these figures." in other


def test_a_command_whose_time_is_over_is_ended_and_counts_with_that_time() -> None:
    run = run_command([sys.executable, "-c", "import time; time.sleep(60)"], None, {}, 0.2)
    assert not run.ended
    assert run.sentence == "ended after 0.2 s"
    assert 0.2 <= run.seconds < 30


def test_plain_pytorch_has_less_time_beside_a_busy_process_so_that_its_ratio_is_a_lower_bound() -> None:
    assert limit_of("plain", BESIDE) < limit_of("plain", ALONE) == limit_of("cold", BESIDE)


@pytest.mark.slow
def test_plain_pytorch_trains_the_same_and_a_failure_is_a_run() -> None:
    network = Network(dataset="digits", model="cnn", epochs=1, samples=256)
    environment = {**os.environ, "PREFLIGHT_DATA_DIR": "none", "OMP_NUM_THREADS": "1"}
    run = run_command(command_of("plain", network), None, environment, 120.0)
    assert run.ended, run.sentence
    assert run.accuracy is not None
    assert 0 < run.accuracy <= 1
    failed = run_command([sys.executable, "-c", "raise SystemExit('no data')"], None, {}, 60.0)
    assert not failed.ended
    assert failed.sentence == "no data"
    assert "--set train_samples=256 --set validation_samples=0" in " ".join(command_of("warm", network))


def test_figures_are_made_in_pieces_that_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long pieces wait for the next call, those that continue get what is left, and a failure stops no other."""
    ran: list[list[str]] = []

    class Done:
        returncode = 1

    def run(command: list[str], *, check: bool) -> Done:
        assert not check
        ran.append(command[2:])
        return Done()

    monkeypatch.setattr("tools.bench.measure.subprocess.run", run)
    pieces = [Piece("none-a", "a", 5), Piece("none-b", "b now", 60), Piece("none-c", "c", 90, continues=True)]
    assert measure.run(pieces, Deadline.after(30)) == 1
    assert ran == [["tools.bench.a"], ["tools.bench.c", "--minutes", "30.0"]]


def test_figures_are_refused_before_anything_is_measured_where_packages_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "IMAGE_PYTHON", tmp_path / "python")
    monkeypatch.setattr(sys, "argv", ["measure", "web"])
    with pytest.raises(SystemExit):
        measure.main()
    assert "`make bench BENCH=PIECE` installs them" in capsys.readouterr().err


def test_all_figures_take_three_and_a_half_hours_as_is_said() -> None:
    assert sum(piece.minutes for piece in measure.PIECES) <= 210
