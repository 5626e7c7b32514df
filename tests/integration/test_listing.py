"""`preflight jobs` and what TAB completes, against a real Redis and in a real bash."""

import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import JsonValue
from redis import Redis
from redis.client import Pipeline
from services import digits_job

from worker import keys
from worker.cli import main
from worker.client import Client
from worker.completion import PATIENCE, names
from worker.publish import publish
from worker.settings import Settings, service_environment
from worker.wire import EVENT


@pytest.fixture(autouse=True)
def _environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def listed(*arguments: str) -> list[str]:
    result = run("jobs", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["job_id"] for line in result.stdout.splitlines()]


def tell(settings: Settings, job_id: str, kind: str, ts: float, **fields: JsonValue) -> None:
    event = EVENT.validate_python({"type": kind, "job_id": job_id, "attempt": 1, "seq": 1, "ts": ts, **fields})
    publish(Redis.from_url(settings.redis_url), event, ttl=600)


def begin(settings: Settings, job_id: str, ts: float) -> None:
    tell(settings, job_id, "job_started", ts, worker="w", dataset="digits", model="cnn", epochs=3, batch_size=32)


@pytest.fixture
def five(settings: Settings, client: Client, connection: Redis) -> Client:
    """Five jobs: one that failed a day ago, one cancelled, one running for five minutes, and two that wait."""
    now = time.time()
    for job_id in ("failed", "cancelled", "running", "waiting", "strange"):
        client.enqueue(digits_job(job_id=job_id))
    client.cancel("cancelled")
    begin(settings, "failed", now - 86_400 * 3 - 7_200)
    tell(settings, "failed", "job_failed", now - 86_400 * 3, reason="diverged\x1b[2J", message="m")
    begin(settings, "running", now - 300)
    tell(settings, "running", "epoch_done", now - 1, epoch=2, loss=0.1, val_acc=0.975, samples_per_s=1, seconds=1,
         train_seconds=1)  # fmt: skip
    for job_id, status, registry in (("failed", "failed", "failed"), ("running", "started", "wip")):
        connection.hset(f"rq:job:{job_id}", "status", status)
        connection.lrem("rq:queue:preflight", 1, job_id)
        entry = f"{job_id}:execution" if registry == "wip" else job_id
        connection.zadd(f"rq:{registry}:preflight", {entry: now + 600})
    connection.delete(keys.state("strange"))
    connection.set(keys.state("strange"), "no hash")
    return client


@pytest.mark.usefixtures("five")
def test_jobs_are_listed_newest_last() -> None:
    """With status, age, how long it took, epoch, accuracy and why; of those that wait, the last enqueued last."""
    lines = run("jobs").stdout.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["JOB"] == "STATUS AGE TOOK EPOCH ACCURACY WHY"
    assert rows["failed"] == "failed 3 d 2 h diverged\\x1b[2J"
    assert re.fullmatch(r"running [01] s 5 min 2/3 97\.50%", rows["running"])
    assert re.fullmatch(r"cancelled \d s", rows["cancelled"])
    assert re.fullmatch(r"queued \d s", rows["waiting"])
    assert re.fullmatch(r"queued \d s", rows["strange"])
    order = [line.split()[0] for line in lines[1:]]
    assert order[0] == "failed"
    assert order.index("waiting") < order.index("strange")


@pytest.mark.usefixtures("five")
def test_some_of_them() -> None:
    """By status, and the newest."""
    assert listed("--status", "failed, cancelled") == ["failed", "cancelled"]
    assert listed("--status", "finished") == []
    assert len(listed("--limit", "2")) == 2
    assert listed("--limit", "1", "--status", "running,failed") == ["running"]
    assert listed("--limit", "9") == listed()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--status", "runing"],
            "--status 'runing' is not known (did you mean 'running'?); use some of queued, running",
        ),
        (["--status", ""], "--status '' is not known"),
        (["--limit", "0"], "--limit is '0', but must be a whole number of at least 1"),
        (["--limit", "many"], "--limit is 'many', but must be"),
    ],
)
def test_what_is_no_status_or_number_is_refused(arguments: list[str], words: str) -> None:
    """In one sentence, with exit code 2."""
    result = run("jobs", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr


def test_many_jobs_take_no_more_questions_than_few(client: Client) -> None:
    """Two pipelines, whatever there is: the ids, and what is said of them."""
    asked = []
    for number in range(30):
        client.enqueue(digits_job(job_id=f"{number}"))
    execute = Pipeline.execute

    def counted(pipeline: Pipeline, raise_on_error: bool = True) -> list[object]:
        asked.append(len(pipeline))
        return list(execute(pipeline, raise_on_error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "execute", counted)
        assert len(client.jobs()) == 30
    assert asked == [11, 60, 60]


@pytest.mark.usefixtures("five")
def test_bash_completes_jobs_and_names() -> None:
    """TAB in an interactive shell, beneath a pseudo terminal: a job id, and a data set."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        [bash, "--norc", "--noprofile", "-i"],
        env={**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb"}, stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        os.write(master, b'eval "$(preflight completion bash)"; echo ready-$((1 + 1))\n')
        read_until(master, "ready-2")
        for typed, shown in (
            ("watch wai", "watch waiting "),
            ("train --dataset fash", "train --dataset fashion-mnist "),
        ):
            os.write(master, f"preflight {typed}\t".encode())
            read_until(master, f"preflight {shown}")
            os.write(master, b"\x15")
    finally:
        os.close(master)
        shell.kill()
        shell.wait()


def read_until(descriptor: int, words: str) -> None:
    output = ""
    while words not in output:
        ready, _, _ = select.select([descriptor], [], [], 20)
        assert ready, output
        output += os.read(descriptor, 4096).decode(errors="replace")


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --")]
)
def test_each_shell_gets_its_script(shell: str, word: str) -> None:
    """And no other."""
    assert word in run("completion", shell).stdout
    refused = run("completion", "tcsh")
    assert (refused.exit_code, "use one of bash, zsh, fish" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("five")
def test_names_are_found_without_torch() -> None:
    """Ids from Redis, for `cancel` those that go on, and names from the registry."""
    assert names("jobs", "w") == ["waiting"]
    assert sorted(names("jobs that go on", "")) == ["running", "strange", "waiting"]
    assert names("models", "cnn") == [
        "cnn",
        "cnn-committee",
        "cnn-large",
        "cnn-large-valid",
        "cnn-medium",
        "cnn-small",
        "cnn-small-unpadded",
        "cnn-small-valid",
        "cnn-unpadded",
        "cnn-valid",
    ]
    assert names("recipes", "") == ["fast", "balanced", "best"]
    assert names("statuses", "f") == ["finished", "failed"]
    program = (
        "import sys; from worker.completion import names; names('datasets', ''); names('models', '');"
        "names('recipes', ''); print(*{'torch', 'numpy', 'redis'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True).stdout == "\n"


def test_a_redis_that_cannot_be_asked_completes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a word, whether it is away, its address is none, or it never answers."""
    for url in (f"unix://{tmp_path}/none.sock", "http://x"):
        monkeypatch.setenv("PREFLIGHT_REDIS_URL", url)
        assert names("jobs", "") == []
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent.sock"))
    silent.listen()
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", f"unix://{tmp_path}/silent.sock")
    assert names("jobs", "") == []
    assert PATIENCE <= 1
