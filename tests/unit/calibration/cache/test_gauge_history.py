"""The history of a machine's own speed: bounded, never an error, and what follows from it."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support.calibration.findings import FINDING

from calibration.cache.gauge_history import (
    MAX_AGE,
    MAX_ENTRIES,
    MOST,
    USUAL,
    Gauge,
    add_gauge,
    read_gauges,
    unsteadiness,
)
from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import Signature

HERE = Signature(
    hardware={"model": "a"}, limits={"cores": 1, "quota": 0.5, "memory_bytes": 2 << 30}, software={"torch": "2"},
    workload={"dataset": "mnist", "model": "cnn", "batch_size": 128}, search={},
)  # fmt: skip


def gauges(seconds: list[float], threads: int = 1) -> list[Gauge]:
    return [Gauge(at=time.time(), threads=threads, seconds=each) for each in seconds]


def test_what_is_added_comes_back(tmp_path: Path) -> None:
    """In order, with the directory made, and nothing left beside the file."""
    path = tmp_path / "machines" / "key.json"
    assert read_gauges(path) == ()
    for seconds in (0.004, 0.005):
        add_gauge(path, 2, seconds)
    assert [(gauge.threads, gauge.seconds) for gauge in read_gauges(path)] == [(2, 0.004), (2, 0.005)]
    assert [each.name for each in path.parent.iterdir()] == ["key.json"]


def test_the_file_is_bounded_in_number_and_age(tmp_path: Path) -> None:
    """The newest are kept; what is older than a month, or from a future as far, is not read."""
    path = tmp_path / "key.json"
    for number in range(MAX_ENTRIES + 3):
        add_gauge(path, 1, 1.0 + number)
    kept = read_gauges(path)
    assert (len(kept), kept[0].seconds, kept[-1].seconds) == (MAX_ENTRIES, 4.0, MAX_ENTRIES + 3.0)
    history = json.loads(path.read_text())
    for gauge, age in zip(history["gauges"], (MAX_AGE + 60, -MAX_AGE - 60), strict=False):
        gauge["at"] = time.time() - age
    path.write_text(json.dumps(history))
    assert [gauge.seconds for gauge in read_gauges(path)] == [each.seconds for each in kept[2:]]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff" * 8, b" " * (1 << 17), b'{"schema":"preflight.machine.v0"}',
    b'{"gauges":[{"at":1,"threads":1,"seconds":0}]}', b'{"gauges":[{"at":1,"threads":1,"seconds":"NaN"}]}'],
    ids=["empty", "torn", "garbage", "huge", "other", "zero", "nan"],
)  # fmt: skip
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    """And is replaced by the next calibration."""
    path = tmp_path / "key.json"
    path.write_bytes(content)
    assert read_gauges(path) == ()
    add_gauge(path, 1, 0.5)
    assert [gauge.seconds for gauge in read_gauges(path)] == [0.5]


def test_a_disk_that_takes_no_files_is_no_error(tmp_path: Path) -> None:
    """Nothing is kept then."""
    (tmp_path / "file").touch()
    add_gauge(tmp_path / "file" / "key.json", 1, 0.5)
    assert read_gauges(tmp_path / "file" / "key.json") == ()


def test_of_few_calibrations_a_usual_machine_is_assumed() -> None:
    """None or one say nothing; two that agree speak for a steadier one, two that do not for another."""
    assert unsteadiness([]) == unsteadiness(gauges([0.004])) == pytest.approx(USUAL)
    assert unsteadiness(gauges([0.004, 0.004])) < USUAL < unsteadiness(gauges([0.004, 0.005]))


@pytest.mark.parametrize("deviation", [0.01, 0.04, 0.15])
def test_many_calibrations_tell_how_unsteady_a_machine_is(deviation: float) -> None:
    """Whatever their numbers of threads are, whose speeds differ by themselves."""
    random = Random(1)  # noqa: S311 - dice
    seen = [
        gauge for threads in (1, 2)
        for gauge in gauges([0.004 / threads * math.exp(random.gauss(0, deviation)) for _ in range(30)], threads)
    ]  # fmt: skip
    assert unsteadiness(seen) == pytest.approx(math.hypot(deviation, USUAL / math.sqrt(12)), rel=0.2)


def test_a_machine_that_hung_once_does_not_make_every_prediction_worthless() -> None:
    """A hundred times as long counts as half as long again."""
    assert unsteadiness(gauges([0.004] * 9 + [0.4])) == pytest.approx(math.sqrt((5 * USUAL**2 + MOST**2) / 14))


def test_each_plan_that_is_kept_adds_to_the_history_of_its_machine(tmp_path: Path) -> None:
    """Whatever its workload and memory; another quota is another machine; what was found without a gauge adds none."""
    cache = PlanCache(tmp_path)
    assert cache.unsteadiness(HERE) == pytest.approx(USUAL)
    for number, seconds in enumerate((0.004, 0.006, None)):
        workload = {**HERE.workload, "batch_size": number}
        limits = {**HERE.limits, "memory_bytes": number}
        finding = replace(FINDING, prediction=replace(FINDING.prediction, gauge_s=seconds))
        cache.put(replace(HERE, workload=workload, limits=limits), finding)
    assert cache.unsteadiness(HERE) == pytest.approx(unsteadiness(gauges([0.004, 0.006], FINDING.plan.threads)))
    assert cache.unsteadiness(replace(HERE, limits={**HERE.limits, "quota": 0.75})) == pytest.approx(USUAL)
