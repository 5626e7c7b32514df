"""The command line without a service: what it prints, where, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from worker.cli import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Runner":
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", f"unix://:hunter2@{tmp_path}/no.sock")
    for name in ("DATA", "ARTIFACT", "CACHE"):
        monkeypatch.setenv(f"PREFLIGHT_{name}_DIR", str(tmp_path / name.lower()))
    return Runner()


class Runner:
    """Runs the command line in this process."""

    def __call__(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=input)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "0"], "epochs is 0, but must be at least 1"),
        (["--epochs", "three"], "epochs is 'three', but must be a whole number"),
        (["--epochs", "true"], "epochs is True, but must be a whole number"),
        (["--dataset", "minst"], "did you mean 'mnist'"),
        (["--model", "cmn"], "did you mean 'cnn'"),
        (["--job-id", "../x"], "job_id is '../x'"),
        (["--set", "epoch=3"], "did you mean 'epochs'"),
        (["--set", "epochs"], "is not FIELD=VALUE"),
        (["--set", "augmentation.rotate=3"], "did you mean 'rotate_degrees'"),
        (["--set", "epochs.x=3"], "did you mean"),
        (["--calibration-samples", "0"], "calibration_samples is 0, but must be at least 1"),
        (["--file", "nothing.json"], "--file nothing.json cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["train", "enqueue", "calibrate"])
def test_bad_input_is_one_sentence_and_exit_2(run: "Runner", command: str, arguments: list[str], words: str) -> None:
    """On stderr, for every command that takes a job; nothing is started and no Redis is asked."""
    if arguments == ["--set", "epochs.x=3"]:
        words = "epochs is {'x': 3}, but must be a whole number"
    result = run(command, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_job_is_refused(run: "Runner", tmp_path: Path) -> None:
    """Neither broken JSON nor a list."""
    (tmp_path / "broken").write_text("{")
    (tmp_path / "list").write_text("[]")
    assert "is not JSON" in run("train", "--file", str(tmp_path / "broken")).stderr
    assert "holds no JSON object" in run("train", "--file", str(tmp_path / "list")).stderr


def test_a_file_and_flags_go_together(run: "Runner", tmp_path: Path) -> None:
    """Flags change what the file says."""
    (tmp_path / "job.json").write_text('{"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}')
    result = run("train", "--file", str(tmp_path / "job.json"), "--epochs", "0")
    assert "epochs is 0" in result.stderr
    result = run("train", "--file", "-", input='{"dataset": "digits"}')
    assert "type is None, but this version reads" in result.stderr


def test_a_failure_is_one_sentence_and_exit_1(run: "Runner") -> None:
    """An absent Redis: no traceback, no password."""
    for arguments in (["jobs"], ["enqueue"], ["watch", "j"], ["cancel", "j"]):
        result = run(*arguments)
        assert result.exit_code == 1, arguments
        assert result.stderr.startswith("preflight: ")
        assert result.stderr.count("\n") == 1
        assert "hunter2" not in result.output


def test_debug_shows_the_traceback(run: "Runner") -> None:
    """And only then."""
    assert run("--debug", "train", "--epochs", "0").exception is not None
    assert type(run("--debug", "train", "--epochs", "0").exception).__name__ == "InvalidConfig"


def test_doctor_finds_what_would_fail(run: "Runner") -> None:
    """No Redis: exit code 1 and a line that says so; everything else is looked at all the same."""
    result = run("doctor", "--json")
    findings = {line["name"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 1
    assert findings["redis"]["status"] == "fail"
    assert "hunter2" not in result.output
    assert findings["torch"]["status"] == "ok"
    assert findings["cpu"]["status"] == "ok"
    assert {"bytecode", "memory", "data_dir", "artifact_dir", "cache_dir", "data", "torchvision"} <= set(findings)
    assert "fail  redis" in run("doctor").stdout


def test_doctor_is_content_where_all_is_well(run: "Runner", monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    """With a Redis nothing fails, and the exit code is 0."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    result = run("doctor")
    assert result.exit_code == 0, result.stdout


@pytest.mark.usefixtures("run")
def test_doctor_warns_of_what_is_compiled_anew(tmp_path: Path) -> None:
    """A cache of bytecode that is empty and must stay so; a process of its own, as torch may be imported here."""
    kept_nowhere = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "worker.cli", "doctor"]
    done = subprocess.run(command, env={**os.environ, **kept_nowhere}, capture_output=True, text=True)
    assert "warn  bytecode            there is no bytecode of torch" in done.stdout


def test_doctor_names_a_directory_that_cannot_be_written(
    run: "Runner", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Artifacts below a regular file: nothing could ever be written there."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFLIGHT_ARTIFACT_DIR", str(tmp_path / "file" / "artifacts"))
    assert "fail  artifact_dir" in run("doctor").stdout


def test_help_lists_the_commands(run: "Runner") -> None:
    """All of them."""
    for command in ("worker", "enqueue", "watch", "jobs", "cancel", "train", "calibrate", "cache", "doctor", "demo"):
        assert command in run("--help").stdout
        assert run(command, "--help").exit_code == 0


def test_the_module_runs_as_the_command_does() -> None:
    """`python -m worker.cli` is what the demo and the tests start workers with."""
    done = subprocess.run([sys.executable, "-P", "-m", "worker.cli", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("preflight, version ")
