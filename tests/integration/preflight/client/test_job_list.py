"""`preflight jobs`, `Client.jobs` and shell completion, with a real Redis and a real bash."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pydantic import JsonValue, TypeAdapter
from redis import Redis
from redis.client import Pipeline
from rq import Queue
from support.redis.listed_jobs import fill
from support.web.service import serving
from support.worker.command_line import run
from support.worker.services import digits_job
from support.worker.terminals import StartTerminal

from preflight import Client
from preflight.cli.completion import REDIS_TIMEOUT, names
from preflight.client.job_list import MIN_PAGE_SIZE
from preflight.events.state import publish
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.redis.server.embedded import redis_server
from preflight.wire import EVENT, FUNCTION, MAX_JOB_BYTES, Status
from worker.config.settings import Settings, service_environment

RAW = TypeAdapter(list[bytes])


@pytest.fixture(autouse=True)
def _environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)


def listed(*arguments: str) -> list[str]:
    result = run("jobs", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["job_id"] for line in result.stdout.splitlines()]


def tell(redis: Redis, job_id: str, kind: str, ts: float, **fields: JsonValue) -> None:
    event = EVENT.validate_python({"type": kind, "job_id": job_id, "attempt": 1, "seq": 1, "ts": ts, **fields})
    publish(redis, event, ttl=600)


def begin(redis: Redis, job_id: str, ts: float) -> None:
    tell(redis, job_id, "job_started", ts, worker="w", dataset="digits", model="cnn", epochs=3, batch_size=32)


@pytest.fixture
def five(client: Client, raw: Redis) -> None:
    """Five jobs: one failed three days ago, one cancelled, one running for five minutes, and two queued."""
    now = time.time()
    for job_id in ("failed", "cancelled", "running", "waiting", "strange"):
        client.enqueue(digits_job(job_id=job_id))
    client.cancel("cancelled")
    begin(raw, "failed", now - 86_400 * 3 - 7_200)
    tell(raw, "failed", "job_failed", now - 86_400 * 3, reason="diverged\x1b[2J", message="m")
    begin(raw, "running", now - 300)
    tell(raw, "running", "epoch_done", now - 1, epoch=2, loss=0.1, val_acc=0.975, samples_per_s=1, seconds=1,
         train_seconds=1)  # fmt: skip
    for job_id, status in (("failed", "failed"), ("running", "started")):
        raw.hset(f"rq:job:{job_id}", "status", status)
        raw.lrem("rq:queue:preflight", 1, job_id)
    raw.zadd("rq:failed:preflight", {"failed": now + 600})
    raw.zadd("rq:wip:preflight", {"running:execution": now + 600})
    raw.delete(keys.state("strange"))
    raw.set(keys.state("strange"), "no hash")


@pytest.mark.usefixtures("five")
def test_jobs_are_listed_newest_last() -> None:
    """With status, age, duration, epoch, accuracy and reason; of queued jobs, the last enqueued last."""
    lines = run("jobs").stdout.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["JOB"] == "STATUS DATASET MODEL UPDATED TOOK EPOCH ACCURACY WHY"
    assert rows["failed"] == "failed digits cnn 3 d ago 2 h diverged\\x1b[2J"
    assert re.fullmatch(r"running digits cnn \d+ s ago 5 min 2/3 97\.50%", rows["running"])
    for job_id, status in (("cancelled", "cancelled"), ("waiting", "queued"), ("strange", "queued")):
        assert re.fullmatch(rf"{status} (\S+ \S+ )?\d+ s ago", rows[job_id])
    order = [line.split()[0] for line in lines[1:]]
    assert order[0] == "failed"
    assert order.index("waiting") < order.index("strange")


def test_an_id_serves_one_request(redis_url: str) -> None:
    """Another request under it is refused with exit code 2; the same one again is not, and nothing is enqueued."""
    first = run("enqueue", "--dataset", "digits", "--job-id", "taken")
    again = run("enqueue", "--dataset", "digits", "--job-id", "taken")
    other = run("enqueue", "--dataset", "digits", "--job-id", "taken", "--epochs", "3")
    assert [one.exit_code for one in (first, again, other)] == [0, 0, 2]
    assert "exists already; nothing was enqueued" in again.stderr
    assert other.stderr == (
        "preflight: job 'taken' exists already and asks for something else, so nothing was enqueued; take another id, "
        "or leave it out\n"
    )
    assert other.stdout == ""
    assert Redis.from_url(redis_url).llen("rq:queue:preflight") == 1


def test_a_job_that_nobody_takes_says_so(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`enqueue --wait` does, before it waits; where a worker is there, it does not."""
    watched: list[str] = []
    monkeypatch.setattr("preflight.cli.commands.watch_job", lambda _client, job_id: watched.append(job_id))
    alone = run("enqueue", "--dataset", "digits", "--job-id", "alone", "--wait")
    assert "no worker takes jobs of the queue 'preflight' now; the job waits until `preflight worker`" in alone.stderr
    Redis.from_url(redis_url).sadd(keys.rq_workers("preflight"), "rq:worker:w")
    assert run("enqueue", "--dataset", "digits", "--job-id", "taken", "--wait").stderr == ""
    assert watched == ["alone", "taken"]


@pytest.mark.usefixtures("five")
def test_a_list_is_filtered_and_limited() -> None:
    assert listed("--status", "failed, cancelled") == ["failed", "cancelled"]
    assert listed("--status", "finished") == []
    assert len(listed("--limit", "2")) == 2
    assert listed("--limit", "1", "--status", "running,failed") == ["running"]
    assert listed("--limit", "9") == listed()


@pytest.mark.parametrize(("arguments", "words"), [
    (["--status", "runing"], "'runing' is not known (did you mean 'running'?); use some of queued, running"),
    (["--status", ""], "--status '' is not known"),
    (["--limit", "0"], "--limit is '0', but must be a whole number of at least 1"),
    (["--limit", "10001"], "--limit is '10001', but must be a whole number of at least 1 and at most 10000"),
    (["--limit", "9" * 5000], f"--limit is '{'9' * 60}'..., but must be"),
])  # fmt: skip
def test_an_invalid_status_or_limit_is_refused(arguments: list[str], words: str) -> None:
    result = run("jobs", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr


def enqueue_numbered(client: Client, count: int) -> None:
    for number in range(count):
        client.enqueue(digits_job(job_id=f"{number}"))


def test_a_list_takes_six_round_trips(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which two are for what jobs that wait will train."""
    enqueue_numbered(client, 30)
    asked, execute = list[int](), Pipeline.execute

    def counted(pipeline: Pipeline, raise_on_error: bool = True) -> list[object]:
        asked.append(len(pipeline))
        return list(execute(pipeline, raise_on_error))

    monkeypatch.setattr(Pipeline, "execute", counted)
    assert len(client.jobs()) == 30
    assert asked == [13, 30, 60, 60, 30, 30]


@pytest.mark.slow
def test_without_a_limit_a_hundred_are_listed(client: Client) -> None:
    enqueue_numbered(client, 101)
    result = run("jobs", "--json")
    assert len(result.stdout.splitlines()) == 100
    assert result.stderr == "there may be more than these 100 jobs; --limit N lists more\n"
    assert json.loads(result.stdout.splitlines()[-1])["job_id"] == "100"
    assert run("jobs", "--limit", "100").stderr == ""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A Redis with 100,000 jobs."""

    settings: Settings
    redis: Redis
    newest: Mapping[str, Sequence[str]]
    """Status, or `all` -> ids, newest first."""


OURS: Final = {"finished": "finished", "failed": "failed", "canceled": "cancelled", "queued": "queued"}
"""RQ's status -> ours."""


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """100,000 jobs, 50,000 expired ones, and 60 registry entries without a job."""
    with redis_server() as url:
        redis = Redis.from_url(url)
        fill(redis, 100_000)
        pipe, now = redis.pipeline(transaction=False), time.time()
        for registry in ("finished", "failed"):
            pipe.zadd(f"rq:{registry}:preflight", {f"expired-{number}": now - number for number in range(25_000)})
        for registry in ("finished", "failed", "canceled"):
            pipe.zadd(f"rq:{registry}:preflight", {f"gone-{number}": 2 * now + number for number in range(20)})
        pipe.execute()
        places = {name: RAW.validate_python(redis.zrange(f"rq:{name}:preflight", 0, -1)) for name in OURS}
        places["queued"] = RAW.validate_python(redis.lrange("rq:queue:preflight", 0, -1))
        newest: dict[str, list[str]] = {
            OURS[name]: sorted((text(entry) for entry in entries if entry.startswith(b"job-")), reverse=True)
            for name, entries in places.items()
        }
        newest["all"] = sorted((job_id for ids in newest.values() for job_id in ids), reverse=True)
        assert len(newest["all"]) == 100_000
        yield Crowd(Settings(redis_url=url), redis, newest)


QUESTIONS: Final[Sequence[Sequence[Status]]] = [[], ["queued"], ["finished"], ["failed"], ["cancelled"], ["running"]]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("statuses", QUESTIONS)
@pytest.mark.parametrize("limit", [1, 100, 1000])
def test_a_list_of_many_jobs_reads_few(crowd: Crowd, statuses: Sequence[Status], limit: int) -> None:
    """It has the newest existing jobs; commands and bytes grow with the limit only."""
    client = Client(crowd.settings.redis_url)
    client.jobs(limit=1)
    crowd.redis.config_resetstat()
    states = client.jobs(limit=limit, statuses=statuses)
    asked, sent = crowd.redis.info("commandstats"), int(crowd.redis.info("stats")["total_net_output_bytes"])
    expected = crowd.newest.get(statuses[0], []) if statuses else crowd.newest["all"]
    assert [state.job_id for state in states] == [*expected[:limit]]
    most = max(limit, MIN_PAGE_SIZE)
    calls = {name.removeprefix("cmdstat_"): int(said["calls"]) for name, said in asked.items()}
    sources_asked = calls.get("zrange", 0) + calls.get("lrange", 0)
    assert sources_asked <= 20
    assert calls.get("hmget", 0) <= 2 * (sources_asked + 1) * most
    assert sent <= 2**14 + 1000 * most * (sources_asked + 1)
    assert max(calls.pop("hstrlen", 0), calls.pop("hget", 0)) <= limit  # what jobs that wait will train
    assert set(calls) <= {"zrange", "lrange", "get", "hmget", "info", "config"}


@pytest.mark.slow
def test_several_statuses_are_merged_by_time(crowd: Crowd) -> None:
    both = sorted([*crowd.newest["failed"], *crowd.newest["cancelled"]], reverse=True)
    states = Client(crowd.settings.redis_url).jobs(limit=300, statuses=["failed", "cancelled"])
    assert [state.job_id for state in states] == both[:300]


@pytest.mark.slow
def test_http_and_commands_read_few_of_many_jobs(crowd: Crowd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", crowd.settings.redis_url)
    assert listed("--limit", "3") == [*reversed(crowd.newest["all"][:3])]
    assert listed("--status", "failed", "--limit", "3") == [*reversed(crowd.newest["failed"][:3])]
    assert len(names("jobs", "job-")) > 1000
    with serving(crowd.settings, tmp_path) as service:
        crowd.redis.config_resetstat()
        for query, expected in (
            ("", crowd.newest["all"][:100]), ("?limit=2", crowd.newest["all"][:2]),
            ("?status=failed&limit=2", crowd.newest["failed"][:2]), ("?status=unknown", []),
        ):  # fmt: skip
            answer = service.ask("GET", f"/v1/jobs{query}").json
            assert isinstance(answer, list)
            assert [state["job_id"] for state in answer] == expected
        assert int(crowd.redis.info("commandstats")["cmdstat_hmget"]["calls"]) < 5000


def test_running_jobs_come_first(client: Client, raw: Redis) -> None:
    begin(raw, "running", time.time() - 300)
    raw.hset("rq:job:running", "status", "started")
    raw.zadd("rq:wip:preflight", {"running:execution": time.time() + 60})
    enqueue_numbered(client, 5)
    assert [state.job_id for state in client.jobs(limit=2)] == ["running", "4"]


def test_a_requeued_job_is_listed(client: Client, raw: Redis) -> None:
    """It is at the head of a long queue, or in the intermediate queue."""
    enqueue_numbered(client, 300)
    begin(raw, "0", time.time() + 1)
    tell(raw, "0", "job_interrupted", time.time() + 1, message="m")
    assert client.jobs(limit=1)[0].job_id == "0"
    raw.lmove("rq:queue:preflight", "rq:queue:preflight:intermediate", "LEFT", "RIGHT")
    assert client.jobs(limit=1, statuses=["queued"])[0].job_id == "0"
    assert len(client.jobs(limit=1000)) == 300


def test_jobs_that_never_expire_do_not_hide_newer_ones(connection: Redis, client: Client) -> None:
    """RQ scores them inf or -1, before or after all others."""
    now = time.time()
    for registry, never, status in (("finished", "inf", "finished"), ("failed", "-1", "failed")):
        connection.zadd(f"rq:{registry}:preflight", {f"{registry}-{number}": never for number in range(200)})
        connection.zadd(f"rq:{registry}:preflight", {f"{registry}-new": now + 600})
        for name, ago in (*((f"{registry}-{number}", 1000 + number) for number in range(200)), (f"{registry}-new", 1)):
            connection.hset(f"rq:job:{name}", "status", status)
            connection.hset(keys.state(name), mapping={"status": status, "updated_at": now - ago})
    assert {state.job_id for state in client.jobs(limit=2)} == {"finished-new", "failed-new"}
    assert len(client.jobs(limit=1000)) == 402


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize("name", ["queue", "wip", "finished", "failed", "canceled", "queue:preflight:intermediate"])
def test_a_key_of_another_type_hides_only_its_own_jobs(connection: Redis, client: Client, name: str) -> None:
    key = f"rq:{name}" if name.endswith("intermediate") else f"rq:{name}:preflight"
    theirs = {"queue": {"waiting", "strange"}, "wip": {"running"}, "failed": {"failed"}, "canceled": {"cancelled"}}
    connection.delete(key)
    connection.hset(key, "x", "y")
    everything = {"failed", "cancelled", "running", "waiting", "strange"}
    assert {state.job_id for state in client.jobs()} == everything - theirs.get(name, set())


@pytest.mark.usefixtures("five")
def test_a_status_is_that_of_the_events(connection: Redis, client: Client) -> None:
    """A finished job may not have left the started registry yet."""
    connection.hset(keys.state("running"), "status", "finished")
    assert [state.job_id for state in client.jobs(statuses=["finished"])] == ["running"]
    assert client.jobs(statuses=["running"]) == []
    connection.hset(keys.state("failed"), "updated_at", "nan")
    assert client.jobs()[-1].job_id == "failed"


@pytest.mark.usefixtures("five")
def test_bash_completes_jobs_and_names(start_terminal: StartTerminal) -> None:
    """TAB in an interactive shell on a pseudo-terminal: a job id, and a data set."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb"}
    shell = start_terminal(environment, bash, "--norc", "--noprofile", "-i")
    shell.type('eval "$(preflight completion bash)"; echo ready-$((1 + 1))\n')
    shell.until("ready-2")
    completed = {"watch wai": "watch waiting ", "train --dataset fash": "train --dataset fashion-mnist "}
    for typed, shown in completed.items():
        shell.type(f"preflight {typed}\t")
        shell.until(f"preflight {shown}")
        shell.type("\x15")


def test_each_shell_has_a_completion_script() -> None:
    for shell, word in (("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --")):
        assert word in run("completion", shell).stdout
    refused = run("completion", "tcsh")
    assert (refused.exit_code, "use one of bash, zsh, fish" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("five")
def test_names_are_found_without_torch() -> None:
    """Ids from Redis, for `cancel` the active ones, and names from the registry."""
    assert names("jobs", "w") == ["waiting"]
    assert sorted(names("active jobs", "")) == ["running", "strange", "waiting"]
    assert names("models", "") == ["cnn", "resnet18"]
    assert names("recipes", "") == ["fast", "balanced", "best"]
    assert names("statuses", "f") == ["finished", "failed"]
    program = (
        "import sys; from preflight.cli.completion import names; names('datasets', ''); names('models', '');"
        "names('recipes', ''); print(*{'torch', 'numpy', 'redis'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True).stdout == "\n"


def test_an_unavailable_redis_completes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without output: it is unavailable, has an invalid URL, or does not answer."""
    for url in (f"unix://{tmp_path}/none.sock", "http://x"):
        monkeypatch.setenv("PREFLIGHT_REDIS_URL", url)
        assert names("jobs", "") == []
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent.sock"))
    silent.listen()
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", f"unix://{tmp_path}/silent.sock")
    assert names("jobs", "") == []
    assert REDIS_TIMEOUT <= 1


def test_jobs_that_wait_show_what_they_will_train(client: Client, queue: Queue, raw: Redis) -> None:
    """Of a client, of a producer with plain RQ, under its own id; nothing of a payload that would be refused."""
    client.enqueue(digits_job(job_id="mine", epochs=7))
    asked: JsonValue = {"type": "preflight.train.v1", "dataset": "mnist", "recipe": "fast", "job_id": "theirs"}
    queue.enqueue(FUNCTION, asked, job_id="rq-id")
    queue.enqueue(FUNCTION, {"type": "preflight.train.v1", "dataset": "<script>"}, job_id="refused")
    queue.enqueue(FUNCTION, job_id="empty")
    raw.hset(keys.rq_job("empty"), "data", b"no payload")
    found = {state.job_id: (state.model, state.dataset) for state in client.jobs()}
    assert found == {
        "mine": ("small", "digits"), "rq-id": ("cnn-small-cosine", "mnist"), "refused": (None, None),
        "empty": (None, None),
    }  # fmt: skip
    request = client.status("mine").request
    assert request is not None
    assert request["epochs"] == 7
    theirs = client.status("rq-id").request
    assert theirs == {"type": "preflight.train.v1", "dataset": "mnist", "recipe": "fast"}
    raw.hset(keys.rq_job("mine"), "data", b"x" * (MAX_JOB_BYTES + 1))
    assert client.status("mine").model is None
