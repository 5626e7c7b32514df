"""The checks of services: each yields its findings, with their bounds."""

import http
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from tools.bench.containers.host import Check, Host, Row, number
from tools.bench.containers.stack import ANSWER, IMAGE, ROOT, Answer, Failed, Stack, wait_for
from tools.bench.record import samples
from worker.cli.diagnosis.health import HEARTBEAT_TIMEOUT

UP_WITHIN: Final = 10.0
"""Seconds from `docker compose up` until a job is accepted."""
CHECKPOINT_SECONDS: Final = 15.0
"""Seconds between two checkpoints of `cnn`; see PREFLIGHT_CHECKPOINT_SECONDS."""
REDEPLOY_SLACK: Final = 5.0
"""Seconds that a redeploy may cost in addition to the training that is done again."""
MOST_LINES: Final = 500
"""Log lines a second from which on Railway drops them."""
AT_FULL_SPEED: Final = 0.95
"""Least share of the samples a second without a memory limit."""
LIMITS: Final[Sequence[tuple[float, str]]] = ((0.5, "512m"), (1, "1g"), (2, "2g"))
MIB: Final = {"512m": 512, "1g": 1024, "2g": 2048}
FIXED: Final[Mapping[str, JsonValue]] = {"calibrate": False, "plan": {"threads": 1}}
SHORT: Final[Mapping[str, JsonValue]] = {**FIXED, "model": "cnn", "validation_samples": 50_000, "epochs": 1}
"""A job that is mostly its start."""


def limits(host: Host) -> Iterator[Row]:
    """Train a job from nothing under each limit; yield the chosen threads, and whether memory stayed below it."""
    for cpus, memory in LIMITS:
        with host.stack("limits", cpus, memory) as stack:
            name = f"{cpus:g} CPU, {memory}"
            began = time.monotonic()
            stack.compose("up", "-d")
            stack.enqueue("one", model="cnn", epochs=1)
            took = time.monotonic() - began
            yield Row(f"{name}: up to the first job accepted", f"{took:.1f} s", f"{UP_WITHIN:g} s", took <= UP_WITHIN)
            state = stack.ended("one")
            events = stack.events("one")
            config = next(event for event in events if event["type"] == "training_config")
            found = next(event for event in events if event["type"] == "resource_limits")
            threads, seen = number(config["threads"]), number(found["memory_mib"])
            used = max(number(event["used_memory_mib"]) for event in events if "used_memory_mib" in event)
            most = max(1, -(-cpus // 1))
            yield Row(f"{name}: threads", f"{threads:g}", f"at most {most:g}", threads <= most)
            yield Row(f"{name}: limit that the worker saw", f"{seen:g} MiB", f"{MIB[memory]} MiB", seen == MIB[memory])
            yield Row(f"{name}: most memory in use", f"{used:g} MiB", f"below {MIB[memory]} MiB", used < MIB[memory])
            yield Row(
                f"{name}: trained", f"{number(state['samples_per_s']):,.0f} samples/s, test accuracy "
                f"{number(state['test_accuracy']):.2%}", "finished", True,
            )  # fmt: skip
            if memory == "1g":
                yield from _hardened(stack)
                yield from _log_rate(stack)


def _hardened(stack: Stack) -> Iterator[Row]:
    """Check the rights of each service from inside."""
    for service in ("redis", "worker", "web"):
        status = stack.inside(service, "cat", "/proc/1/status").out
        uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
        capabilities = re.search(r"^CapEff:\s+(\w+)", status, re.MULTILINE)
        new = re.search(r"^NoNewPrivs:\s+(\d)", status, re.MULTILINE)
        if uid is None or capabilities is None or new is None:
            raise Failed(f"{service} has no /proc/1/status")
        written = stack.inside(service, "touch", "/usr/hello").code == 0
        good = uid[1] != "0" and int(capabilities[1], 16) == 0 and new[1] == "1" and not written
        found = f"uid {uid[1]}, capabilities {capabilities[1]}, root {'writable' if written else 'read-only'}"
        yield Row(f"{service}: rights", found, "not root, none, read-only", good)
    ports = stack.docker("port", stack.container("redis"))
    yield Row("redis: published ports", ports or "none", "none", not ports)
    yield Row("web: published at", published := stack.docker("port", stack.container("web")), "127.0.0.1",
              "127.0.0.1" in published)  # fmt: skip
    for service in ("worker", "web"):
        done = stack.inside(service, "preflight", "health")
        yield Row(f"{service}: health", (done.out or done.err).strip(), "exit code 0", done.code == 0)


def _log_rate(stack: Stack) -> Iterator[Row]:
    lines = stack.docker.run("logs", stack.container("worker")).out.splitlines()
    seconds = Counter(str(ANSWER.validate_json(line)["ts"])[:19] for line in lines if line.startswith("{"))
    most = max(seconds.values())
    yield Row("worker: most log lines in a second", f"{most}", f"{MOST_LINES}", most < MOST_LINES)


def full_speed(host: Host) -> Iterator[Row]:
    """Compare `cnn` with 1 CPU and 1 GiB with 1 CPU and all memory, in turns."""
    ratios = [_samples_per_second(host, "--memory", "1g") / _samples_per_second(host) for _ in range(3)]
    yield Row("1 CPU with 1 GiB against all memory, cnn", str(samples(ratios, ".2f")), f"{AT_FULL_SPEED:g}",
              statistics.median(ratios) >= AT_FULL_SPEED)  # fmt: skip


def _samples_per_second(host: Host, *limits: str) -> float:
    printed = host.docker(
        "run", "--rm", "--network", "none", "--cpus", "1", *limits, "-v", f"{host.data}:/data/datasets:ro", IMAGE,
        "train", "--dataset", "mnist", "--model", "cnn", "--epochs", "1", "--no-calibrate", "--set", "plan.threads=1",
        "--set", "validation_samples=40000", "--json",
    )  # fmt: skip
    return number(ANSWER.validate_json(printed.splitlines()[-1])["samples_per_s"])


def redeploy(host: Host) -> Iterator[Row]:
    """Remove a worker's container in the middle of a training, and start another one."""
    with host.stack("redeploy", 1, "1g") as stack:
        stack.compose("up", "-d")
        bound = CHECKPOINT_SECONDS + REDEPLOY_SLACK
        for strike, name in (("kill", "SIGKILL at once"), ("stop", "SIGTERM")):
            stack.enqueue(strike, model="cnn", epochs=40, **FIXED)
            cost, resumed = _struck(stack, strike)
            yield Row(f"redeploy with {name}: back where it was", f"{cost:.1f} s later, resumed {resumed} times",
                      f"{bound:g} s", cost <= bound and resumed == 1)  # fmt: skip
            status, answer = stack.ask("POST", f"/v1/jobs/{strike}/cancel", {})
            if status != http.HTTPStatus.ACCEPTED:
                raise Failed(f"the cancellation was answered with {status}: {answer}")
            _wait_for_status(stack, strike, "cancelled")


def _struck(stack: Stack, job_id: str) -> tuple[float, int]:
    """Replace the worker that trains `job_id`: seconds until the training is where it was, and how often it resumed."""
    events = stack.watched(job_id)
    wait_for(lambda: any(event["type"] == "checkpoint_saved" for event in events), "a checkpoint", within=120)
    time.sleep(CHECKPOINT_SECONDS / 2)
    old, struck = stack.container("worker"), time.time()
    stack.docker(job_id, old)
    stack.docker("rm", "-f", old)
    stack.compose("up", "-d", "worker")
    wait_for(lambda: _caught_up(events) is not None, "the training to be where it was", within=120)
    return (_caught_up(events) or struck) - struck, sum(event["type"] == "job_resumed" for event in events)


def _caught_up(events: Sequence[Answer]) -> float | None:
    """Return when the training was where it had been when it was struck; None while it is not."""
    places = [
        (number(event["ts"]), number(event["attempt"]), (number(event["epoch"]), number(event["step"])))
        for event in tuple(events) if event["type"] == "progress"
    ]  # fmt: skip
    before = max((place for at, attempt, place in places if attempt == 1), default=None)
    return next((at for at, attempt, place in places if attempt > 1 and before and place >= before), None)


def _wait_for_status(stack: Stack, job_id: str, status: str) -> None:
    wait_for(lambda: stack.state(job_id)["status"] == status, f"{job_id} to be {status}", within=60)


def redis_restart(host: Host) -> Iterator[Row]:
    """Kill Redis while a job trains and another one waits: both are trained, each once."""
    with host.stack("restart", 1, "512m") as stack:
        stack.compose("up", "-d")
        stack.enqueue("trains", **{**SHORT, "epochs": 10})
        stack.enqueue("waits", **SHORT)
        _wait_for_status(stack, "trains", "running")
        time.sleep(2)  # the file is synchronized once a second
        redis = stack.container("redis")
        stack.inside("redis", "sh", "-c", "kill -9 $(pidof redis-server)")
        stack.docker("start", redis)  # which Docker's restart policy does by itself, and Podman's does not
        attempts = [number(stack.ended(name)["attempt"]) for name in ("trains", "waits")]
        found = ", ".join(f"{each:g}" for each in attempts)
        yield Row("Redis killed while a job trains and one waits: attempts of each", found, "1, 1", found == "1, 1")


def out_of_memory(host: Host) -> Iterator[Row]:
    """Run a job whose first batch does not fit; the container must live on, and the job with a smaller one."""
    with host.stack("memory", 1, "512m") as stack:
        stack.compose("up", "-d")
        stack.enqueue("big", model="cnn", epochs=1, batch_size=4096, validation_samples=40_000,
                      calibrate=False, plan={"threads": 1, "micro_batch": 4096})  # fmt: skip
        worker = stack.container("worker")
        state = stack.ended("big")
        kills = [event for event in stack.events("big") if event["type"] == "out_of_memory"]
        last = f"{number(kills[-1]['micro_batch']):g}" if kills else "none"
        same = stack.containers("worker") == [worker]
        yield Row("512m, micro-batch 4096: kills for memory", f"{len(kills)}, then micro-batch {last}",
                  "at least 1, then trained", bool(kills) and state["status"] == "finished")  # fmt: skip
        yield Row("the worker's container after it", "the same" if same else "another", "the same", same)
        stack.enqueue("next", **SHORT)
        stack.ended("next")
        yield Row("the next job there", "finished", "finished", True)


def scale(host: Host) -> Iterator[Row]:
    """Run nine jobs by three workers that share their volumes."""
    with host.stack("scale", 0.6, "512m") as stack:
        stack.compose("up", "-d", "--scale", "worker=3")
        names = [f"job-{number_}" for number_ in range(9)]
        for name in names:
            stack.enqueue(name, **SHORT)
        states = [stack.ended(name) for name in names]
        attempts = [number(state["attempt"]) for state in states]
        shares = Counter(str(state.get("worker")).split(".")[0] for state in states)
        yield Row("9 jobs, 3 workers: attempts", f"{sum(attempts):g}", "9", sum(attempts) == len(names))
        yield Row("9 jobs, 3 workers: jobs of each", ", ".join(map(str, sorted(shares.values()))), "3 workers",
                  len(shares) == 3)  # fmt: skip


def stopping(host: Host) -> Iterator[Row]:
    """Stop idle services by `docker stop`: each ends by itself, at once."""
    with host.stack("stop", 1, "512m") as stack:
        stack.compose("up", "-d")
        stack.enqueue("one", **SHORT)
        stack.ended("one")
        for service in ("worker", "web"):
            container = stack.container(service)
            began = time.monotonic()
            stack.docker("stop", container)
            took = time.monotonic() - began
            code = stack.docker("inspect", container, "--format", "{{.State.ExitCode}}")
            yield Row(f"{service} told to stop", f"exit code {code} after {took:.1f} s", "exit code 0, 10 s",
                      code == "0" and took < 10)  # fmt: skip


def silence(host: Host) -> Iterator[Row]:
    """Let a worker hang: its health turns bad once its signs of life have stopped."""
    with host.stack("silence", 1, "512m") as stack:
        stack.compose("up", "-d")
        stack.enqueue("one", **SHORT)
        stack.ended("one")
        # The name of a worker's lock is host.pid.number.
        stack.inside(
            "worker", "sh", "-c", "for lock in /data/state/workers/*; do kill -STOP $(echo $lock | cut -d. -f2); done"
        )
        time.sleep(HEARTBEAT_TIMEOUT + 2)
        done = stack.inside("worker", "preflight", "health")
        yield Row("health of a worker that hangs", (done.err or done.out).strip(), "exit code 1", done.code == 1)


def refusals(host: Host) -> Iterator[Row]:
    """Give bad input of every kind: one sentence each, and an exit code that has a platform try again or give up."""
    with host.stack("refusals", 1, "512m") as stack, tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        stack.compose("up", "-d")
        stack.enqueue("one", **SHORT)
        network = ("--network", f"{stack.name}_default")
        wrong = ("-e", "REDIS_URL=redis://worker:wrong@redis:6379/0")
        half = _half_downloaded(host, Path(name))
        nowhere = ("--network", "none", "-e", "PREFLIGHT_REDIS_WAIT=0")
        train = ("train", "--dataset", "mnist", "--no-calibrate", "--epochs", "1")
        tries: Sequence[tuple[str, Sequence[str], Sequence[str], str]] = (
            ("REDIS_URL is missing", nowhere, (), "REDIS_URL is not set"),
            ("/data cannot be written", (*nowhere, "--read-only", "-v", f"{half}:/data:ro"), (), "cannot be written"),
            (
                "a file of the data set is cut off",
                ("-v", f"{half}:/data/datasets:ro", "--network", "none"),
                train,
                "train-images",
            ),
            ("Redis password is wrong", (*network, *wrong), (), "refuses the password"),
            ("a secret's file is missing", ("-e", "REDIS_PASSWORD_FILE=/run/none"), (), "cannot be read"),
        )
        said_of = [
            (what, word, host.docker.run("run", "--rm", *options, IMAGE, *command))
            for what, options, command, word in tries
        ]
        taken = stack.inside("web", "preflight", "serve", "--port", "8000")
        for what, word, done in (*said_of, ("the port is taken", "cannot be listened on", taken)):
            said = [
                line.removeprefix("preflight: ") for line in done.err.splitlines() if line.startswith("preflight: ")
            ]
            good = done.code in (1, 2) and len(said) == 1 and word in said[0] and "Traceback" not in done.err
            yield Row(what, f"exit code {done.code}: {' '.join(said)}", "one sentence", good)


def _half_downloaded(host: Host, directory: Path) -> Path:
    """Return a directory with the files of MNIST, one of them cut off in the middle."""
    target = directory / "mnist"
    target.mkdir()
    for path in host.data.glob("*.gz"):
        content = path.read_bytes()
        (target / path.name).write_bytes(content[: len(content) // 2] if "train-images" in path.name else content)
    for each in (directory, target):
        each.chmod(0o755)
    return target


SERVICES: Final[Sequence[Check]] = (
    limits, full_speed, redeploy, redis_restart, out_of_memory, scale, stopping, silence, refusals,
)  # fmt: skip
