"""The installed commands, end to end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from redis import Redis
from support.worker.services import ROOT
from support.worker.shown_output import normalized, shown_output

from training.step.profiler import PHASES

PREFLIGHT = str(Path(sys.executable).parent / "preflight")


@pytest.fixture
def environment(tmp_path: Path, cache_dir: Path) -> dict[str, str]:
    """Temporary directories, and an empty data directory."""
    (tmp_path / "data").mkdir()
    return {
        **os.environ,
        **{f"PREFLIGHT_{name}_DIR": str(tmp_path / name.lower()) for name in ("DATA", "ARTIFACT", "STATE")},
        "PREFLIGHT_CACHE_DIR": str(cache_dir), "TMPDIR": str(tmp_path),
    }  # fmt: skip


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([PREFLIGHT, *arguments], env=environment, capture_output=True, text=True)


def output_of(environment: dict[str, str], *arguments: str) -> str:
    done = run(environment, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_train_reaches_98_9_percent_on_mnist(environment: dict[str, str], mnist_dir: Path) -> None:
    """`preflight train --dataset mnist --model cnn --json` trains one epoch and prints one object."""
    environment["PREFLIGHT_DATA_DIR"] = str(mnist_dir)
    result = json.loads(output_of(environment, "train", "--dataset", "mnist", "--model", "cnn", "--json"))
    names = "test_accuracy train_s samples_per_s predicted_epoch_s measured_epoch_s plan artifact"
    assert set(names.split()) <= set(result)
    assert result["test_accuracy"] >= 0.989
    assert result["epochs"] == 1
    assert (Path(result["artifact"]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_profile_has_the_time_of_each_phase(environment: dict[str, str]) -> None:
    """As a table, in the manifest, and as a trace beside the model; the phases add up to the total."""
    job = ["train", "--dataset", "digits", "--no-calibrate", "--epochs", "2", "--profile"]
    result = json.loads(output_of(environment, *job, "--trace", "--json"))
    profile = result["profile"]
    assert sum(profile[f"{phase}_s"] for phase in PHASES) == pytest.approx(profile["total_s"], rel=1e-3)  # rounded
    assert profile["total_s"] >= result["train_s"]
    assert profile["average_batch_s"] == pytest.approx(profile["total_s"] / profile["steps"])
    assert profile["transfer_s"] == 0
    assert all(profile[f"{phase}_s"] > 0 for phase in PHASES if phase != "transfer")
    artifact = Path(result["artifact"])
    assert json.loads((artifact / "manifest.json").read_text())["metrics"]["profile"] == profile
    assert (artifact / "trace.json.gz").stat().st_size > 0
    table = output_of(environment, *job).splitlines()[-len(PHASES) - 2 :]
    assert [line.split()[0] for line in table] == ["PHASE", *PHASES, "all"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_rare_plan_fields_train(environment: dict[str, str]) -> None:
    """torch.compile, loader workers, micro-batches and one thread reach the same accuracy."""
    knobs = ("compile=true", "loader_workers=1", "prefetch_factor=2", "micro_batch=16", "threads=1", "eval_batch=297")
    plan = [option for knob in knobs for option in ("--set", f"plan.{knob}")]
    job = ["--dataset", "digits", "--batch-size", "32", "--epochs", "3", "--no-calibrate"]
    result = json.loads(output_of(environment, "train", *job, *plan, "--json"))
    assert result["plan"] | {"compile": True, "loader_workers": 1, "micro_batch": 16, "threads": 1} == result["plan"]
    assert result["test_accuracy"] >= 0.9


@pytest.mark.slow
def test_calibrate_prints_the_plan_and_the_reason(environment: dict[str, str]) -> None:
    """As text and as JSON; the first trial is the job's own plan, and the second call hits the cache."""
    command = ["calibrate", "--dataset", "digits", "--set", "plan.threads=1", "--calibration-samples", "4"]
    choice = json.loads(output_of(environment, *command, "--json"))
    assert (choice["source"], choice["cache"]) == ("measured", "miss")
    assert choice["predicted_epoch_s"] > 0
    first_trial = choice["trials"][0]
    assert (first_trial["plan"]["threads"], first_trial["plan"]["precision"]) == (1, "float32")
    assert first_trial["steps"] == 4
    assert "reused from an earlier calibration" in output_of(environment, *command)
    assert "s/epoch" in output_of(environment, *command, "--force-calibration")
    assert "calibration is off" in output_of(environment, *command, "--no-calibrate")


def test_the_demo_trains_mnist(environment: dict[str, str], mnist_dir: Path) -> None:
    """It reaches what `fast` promises, and prints the page's address, plan, model and three next steps that work."""
    text = output_of({**environment, "PREFLIGHT_DATA_DIR": str(mnist_dir), "PREFLIGHT_REPORT": "auto"}, "demo")
    assert "http://127.0.0.1:" in text
    for words in ("cnn-small-cosine on mnist", "Plan chosen", "Epoch 1 took", "model.safetensors", "next steps"):
        assert words in text
    assert float(text.rpartition("test accuracy ")[2].partition("%")[0]) >= 99.0
    shown = shown_output(ROOT / "README.md", "manifest")
    assert shown == [line for line in normalized(text) if line in shown]
    steps = [line.split("  ")[1].split() for line in text.rpartition("next steps")[2].splitlines() if line.strip()]
    assert len(steps) == 3
    subprocess.run([steps[0][0], "--version"], env=environment, check=True)
    for step in steps:
        subprocess.run([*step[:2], "--help"], env=environment, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_the_demo_falls_back_to_digits(environment: dict[str, str]) -> None:
    """Without data and network (a proxy refuses every connection) it trains on scikit-learn's digits."""
    no_network = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment["PREFLIGHT_CACHE_DIR"] = environment["TMPDIR"] + "/cache"
    text = " ".join(output_of({**environment, **no_network}, "demo").split())
    assert "could not be downloaded" in text
    assert "the demo uses scikit-learn's 1,797 digits" in text
    assert "cnn on digits" in text
    assert float(text.rpartition("test accuracy ")[2].partition("%")[0]) >= 90


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize(("moment", "number"), [
    ("redis ", signal.SIGTERM),
    ("Trial of ", signal.SIGINT),
    pytest.param("Trial of ", signal.SIGHUP, marks=pytest.mark.slow),
    pytest.param("Epoch ", signal.SIGTERM, marks=pytest.mark.slow),
])  # fmt: skip
def test_an_interrupted_demo_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """SIGINT, SIGTERM and SIGHUP at any moment stop Redis, worker, supervisor and children."""
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
        assert demo.wait(30) == 130, log.read_text()
    finally:
        if demo.poll() is None:
            demo.terminate()  # it would train forever
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
    """The commands of a job's life, with the exit codes of its outcome."""
    Redis.from_url(redis_url).flushall()
    environment = {**environment, "PREFLIGHT_REDIS_URL": redis_url}
    job = tmp_path / "job.json"
    job.write_text('{"type": "preflight.train.v1", "dataset": "digits", "batch_size": 32, "calibrate": false}')
    preflight = partial(run, environment)
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([PREFLIGHT, "worker"], env=environment, stdout=log, stderr=log)
    try:
        waited = preflight("enqueue", "--file", str(job), "--job-id", "one", "--wait")
        assert waited.returncode == 0, waited.stderr
        assert waited.stdout.startswith("one\n")
        assert "test accuracy" in waited.stdout
        again = preflight("enqueue", "--file", str(job), "--job-id", "one")
        assert (again.returncode, again.stdout) == (0, "one\n")
        assert "exists already" in again.stderr
        assert preflight("watch", "one").returncode == 0

        long = preflight("enqueue", "--file", str(job), "--job-id", "two", "--epochs", "10000")
        assert long.stdout == "two\n"
        cancelled = preflight("cancel", "two")
        assert cancelled.returncode == 0, cancelled.stderr
        assert preflight("watch", "two").returncode == 3
        assert "only a queued or running job" in preflight("cancel", "two").stderr

        refused = preflight("enqueue", "--file", str(job), "--job-id", "three", "--set", "dataset=mnist",
                      "--set", "batch_size=60000", "--set", "validation_samples=1")  # fmt: skip
        assert refused.returncode == 0
        failed = preflight("watch", "three")
        assert failed.returncode == 1
        assert "failed    " in failed.stdout

        listed = {line["job_id"]: line for line in map(json.loads, preflight("jobs", "--json").stdout.splitlines())}
        assert {name: job["status"] for name, job in listed.items()} == {
            "one": "finished", "two": "cancelled", "three": "failed",
        }  # fmt: skip
        assert "one" in preflight("jobs").stdout
        unknown = preflight("watch", "never")
        assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    finally:
        worker.terminate()
        assert worker.wait(30) == 0
