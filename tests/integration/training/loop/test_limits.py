"""Limits that change under a real `preflight train` in a real cgroup: it sees them, adapts and goes on."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.files.cgroups import new_cgroup

PREFLIGHT = str(Path(sys.executable).parent / "preflight")
MIB = 1 << 20
Log = Iterator[dict[str, JsonValue]]

pytestmark = pytest.mark.usefixtures("signals_heard")  # the trainings end by SIGINT


@contextmanager
def training(group: Path, directory: Path, *options: str) -> Iterator[Log]:
    """Start a training without an end in a cgroup; yields its log records as they come."""
    command = [
        PREFLIGHT, "train", "--dataset", "digits", "--epochs", "10000", "--calibration-seconds", "2", *options,
    ]  # fmt: skip
    environment = {
        **os.environ,
        **{f"PREFLIGHT_{name}_DIR": str(directory / name) for name in ("DATA", "ARTIFACT", "CACHE", "STATE")},
        "PREFLIGHT_LOG_FORMAT": "json",
        "PREFLIGHT_LOG_LEVEL": "debug",
    }
    enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    process = subprocess.Popen([*enter, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        yield (json.loads(line) for line in process.stderr if line.startswith(b"{"))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130


def until(log: Log, event: str) -> dict[str, JsonValue]:
    """Return the next record of an event."""
    return next(record for record in log if record["event"] == event)


def adapted(log: Log) -> tuple[str, dict[str, JsonValue]]:
    """Return the change of the plan that follows a changed limit: its reason and all of it."""
    record = next(
        record for record in log if record["event"] == "plan_adapted" and "limit was" in str(record["reason"])
    )
    return str(record["reason"]), record


@pytest.fixture
def processors() -> list[int]:
    """Return two processors, for which a training has two threads."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("two threads need two processors")
    return allowed[:2]


@pytest.mark.slow  # tests/unit/training/loop/test_limit_watch.py has the decision
@pytest.mark.usefixtures("processors")
def test_a_lowered_quota_is_told_with_a_new_prediction(tmp_path: Path) -> None:
    """As `docker update --cpus 0.5` does it."""
    with new_cgroup("cpu") as group:
        (group / "cpu.cfs_quota_us").write_text("200000")
        with training(group, tmp_path) as log:
            before = until(log, "calibration_winner")
            until(log, "progress")
            (group / "cpu.cfs_quota_us").write_text("50000")
            reason, record = adapted(log)
            until(log, "epoch_done")
    assert re.match(r"the container's limit was changed from 2 to 0.5 CPU; an epoch should take \S+ s", reason)
    assert record["after"] == 1
    new, old = record["predicted_epoch_s"], before["predicted_epoch_s"]
    assert isinstance(new, float)
    assert isinstance(old, float)
    assert new > old


def test_memory_that_is_taken_away_makes_the_micro_batch_smaller(tmp_path: Path) -> None:
    """Little more than what is in use is left: it goes on in smaller pieces, before or after a kill.

    First it gives back what malloc has kept; where that was enough, more is taken away.
    """
    with new_cgroup("memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(1024 * MIB))
        with training(group, tmp_path, "--no-calibrate", "--batch-size", "256") as log:
            until(log, "progress")
            lowered = [lower(group)]
            seen: list[dict[str, JsonValue]] = []
            for record in log:
                seen.append(record)
                if record["event"] == "progress" and sum(each["event"] == "progress" for each in seen) % 10 == 0:
                    lowered.append(lower(group))
                if record["event"] in ("plan_adapted", "out_of_memory"):
                    break
            until(log, "progress")
    smaller = seen[-1]
    if smaller["event"] == "plan_adapted":
        warnings = [str(record["message"]) for record in seen if record["event"] == "warning"]
        assert any(f" to {limit >> 20} MiB, of which" in warnings[-1] for limit in lowered)
        assert "memory limit was lowered" in warnings[-1]
    assert smaller.get("field", "micro_batch") == "micro_batch"
    assert smaller.get("after", smaller.get("micro_batch")) == 128


def lower(group: Path) -> int:
    """Lower a limit so that a tenth of it is free, and a little more where the kernel cannot."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    limit = int(stat["total_rss"]) * 10 // 9
    while True:
        try:
            (group / "memory.limit_in_bytes").write_text(str(limit // MIB * MIB))
        except OSError:
            limit += 2 * MIB
        else:
            return limit // MIB * MIB
