"""`preflight run` on real trainings: what it finds, and that it leaves them as they are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pydantic import TypeAdapter
from support import odd_trainings
from support.launching import read_report, run

from preflight.wire import CalibrationTrial, CalibrationWinner, ResourceLimits
from preflight.wire.base import Event

ODD: Final = odd_trainings.__file__
PLAIN: Final = """
import sys, torch
torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    torch.nn.functional.mse_loss(model(torch.randn(256, 64)), torch.randn(256, 1)).backward()
    optimizer.step()
print(*[tensor.double().sum().item() for tensor in model.parameters()])
"""
pytestmark = pytest.mark.timeout(600)  # a dozen trainings, also on a busy machine
Found = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Found]:
    """Train all kinds once; return the output, and what was found about each by its name."""
    folder = tmp_path_factory.mktemp("odd")
    report = folder / "report.json"
    done = run([sys.executable, ODD, str(folder)], "--json", str(report), "-q", timeout=550)
    assert done.returncode == 0, done.stderr
    processes = TypeAdapter(list[dict[str, object]]).validate_python(read_report(report)["processes"])
    by_process = {str(each["pid"]): each for each in processes}
    names = {name: (folder / name).read_text() for name in odd_trainings.CASES}
    return done.stdout, {name: by_process[process] for name, process in names.items() if process in by_process}


def part(found: Found, name: str, key: str) -> dict[str, object]:
    return TypeAdapter(dict[str, object]).validate_python(found[name][key])


def notes(found: Found, name: str) -> str:
    records = TypeAdapter(list[dict[str, object]]).validate_python(found[name]["records"])
    return "; ".join(str(record["message"]) for record in records if record["what"] == "note")


@pytest.mark.slow
def test_each_kind_of_training_runs_and_is_seen(odd: tuple[str, Found]) -> None:
    """Children that load data make no optimizer steps and leave nothing."""
    output, found = odd
    expected = "".join(f"{name} {9 if name == 'killed' else 0}\n" for name in odd_trainings.CASES)
    assert output == expected
    assert set(found) == set(odd_trainings.CASES)
    for name in set(found) - {"killed"}:
        assert part(found, name, "summary")["ended"] is True, name


@pytest.mark.slow
def test_what_is_left_to_the_script(odd: tuple[str, Found]) -> None:
    _, found = odd
    assert "the script sets its threads while it trains" in notes(found, "own_threads")
    assert part(found, "ranks", "start")["reason"] == "it is one of 2 ranks"
    assert part(found, "forked_loader", "start")["reason"] is None


@pytest.mark.slow
def test_steps_are_counted_by_the_optimizer_that_steps_most_seldom(odd: tuple[str, Found]) -> None:
    _, found = odd
    loader = part(found, "forked_loader", "summary")
    assert loader["steps"] == 32
    workload = TypeAdapter(dict[str, object]).validate_python(part(found, "forked_loader", "start")["workload"])
    assert (workload["batch"], workload["workers"]) == (16, 1)
    assert part(found, "own_optimizer", "summary")["steps"] == 30
    summary = part(found, "new_optimizers", "summary")
    assert summary["steps"] == 600
    assert 0 < TypeAdapter(float).validate_python(summary["seconds"]) < 600


@pytest.mark.slow
def test_exact_is_bit_equal_and_the_events_are_those_of_the_contract(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    plain = subprocess.run([sys.executable, str(script), "300"], capture_output=True, text=True, check=True)
    exact = run([sys.executable, str(script), "300"], "--exact")
    assert exact.stdout == plain.stdout
    assert "nothing was raced: --exact changes nothing after the first step" in exact.stderr
    tuned = run([sys.executable, str(script), "6000"], "--log", "--steps", "6000")
    lines = tuned.stderr.splitlines()
    assert any(line.startswith("preflight: 6,000 steps in ") for line in lines)
    events = [json.loads(line) for line in lines if line.startswith("{")]
    kinds: dict[str, type[Event]] = {"resource_limits": ResourceLimits, "calibration_trial": CalibrationTrial,
             "calibration_winner": CalibrationWinner}  # fmt: skip
    for event in events:
        if event["type"] in kinds:
            kinds[event["type"]].model_validate(event)
    assert {"resource_limits", "calibration_trial", "progress"} <= {event["type"] for event in events}
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_the_hook_costs_less_than_5_us_a_step() -> None:
    program = """
import time
from preflight.tuner.hook import TrainingHook
from preflight.tuner.laps import LapClock
clock = LapClock()
class Optimizer: pass
hook = TrainingHook.__new__(TrainingHook)
hook._clock, hook._training, hook._is_off, hook._silent, hook._has_begun = clock, None, False, 0, False
optimizer = Optimizer()
hook._lead = id(optimizer)
def step():
    hook.before_step(optimizer)
    hook.on_step(optimizer)
for _ in range(20_000): step()
began = time.process_time()
for _ in range(100_000): step()
print((time.process_time() - began) / 100_000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5e-6
