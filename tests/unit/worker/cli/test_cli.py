"""The command line without a service: what it prints, where, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from worker.cli import main
from worker.wire import is_job_id


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


HUGE = "9" * 5_000
DEEP = "[" * 100_000
SPELLINGS = st.one_of(
    st.sampled_from(
        ["", "-", "--", "0", "-1", "1e400", "NaN", "-Infinity", HUGE, f"1.{HUGE}", DEEP, "[" * 900 + "]" * 900,
         f"[{HUGE}]", '{"a":' * 5_000, "\ud800", '"\\ud800"', "\udcff", "a\nb\x1b[31m", "x" * 100_000, "/",
         "..", "/dev/zero",
         "null", "true", "{}", "[]", '""', "mnist,", ",", "." * 5_000, "=", "==", "a=", "=1", "\u202e", "%s%n{}"]
    ),
    st.text(st.characters(exclude_characters="\0"), max_size=30),
    st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5).map(json.dumps),
)  # fmt: skip
"""What a shell may hand over; it hands over no NUL."""
FIELDS = st.sampled_from(
    ["epochs", "plan", "plan.threads", "augmentation", "seed", "a", "type", "dataset", "job_id", ""]
)
OPTIONS = st.one_of(
    st.tuples(
        st.sampled_from(
            ["--dataset", "--recipe", "--model", "--epochs", "--batch-size", "--learning-rate", "--seed", "--job-id",
             "--calibration-samples", "--calibration-seconds", "--knobs", "--set", "--file"]
        ),
        SPELLINGS,
    ).map(lambda pair: f"{pair[0]}={pair[1]}"),
    st.tuples(FIELDS, SPELLINGS).map(lambda pair: f"--set={pair[0]}={pair[1]}"),
)  # fmt: skip


def see_that_it_is_one_sentence(result: Result, *codes: int) -> None:
    assert result.exit_code in codes, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("preflight: "), result.stderr
    assert result.stderr.count("\n") == 1
    assert result.exit_code == 1 or "--debug" not in result.stderr
    assert len(result.stderr) < 3_000


@hypothesis_settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(["train", "enqueue", "calibrate"]), options=st.lists(OPTIONS, max_size=3))
@example("train", [f"--set=a={DEEP}"])
@example("train", [f"--epochs={HUGE}"])
@example("train", ["--set=" + "a." * 3_000 + "b=1"])
@example("enqueue", ["--file=/dev/zero"])
def test_whatever_is_typed_is_refused_in_one_sentence(run: "Runner", command: str, options: list[str]) -> None:
    """Exit code 2 for every spelling of every option of a job; a field that is none sees to it that nothing begins."""
    see_that_it_is_one_sentence(run(command, *options, "--set=no_such_field=1"), 2)


@pytest.mark.parametrize(
    "content", [HUGE, f'{{"epochs": {HUGE}}}', DEEP, '{"a":' * 5_000, '"\\ud800"', "\x00", "{}" * 200_000]
)
def test_a_file_of_anything_is_refused_in_one_sentence(run: "Runner", tmp_path: Path, content: str) -> None:
    """Numbers of thousands of digits, nesting without end, and more than a job may have."""
    (tmp_path / "job.json").write_text(content)
    see_that_it_is_one_sentence(run("train", "--file", str(tmp_path / "job.json")), 2)
    see_that_it_is_one_sentence(run("train", "--file", "-", input=content), 2)


def test_a_file_that_is_no_text_is_refused(run: "Runner", tmp_path: Path) -> None:
    """It is named, and what to do."""
    (tmp_path / "job.json").write_bytes(b"\xff\xfe")
    result = run("train", "--file", str(tmp_path / "job.json"))
    see_that_it_is_one_sentence(result, 2)
    assert "is no text in UTF-8; save it as such" in result.stderr


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(["watch", "cancel"]), job_id=SPELLINGS)
@example("watch", "\udcff")
@example("cancel", "x" * 100_000)
def test_what_is_no_job_id_is_refused_before_redis_is_asked(run: "Runner", command: str, job_id: str) -> None:
    """Here Redis is absent: exit code 1 is for an id that could be one."""
    see_that_it_is_one_sentence(run(command, "--", job_id), 2 - is_job_id(job_id))


@pytest.mark.parametrize("name", ["\udcff", "x" * 100_000, "\n"])
def test_what_is_not_in_quarantine_is_named_briefly(
    run: "Runner", monkeypatch: pytest.MonkeyPatch, redis_url: str, name: str
) -> None:
    """Whatever was typed, cut and escaped."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    see_that_it_is_one_sentence(run("quarantine", "drop", "--", name), 2)
    see_that_it_is_one_sentence(run("cache", "clear", "--", name), 2)


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
