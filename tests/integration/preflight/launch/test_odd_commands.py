"""`preflight run` on commands that end early, live on, paint the terminal, or have another torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import PREFLIGHT, read_report, run
from support.worker.terminals import Terminal

TRAINS = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    if sys.argv[2:]: open(sys.argv.pop(), "w").close()
"""
PAINTS = """
import os, sys, time
from rich.progress import Progress
print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)
with Progress() as progress:
    task = progress.add_task("training", total=20)
    for _ in range(20):
        time.sleep(0.02)
        progress.advance(task)
print("painted")
"""
COMPILED = """
import torch, time
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
step = torch.compile(optimizer.step)  # also inside of it the hook is called
until = time.monotonic() + 6
while time.monotonic() < until:
    model(torch.randn(256, 64)).sum().backward()
    step()
    optimizer.step()
    optimizer.zero_grad()
from torch._dynamo.utils import counters
print("frames", counters["frames"]["total"] < 40)
"""
NESTED = "preflight was started in it, which tunes its trainings and reports them itself"
OTHER_TORCH = "PREFLIGHT_TEST_OTHER_PYTHON"
"""Interpreter of another environment, with another version of torch and none of our packages."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        (
            "import importlib.util as i; i.find_spec('torch'); import torch; raise SystemExit(3)",
            3,
            "torch was imported, but no optimizer made a step",
        ),
        ("import nothing_of_that_name", 1, "no Python process imported torch"),
        ("import torch, nothing_of_that_name", 1, "torch was imported, but no optimizer made a step"),
    ],
)
def test_a_script_that_ends_before_its_first_step(program: str, code: int, why: str) -> None:
    done = run([sys.executable, "-c", program])
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"preflight: the command ran untouched: {why}"


def test_one_within_another_reports_the_training_and_the_outer_one_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    inner = [PREFLIGHT, "run", "--same-start", "--", sys.executable, str(script), "2"]
    lines = run(inner).stderr.splitlines()
    assert [" steps in " in line for line in lines].count(True) == 1
    assert " steps in " in lines[0]
    assert lines[-1] == f"preflight: the command ran untouched: {NESTED}"


def test_a_training_of_ours_tunes_itself(tmp_path: Path) -> None:
    job = [PREFLIGHT, "train", "--dataset", "digits", "--no-calibrate", "--epochs", "2"]
    done = run(job, variables={"PREFLIGHT_ARTIFACT_DIR": str(tmp_path), "PREFLIGHT_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"preflight: the command ran untouched: {NESTED}"


def test_a_training_that_becomes_a_daemon_is_told_as_far_as_it_is(tmp_path: Path) -> None:
    """As nohup does it in the shell; it is neither waited for nor ended."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    steps = tmp_path / "steps"
    background = f"nohup setsid {sys.executable} {script} 60 {steps} >/dev/null 2>&1 & echo $!"
    shell = f"{background}; while [ ! -e {steps} ]; do sleep 0.1; done"
    done = run(["sh", "-c", shell])
    trainer = int(done.stdout)
    try:
        os.kill(trainer, 0)
        assert f"process {trainer} still trains in the background" in done.stderr
    finally:
        os.kill(trainer, signal.SIGKILL)


def test_a_program_paints_the_terminal_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "paint.py"
    script.write_text(PAINTS)
    terminal = Terminal(
        dict(os.environ), [PREFLIGHT, "run", "-q", "--", sys.executable, str(script)], columns=90, rows=20
    )
    terminal.until("painted")
    assert terminal.end() == 0
    assert "terminal True True 90" in terminal.screen
    assert "100%" in terminal.screen


def test_a_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    """Neither the working directory, nor that of the records, nor the home."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'cd {gone} && rmdir {gone} && exec {PREFLIGHT} run -- sh -c "exit 6"'
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 6
    away = {**os.environ, "PREFLIGHT_CACHE_DIR": "s3://nowhere", "HOME": ""}
    done = subprocess.run(
        [PREFLIGHT, "run", "--", "sh", "-c", "exit 6"], capture_output=True, text=True, check=False, env=away
    )
    assert done.returncode == 6, done.stderr


@pytest.mark.slow
def test_compiled_trainings_keep_their_threads(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    done = run([sys.executable, str(script)], timeout=600)
    assert done.stdout == "frames True\n", done.stderr
    assert "threads were not raced: torch.compile would compile again" in done.stderr


@pytest.mark.slow
def test_another_torch_in_an_environment_without_our_packages(tmp_path: Path) -> None:
    python = os.environ.get(OTHER_TORCH)
    if python is None:
        pytest.skip(f"{OTHER_TORCH} names no interpreter with another torch")
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(TRAINS)
    done = run([python, str(script), "20"], "--json", str(report))
    assert done.returncode == 0
    assert "the tuning stopped" not in done.stderr
    assert '"verdict"' in report.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_next_starts_try_one_setting_after_the_other(tmp_path: Path) -> None:
    """With the real allocators and huge pages of this machine: each start says what it tried."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS.replace("torch.set_num_threads(1)\n", ""))
    tried = []
    for _ in range(5):
        done = subprocess.run(
            [PREFLIGHT, "run", "--json", str(tmp_path / "report.json"), "--", sys.executable, str(script), "40"],
            capture_output=True, text=True, check=True, env={**os.environ, "PREFLIGHT_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if "this start tried" in line]
        tried += said
        assert read_report(tmp_path / "report.json")["status"] == 0
    assert tried
    assert len(tried) == len(set(tried)) or any("disturbed" in line for line in tried)
