"""The real commands, as a person types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PREFLIGHT = str(Path(sys.executable).parent / "preflight")


@pytest.fixture
def environment(tmp_path: Path, cache_dir: Path) -> dict[str, str]:
    """An environment with directories of the test's own and nothing in the data directory."""
    (tmp_path / "data").mkdir()
    return {
        **os.environ,
        "PREFLIGHT_DATA_DIR": str(tmp_path / "data"),
        "PREFLIGHT_ARTIFACT_DIR": str(tmp_path / "artifacts"),
        "PREFLIGHT_CACHE_DIR": str(cache_dir),
        "PREFLIGHT_STATE_DIR": str(tmp_path / "state"),
        "TMPDIR": str(tmp_path),
    }


@pytest.mark.slow
def test_train_reaches_98_9_percent_on_mnist(environment: dict[str, str], mnist_dir: Path) -> None:
    """`preflight train --dataset mnist --model cnn --json`: one object, one epoch, and a model that is that good."""
    done = subprocess.run(
        [PREFLIGHT, "train", "--dataset", "mnist", "--model", "cnn", "--json"],
        env={**environment, "PREFLIGHT_DATA_DIR": str(mnist_dir)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    names = {
        "test_accuracy",
        "train_seconds",
        "samples_per_s",
        "predicted_epoch_s",
        "measured_epoch_s",
        "plan",
        "artifact",
    }
    assert names <= set(result)
    assert result["test_accuracy"] >= 0.989
    assert result["epochs"] == 1
    assert (Path(result["artifact"]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_profile_says_where_the_time_went(environment: dict[str, str]) -> None:
    """As a table, in the manifest, and as a trace beside the model; its phases add up to the time of the epochs."""
    job = [PREFLIGHT, "train", "--dataset", "digits", "--no-calibrate", "--epochs", "2", "--profile"]
    done = subprocess.run([*job, "--trace", "--json"], env=environment, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    profile = result["profile"]
    phases = ("data", "transfer", "forward", "loss", "backward", "optimizer", "validation", "other")
    assert sum(profile[f"{phase}_s"] for phase in phases) == pytest.approx(profile["total_s"])
    assert profile["total_s"] >= result["train_seconds"]
    assert profile["average_batch_s"] == pytest.approx(profile["total_s"] / profile["steps"])
    assert profile["transfer_s"] == 0
    assert all(profile[f"{phase}_s"] > 0 for phase in phases if phase != "transfer")
    artifact = Path(result["artifact"])
    assert json.loads((artifact / "manifest.json").read_text())["metrics"]["profile"] == profile
    assert (artifact / "trace.json.gz").stat().st_size > 0
    shown = subprocess.run(job, env=environment, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines()[-10:]] == ["PHASE", *phases, "all"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_the_plans_rarer_knobs_train_too(environment: dict[str, str]) -> None:
    """torch.compile, loader workers, micro-batches, one thread: another way to the same accuracy."""
    knobs = ("compile=true", "loader_workers=1", "prefetch_factor=2", "micro_batch=16", "threads=1", "eval_batch=297")
    plan = [option for knob in knobs for option in ("--set", f"plan.{knob}")]
    job = ["--dataset", "digits", "--batch-size", "32", "--epochs", "3", "--no-calibrate"]
    done = subprocess.run(
        [PREFLIGHT, "train", *job, *plan, "--json"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["plan"] | {"compile": True, "loader_workers": 1, "micro_batch": 16, "threads": 1} == result["plan"]
    assert result["test_accuracy"] >= 0.9


@pytest.mark.slow
def test_calibrate_prints_the_plan_and_why(environment: dict[str, str]) -> None:
    """As text and as one JSON object; the first trial is the user's own plan, and the second call is a cache hit."""
    command = [PREFLIGHT, "calibrate", "--dataset", "digits", "--set", "plan.threads=1", "--calibration-samples", "4"]
    first = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=True)
    choice = json.loads(first.stdout)
    assert (choice["source"], choice["cache"]) == ("measured", "miss")
    assert choice["predicted_epoch_s"] > 0
    first_trial = choice["trials"][0]
    assert (first_trial["plan"]["threads"], first_trial["plan"]["precision"]) == (1, "float32")
    assert first_trial["steps"] == 4
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "measured here before" in second.stdout
    forced = subprocess.run(
        [*command, "--force-calibration"], env=environment, capture_output=True, text=True, check=True
    )
    assert "s/epoch" in forced.stdout
    own = subprocess.run([*command, "--no-calibrate"], env=environment, capture_output=True, text=True, check=True)
    assert "calibration is off" in own.stdout


def test_the_demo_trains_mnist(environment: dict[str, str], mnist_dir: Path) -> None:
    """From the data directory to >= 98.9 %, with the plan, the place of the model and what to type next."""
    done = subprocess.run(
        [PREFLIGHT, "demo"], env={**environment, "PREFLIGHT_DATA_DIR": str(mnist_dir)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("cnn on mnist", "plan ", "epoch ", "test accuracy", "model.safetensors", "what to type next"):
        assert words in done.stdout
    accuracy = float(done.stdout.rpartition("test accuracy ")[2].partition("%")[0])
    assert accuracy >= 98.9
    (said,) = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" doctor")]
    subprocess.run([said, "--version"], env=environment, check=True)


@pytest.mark.slow
def test_the_demo_falls_back_to_digits(environment: dict[str, str]) -> None:
    """Without data and network it says so in one sentence, and trains on scikit-learn's digits.

    The proxy refuses every connection: the machine that runs this may have a network.
    """
    no_network = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment["PREFLIGHT_CACHE_DIR"] = environment["TMPDIR"] + "/cache"
    done = subprocess.run([PREFLIGHT, "demo"], env={**environment, **no_network}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = " ".join(done.stdout.split())
    assert "could not be downloaded" in told
    assert "the demo goes on with scikit-learn's 1,797 digits" in told
    assert "cnn on digits" in told
    assert float(told.rpartition("test accuracy ")[2].partition("%")[0]) >= 90


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("redis ", signal.SIGTERM),
        ("trial ", signal.SIGINT),
        ("trial ", signal.SIGHUP),
        pytest.param("epoch ", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """Ctrl-C, SIGTERM or a closed terminal at any moment ends Redis, worker, supervisor and children."""
    log = tmp_path / "demo.log"
    job = ["--set", "dataset=digits", "--set", "batch_size=32", "--epochs", "10000", "--force-calibration",
           "--calibration-seconds", "5"]  # fmt: skip
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [PREFLIGHT, "demo", *job], env={**environment, "COLUMNS": "200"}, stdout=output, stderr=output
        )
    seen: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + 60
    try:
        while moment not in log.read_text():
            assert demo.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            seen |= {process.pid: process for process in descendants(demo.pid)}
            time.sleep(0.02)
        seen |= {process.pid: process for process in descendants(demo.pid)}
        demo.send_signal(number)
        assert demo.wait(30) == 130
    finally:
        if demo.poll() is None:
            demo.terminate()  # else it would train for ever
    assert "interrupted" in log.read_text()
    _, alive = psutil.wait_procs(list(seen.values()), timeout=10)
    assert alive == []


def descendants(pid: int) -> Iterator[psutil.Process]:
    try:
        yield from psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return


@pytest.mark.slow
def test_enqueue_watch_jobs_cancel(environment: dict[str, str], redis_url: str, tmp_path: Path) -> None:
    """A job's whole life through the commands, each with the exit code of its outcome."""
    from redis import Redis

    Redis.from_url(redis_url).flushall()
    environment = {**environment, "PREFLIGHT_REDIS_URL": redis_url}
    (tmp_path / "job.json").write_text(
        '{"type": "preflight.train.v1", "dataset": "digits", "model": "cnn", "batch_size": 32, "calibrate": false}'
    )

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([PREFLIGHT, *arguments], env=environment, capture_output=True, text=True)

    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([PREFLIGHT, "worker"], env=environment, stdout=log, stderr=log)
    try:
        waited = run("enqueue", "--file", str(tmp_path / "job.json"), "--job-id", "one", "--wait")
        assert waited.returncode == 0, waited.stderr
        assert waited.stdout.startswith("one\n")
        assert "test accuracy" in waited.stdout
        again = run("enqueue", "--file", str(tmp_path / "job.json"), "--job-id", "one")
        assert (again.returncode, again.stdout) == (0, "one\n")
        assert "was there already" in again.stderr
        assert run("watch", "one").returncode == 0

        long = run("enqueue", "--file", str(tmp_path / "job.json"), "--job-id", "two", "--epochs", "10000")
        assert long.stdout == "two\n"
        cancelled = run("cancel", "two")
        assert cancelled.returncode == 0, cancelled.stderr
        assert run("watch", "two").returncode == 3
        assert "only a queued or running job" in run("cancel", "two").stderr

        refused = run("enqueue", "--file", str(tmp_path / "job.json"), "--job-id", "three", "--set", "dataset=mnist",
                      "--set", "batch_size=60000", "--set", "validation_samples=1")  # fmt: skip
        assert refused.returncode == 0
        failed = run("watch", "three")
        assert failed.returncode == 1
        assert "failed    " in failed.stdout

        listed = {line["job_id"]: line for line in map(json.loads, run("jobs", "--json").stdout.splitlines())}
        assert {name: job["status"] for name, job in listed.items()} == {
            "one": "finished", "two": "cancelled", "three": "failed",
        }  # fmt: skip
        assert "one" in run("jobs").stdout
        unknown = run("watch", "never")
        assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    finally:
        worker.terminate()
        assert worker.wait(30) == 0
