"""The bench of cold jobs: which runs are missing, and a table over every run."""

from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tools.bench import cold
from tools.bench.cold import Run, fill
from tools.bench.lines import ResultFile
from tools.bench.record import Record

VERSION = version("preflight-worker")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultFile[Run]:
    found = ResultFile(tmp_path / "cold.jsonl", TypeAdapter(Run))
    monkeypatch.setattr(cold, "FILE", found)
    return found


def made(kind: str, beside: str, number: int, seconds: float, version: str = VERSION, *, failed: bool = False) -> Run:
    return TypeAdapter(Run).validate_python({
        "kind": kind, "beside": beside, "number": number, "seconds": seconds, "version": version, "failed": failed,
        "at": "2026-01-02T03:04:05", "machine": "a machine",
    })  # fmt: skip


def table(file: ResultFile[Run], runs: list[Run]) -> Record:
    with file.measuring() as writer:
        for run in runs:
            writer.begin("run")
            writer.append(run)
        writer.begin("killed")
    record = Record("calibration-cold", "command", "", "", "")
    fill(record)
    return record


def test_every_run_counts_and_what_is_missing_is_said(file: ResultFile[Run]) -> None:
    """One slow run misses the bound, a failed one takes for ever, and those of an earlier version count no more."""
    fixed = [made("fixed", "1", 0, 20.0), made("fixed", "1", 1, 22.0)]
    runs = [*fixed, made("cold", "1", 0, 25.0), made("cold", "1", 1, 30.1), made("cold", "1", 2, 1.0, "0.0.9")]
    found = table(file, [*runs, made("fixed", "2", 0, 20.0), made("cold", "2", 0, 5.0, failed=True)])
    one, two = found.tables[0].rows
    assert one[3:] == ("1.51x", "1 of 2 within 30.0 s, 18 not made yet", "missed")
    assert two[3:] == ("infx", "0 of 1 within 30.0 s, 9 not made yet", "missed")
    assert found.tables[0].notes == ["Every run counts; 1 failed, and 1 did not end."]
    assert (found.version, found.date, found.machine) == (VERSION, "2026-01-02", "a machine")


def test_two_workers_are_compared_with_one(file: ResultFile[Run]) -> None:
    jobs = [made("jobs", "one worker", 0, 50.0), made("jobs", "one worker", 1, 50.0)]
    found = table(file, [*jobs, made("jobs", "two workers", 0, 60.0)])
    assert found.tables[1].notes == ["Two workers against one: 1.20x, bound 1.05x: missed."]
