"""The command line without a service: output, streams and exit codes."""

import json
import re
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from support.worker.command_line import assert_one_sentence, named_command, run

from preflight.cli.app import main
from preflight.cli.arguments import parse_job_options
from preflight.redis.server.embedded import redis_server
from preflight.wire import OwnPlan, TrainJob, is_job_id

pytestmark = pytest.mark.usefixtures("command_environment")
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
"""Anything a shell can pass: no NUL."""
FIELDS = st.sampled_from(
    ["epochs", "plan", "plan.threads", "augmentation", "seed", "a", "type", "dataset", "job_id", ""]
)
OPTIONS = st.one_of(
    st.tuples(
        st.sampled_from(
            ["--dataset", "--recipe", "--model", "--epochs", "--batch-size", "--learning-rate", "--seed", "--job-id",
             "--calibration-samples", "--calibration-seconds", "--knobs", "--workers", "--set",
             "--file"]
        ),
        SPELLINGS,
    ).map(lambda pair: f"{pair[0]}={pair[1]}"),
    st.tuples(FIELDS, SPELLINGS).map(lambda pair: f"--set={pair[0]}={pair[1]}"),
)  # fmt: skip


@pytest.mark.parametrize(("command", "arguments", "words"), [
    ("train", ["--epochs", "0"], "epochs is 0, but must be at least 1"),
    ("calibrate", ["--epochs", "three"], "epochs is 'three', but must be a whole number"),
    ("enqueue", ["--dataset", "minst"], "did you mean 'mnist'"),
    ("train", ["--job-id", "../x"], "job_id is '../x'"),
    ("enqueue", ["--set", "epoch=3"], "did you mean 'epochs'"),
    ("train", ["--set", "epochs"], "is not FIELD=VALUE"),
    ("calibrate", ["--set", "augmentation.rotate=3"], "did you mean 'rotate_degrees'"),
    ("train", ["--set", "epochs.x=3"], "epochs is {'x': 3}, but must be a whole number"),
    ("enqueue", ["--workers", "3-2"], "min may be at most max, 2"),
    ("train", ["--workers", "2-"], "workers is '2-', but must be a whole number at least 1 and at most 64"),
    ("enqueue", ["--workers", '{"min": 2}'], "workers.max is missing; add it"),
    ("calibrate", ["--calibration-seconds", "long"], "calibration_seconds is 'long', but must be a number"),
    ("train", ["--knobs", "threads,precison"], "did you mean 'precision'"),
    ("calibrate", ["--knobs", ""], "calibration_knobs.0 is ''"),
    ("train", ["--file", "nothing.json"], "--file nothing.json cannot be read"),
    ("enqueue", ["--file", "/"], "--file / cannot be read (Is a directory)"),
])  # fmt: skip
def test_invalid_job_options_exit_with_2(command: str, arguments: list[str], words: str) -> None:
    """One sentence on stderr for every command that takes a job; nothing is started and Redis is not asked."""
    assert words in assert_one_sentence(run(command, *arguments), 2)


@hypothesis_settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(["train", "enqueue", "calibrate"]), options=st.lists(OPTIONS, max_size=3))
@example("train", [f"--set=a={DEEP}"])
@example("train", [f"--epochs={HUGE}"])
@example("train", ["--set=" + "a." * 3_000 + "b=1"])
@example("enqueue", ["--file=/dev/zero"])
@example("train", ["--file=\ud800"])
def test_any_option_value_is_rejected_in_one_sentence(command: str, options: list[str]) -> None:
    """Exit code 2 for any value of any job option; an unknown field makes sure that nothing starts."""
    assert_one_sentence(run(command, *options, "--set=no_such_field=1"), 2)


@pytest.mark.parametrize(
    ("workers", "bounds"), [("2", (2, 2)), ("1-4", (1, 4)), ("2-2", (2, 2)), ('{"min": 1, "max": 3}', (1, 3))]
)
def test_workers_are_a_number_or_a_range(workers: str, bounds: tuple[int, int]) -> None:
    job = parse_job_options({"file": None, "dataset": "digits", "workers": workers})
    assert (job.group.min, job.group.max) == bounds


@pytest.mark.parametrize(("content", "words"), [
    (HUGE, ""), (f'{{"epochs": {HUGE}}}', ""), (DEEP, "is not JSON"), ('{"a":' * 5_000, "is not JSON"),
    ('"\\ud800"', "is not a JSON object"), ("\x00", "is not JSON"), ("{}" * 200_000, "has more than"),
    ("{", "is not JSON"), ("[]", "is not a JSON object"),
])  # fmt: skip
def test_a_file_without_a_job_is_rejected_in_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    """Numbers of thousands of digits, deep nesting, and more characters than a job may have, from file and stdin."""
    (tmp_path / "job.json").write_text(content)
    for result in (run("train", "--file", str(tmp_path / "job.json")), run("train", "--file", "-", input=content)):
        assert words in assert_one_sentence(result, 2)


def test_a_binary_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_bytes(b"\xff\xfe")
    error = assert_one_sentence(run("train", "--file", str(tmp_path / "job.json")), 2)
    assert "is not UTF-8 text; save it as UTF-8" in error


def test_options_override_the_file(tmp_path: Path) -> None:
    """A file has no default type."""
    (tmp_path / "job.json").write_text('{"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}')
    assert "epochs is 0" in run("train", "--file", str(tmp_path / "job.json"), "--epochs", "0").stderr
    result = run("train", "--file", "-", input='{"dataset": "digits"}')
    assert "type is None, but this version reads" in result.stderr


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(["watch", "cancel"]), job_id=SPELLINGS)
@example("watch", "\udcff")
@example("cancel", "x" * 100_000)
def test_a_malformed_job_id_is_rejected_before_redis_is_asked(command: str, job_id: str) -> None:
    """Redis is absent here: exit code 1 is for a well-formed id."""
    assert_one_sentence(run(command, "--", job_id), 2 - is_job_id(job_id))


@pytest.mark.parametrize("arguments", [["jobs"], ["enqueue"], ["watch", "j"], ["cancel", "j"]])
def test_an_absent_redis_exits_with_1(arguments: list[str]) -> None:
    assert "hunter2" not in assert_one_sentence(run(*arguments), 1)


COMMANDS_OF_REDIS = [
    ["jobs"], ["enqueue"], ["watch", "j"], ["cancel", "j"], ["retry", "j"], ["quarantine", "list"],
    ["quarantine", "drop", "j"],
]  # fmt: skip


def test_redis_away_is_the_same_sentence_in_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it should be, what is wrong, what to do; `doctor` says so too."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", f"unix://{tmp_path}/nowhere")
    monkeypatch.setenv("PREFLIGHT_REDIS_WAIT", "0.1")
    said = {assert_one_sentence(run(*arguments), 1) for arguments in COMMANDS_OF_REDIS}
    (sentence,) = said | {run("worker", "--burst").stderr}  # which logs its wait on stdout
    assert sentence.startswith(f"preflight: Redis at unix://{tmp_path}/nowhere cannot be reached (")
    assert sentence.endswith("); set REDIS_URL or start Redis\n")
    assert sentence.removeprefix("preflight: ") in run("doctor").stdout


def test_help_has_types_bounds_and_defaults() -> None:
    """Those of the wire format; `--fields` lists all of them, also those that only `--set` takes."""
    text = " ".join(run("train", "--help", "all").stdout.split())
    assert "--epochs INTEGER Passes over the training samples. [1 to 10,000; default: 1]" in text
    assert "--learning-rate NUMBER Peak learning rate. [above 0 to 100; default: 0.005]" in text
    result = run("train", "--fields")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    schema = TrainJob.model_json_schema()
    names = {*schema["properties"]} - {"type", "plan", "augmentation"}
    inner = {f"plan.{name}" for name in OwnPlan.model_fields}
    assert names | inner <= {*rows}
    assert {"augmentation.rotate_degrees", "augmentation.morphology_kernel"} <= {*rows}
    assert "0 to below 1" in rows["momentum"]
    assert "adamw, sgd, muon" in rows["optimizer"]
    assert "0 to 1,000,000 " in rows["gradient_clip"]
    assert all(len(re.split("  +", line)) >= 4 for line in rows.values())  # name, type, default, and what it is
    for command in ("enqueue", "calibrate", "profile"):
        assert run(command, "--fields").stdout == result.stdout


def test_debug_raises_the_exception() -> None:
    assert type(run("--debug", "train", "--epochs", "0").exception).__name__ == "InvalidConfig"
    assert type(run("train", "--epochs", "0").exception).__name__ == "SystemExit"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["enqueue", "train", "calibrate", "profile", "demo"])
def test_the_help_of_a_job_fits_a_screen(command: str) -> None:
    """The options that people need first; `all` has the others, and -h is the same."""
    lines = run(command, "--help").stdout.splitlines()
    assert len(lines) <= 36
    assert "--dataset NAME" in (text := "\n".join(lines))
    assert "[default: mnist]" in text
    assert "--learning-rate" not in text
    assert f"{command} --help all` lists " in lines[-1]
    again = run(command, "-h")
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines() == lines
    every = run(command, "-h", "all")
    assert every.exit_code == 0
    assert "--learning-rate NUMBER" in every.stdout
    assert "--help all" not in every.stdout


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    names = main.list_commands(click.Context(main))
    assert {"jobs", "watch", "train", "serve"} <= set(names)
    for name in names:
        assert f"  {name}" in text
        assert not named_command(name).get_short_help_str(limit=65).endswith("...")
        assert run(name, "--help").exit_code == 0


@pytest.mark.parametrize(("setting", "words"), [
    ("maxmemory 1", "is full (command not allowed when used memory > 'maxmemory'); raise its maxmemory"),
    ("replicaof", "is a read-only replica (its role is replica); set REDIS_URL to the address"),
    ("min-replicas-to-write 1", "takes no writes, as it has too few replicas (NOREPLICAS"),
    ("requirepass another", "refuses the password (Authentication required); correct user and password, in REDIS_URL"),
])  # fmt: skip
def test_a_redis_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch, setting: str, words: str) -> None:
    """For a producer: the address, what is wrong and what to do; exit code 1."""
    with redis_server() as url, Redis.from_url(url) as connection:
        monkeypatch.setenv("PREFLIGHT_REDIS_URL", url)
        if setting == "replicaof":
            connection.replicaof("127.0.0.1", "1")
        else:
            connection.config_set(*setting.split())
        sentence = assert_one_sentence(run("enqueue", "--dataset", "mnist"), 1)
    assert sentence.startswith(f"preflight: Redis at {url} {words}")
