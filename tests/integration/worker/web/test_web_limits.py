"""Limits of `preflight serve`: origins, timeouts, connections, subscriptions, memory."""

import asyncio
import json
import re
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from redis import Redis
from support.web.crowd import JOBS, MEMORY_BOUND, crowd, fill
from support.web.service import JOB, JSON, TOKEN, Service, serving
from support.worker.services import wait_until

from preflight.container.resources import status_sizes
from preflight.wire import EVENTS_KEPT
from worker.config.settings import Settings
from worker.web.auth import App, Message, Receive, Scope, Send
from worker.web.protocol import MAX_AHEAD, MAX_HEAD_BYTES, Limits, protocol_with
from worker.web.streams.broadcaster import MAX_SUBSCRIPTIONS

POST = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def service(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    Redis.from_url(redis_url).flushall()
    with serving(Settings(redis_url=redis_url), tmp_path_factory.mktemp("limits")) as running:
        yield running


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"},
    {"origin": "http://localhost:1"},  # another service of this machine
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"},
    {"sec-fetch-site": "none", "origin": "https://evil.example"},
    {"origin": "https://evil.example", "x-forwarded-host": "evil.example", "x-forwarded-proto": "https"},
], ids=str)  # fmt: skip
def test_a_cross_site_request_changes_nothing(service: Service, redis_url: str, headers: dict[str, str]) -> None:
    """By `origin` and `sec-fetch-site`, also with a JSON body."""
    service.enqueue("theirs")
    for path, body in (("/v1/jobs", JOB), ("/v1/jobs/theirs/cancel", {})):
        refused = service.ask("POST", path, body, {**JSON, **headers})
        assert (refused.status, refused["reason"]) == (403, "cross_site")
    assert service.ask("GET", "/v1/jobs/theirs")["status"] == "queued"
    Redis.from_url(redis_url).flushall()


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
], ids=str)  # fmt: skip
def test_a_cross_site_request_reads_nothing(service: Service, headers: dict[str, str]) -> None:
    """A search keeps the service busy, whoever may see its answer; a link to the page works from anywhere."""
    for path in ("/v1/jobs", "/v1/search?q=x", "/v1/compare?job=x", "/v1/jobs/x/events", "/metrics"):
        refused = service.ask("GET", path, headers=headers)
        assert (refused.status, refused["reason"]) == (403, "cross_site"), path
    for path in ("/", "/healthz", "/readyz", "/page/app.js"):
        assert service.ask("GET", path, headers=headers).status == 200, path
    for here in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
        assert service.ask("GET", "/v1/jobs", headers=here).status == 200
    rebound = service.ask("GET", "/v1/jobs", headers={"host": "evil.example", "sec-fetch-site": "same-origin"})
    assert (rebound.status, rebound["reason"]) == (421, "wrong_host")


def test_the_page_and_programs_may_post(service: Service, redis_url: str) -> None:
    """The page's origin is the service's host; programs send none."""
    here = {"origin": f"http://localhost:{service.port}", "host": f"localhost:{service.port}"}
    forwarded = {"origin": "https://name-8000.app.example", "sec-fetch-site": "same-origin"}  # the port, or by a proxy
    for headers in ({}, here, {**here, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, forwarded):
        assert service.ask("POST", "/v1/jobs", JOB, {**JSON, **headers}).status == 201
    Redis.from_url(redis_url).flushall()


def test_every_post_requires_json(service: Service) -> None:
    """A form of another site sends other types, without a CORS preflight."""
    paths = service.ask("GET", "/openapi.json")["paths"]
    assert isinstance(paths, dict)
    posted = [re.sub(r"{\w+}", "x", path) for path, methods in paths.items() if "post" in methods]
    assert len(posted) == 14
    for path in posted:
        for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
            assert service.ask("POST", path, b"{}", headers).status == 415, (path, headers)
        packed = service.ask("POST", path, b"{}", {**JSON, "content-encoding": "gzip"})
        assert packed.status == 415 and "'gzip'" in str(packed["message"]), path
    refused = service.ask("POST", "/v1/jobs/x/cancel", {"job_id": "y"})
    assert (refused.status, refused["reason"]) == (422, "invalid_config")


def test_an_incomplete_body_enqueues_nothing(service: Service, redis_url: str) -> None:
    """Also where the received part is whole JSON, shorter than `content-length`."""
    body = json.dumps(JOB).encode()
    with closing(service.connect()) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % (len(body) + 1) + body)
    assert service.enqueue("next").status == 201
    assert Redis.from_url(redis_url).lrange("rq:queue:preflight", 0, -1) == [b"next"]
    Redis.from_url(redis_url).flushall()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_slow_requests_are_closed(service: Service) -> None:
    """Nothing, half a header, header and body byte by byte, the body of a GET: each within its timeout."""
    started = {
        "nothing": b"",
        "header": b"GET /healthz HTTP/1.1\r\nhost: local", "slow header": b"GET /healthz HTTP/1.1\r\nx: ",
        "body": POST + b"content-length: 100\r\n\r\n{", "slow body": POST + b"content-length: 100\r\n\r\n",
        "body of a get": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n",
    }  # fmt: skip
    answers = dict.fromkeys(started, b"")
    with ExitStack() as stack:
        connections = {}
        for name, sent in started.items():
            connections[name] = stack.enter_context(service.connect())
            connections[name].sendall(sent)
            connections[name].setblocking(False)
        deadline = time.monotonic() + 90
        while connections and time.monotonic() < deadline:
            time.sleep(0.5)
            for name, connection in [*connections.items()]:
                try:
                    received = connection.recv(1 << 16)
                    answers[name] += received
                    if not received:
                        del connections[name]
                except BlockingIOError:
                    if name.startswith("slow") or name == "body of a get":
                        connection.send(b"x")
                except OSError:
                    del connections[name]
    assert not connections
    assert answers["nothing"] == b""
    for name in ("header", "slow header", "body", "slow body"):
        assert answers[name].startswith(b"HTTP/1.1 408 "), (name, answers[name])
        assert b'"reason": "too_slow"' in answers[name]
    assert answers["body of a get"].startswith(b"HTTP/1.1 200 ")


def test_invalid_http_is_refused_in_one_sentence(service: Service) -> None:
    with closing(service.connect()) as connection:
        answer = whole_answer(connection, b"\x16\x03\x01 hello\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert json.loads(body)["reason"] == "malformed_request"


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer `/` at once, `/slow` never completely, other paths with more than a socket buffers."""
    head: Message = {"type": "http.response.start", "status": 200, "headers": []}
    await send(head)
    if scope["path"] == "/":
        await send({"type": "http.response.body", "body": b"here"})
    elif scope["path"] == "/slow":
        await receive()
        await receive()
    else:
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})


@contextmanager
def listening(app: App, limits: Limits) -> Iterator[tuple[int, uvicorn.Server]]:
    """Run uvicorn with these limits in a thread of this process."""
    config = uvicorn.Config(
        app, http=protocol_with(limits), log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, running(server, listening):
        yield listening.getsockname()[1], server


@contextmanager
def running(server: uvicorn.Server, *sockets: socket.socket) -> Iterator[None]:
    """Run it in a thread of this process, on these sockets or on its own."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [*sockets] or None})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join(20)


def whole_answer(connection: socket.socket, request: bytes = b"") -> bytes:
    """Send a request, and read until the other end closes the connection."""
    connection.sendall(request)
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


KEPT_ALIVE = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n"
ANSWER_BOUND = 0.010
"""Seconds: ten times the expected, a quarter of a delayed acknowledgement."""


def seconds_of(connection: socket.socket, path: bytes, whole: bytes) -> float:
    """Ask once on a connection that stays open; return the seconds until the answer's body ends with `whole`."""
    began, received = time.perf_counter(), b""
    connection.sendall(KEPT_ALIVE % path)
    while not received.endswith(whole):
        chunk = connection.recv(1 << 16)
        assert chunk, received
        received += chunk
    return time.perf_counter() - began


@pytest.mark.parametrize(("path", "whole"), [(b"/healthz", b"]}"), (b"/v1/jobs", b"[]")])
def test_an_answer_on_a_kept_alive_connection_waits_for_no_acknowledgement(
    service: Service, path: bytes, whole: bytes
) -> None:
    """Head and body are two packets; Nagle's algorithm would hold back the second for 40 ms."""
    with closing(service.connect()) as connection:
        taken = [seconds_of(connection, path, whole) for _ in range(60)]
    assert statistics.median(taken) < ANSWER_BOUND


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def test_an_idle_connection_stays_for_the_next_request() -> None:
    """For `idle_s` after an answer; a request that has begun is bounded by `receive_s`, and so is a new connection."""
    with listening(_busy, Limits(connections=5, receive_s=0.5, idle_s=3)) as (port, _), ExitStack() as stack:

        def connect(sent: bytes = b"") -> socket.socket:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            connection.sendall(sent)
            return connection

        assert is_closed_within(connect(), 2)
        kept, slow = connect(KEPT_ALIVE % b"/"), connect(KEPT_ALIVE % b"/")
        for connection in (kept, slow):
            while not connection.recv(1 << 16).endswith(b"0\r\n\r\n"):
                pass
        assert not is_closed_within(kept, 1.5)
        kept.sendall(KEPT_ALIVE % b"/")
        assert not is_closed_within(slow, 0.1)
        slow.settimeout(20)
        slow.sendall(b"GET / HT")
        assert whole_answer(slow).startswith(b"HTTP/1.1 408 ")
        kept.settimeout(20)
        assert whole_answer(kept).startswith(b"HTTP/1.1 200 ")  # closed at last


def answers_until(connection: socket.socket, count: int) -> bytes:
    """Read until so many answers of `/` have come, or the other end closes."""
    received = b""
    with suppress(ConnectionResetError):
        while received.count(b"here") < count and (chunk := connection.recv(1 << 16)):
            received += chunk
    return received


def test_requests_ahead_of_their_answers_are_bounded() -> None:
    """Some are answered in turn; a client that sends hundreds is not served."""
    with listening(_busy, Limits(connections=5)) as (port, server), ExitStack() as stack:
        some, many = (stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(2))
        some.sendall(KEPT_ALIVE % b"/" * MAX_AHEAD)
        assert answers_until(some, MAX_AHEAD).count(b"HTTP/1.1 200 ") == MAX_AHEAD
        many.sendall(KEPT_ALIVE % b"/slow" * 10 * MAX_AHEAD)
        assert answers_until(many, 1).count(b"here") == 0
        wait_until(lambda: len(server.server_state.connections) == 1)
        some.sendall(KEPT_ALIVE % b"/")
        assert b"here" in answers_until(some, 1)


def test_a_body_may_end_after_its_answer() -> None:
    """The next request of the connection is answered, and an idle one is closed as after any other."""
    with (
        listening(_busy, Limits(connections=5, receive_s=1, idle_s=1)) as (port, _),
        closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n12345")
        assert b"here" in answers_until(connection, 1)
        connection.sendall(b"67890" + KEPT_ALIVE % b"/")
        assert b"here" in whole_answer(connection)  # closed at last


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"


@pytest.mark.parametrize("request_", [
    b"GET / HTTP/1.1\r\nhost: localhost\r\n" + UPGRADE + b"\r\n",
    b"POST / HTTP/1.1\r\nhost: localhost\r\n" + UPGRADE + b"content-length: 5\r\n\r\nabcde",
], ids=["get", "post"])  # fmt: skip
def test_an_offer_of_http_2_is_passed_over(request_: bytes) -> None:
    """Java's client makes it with its first request, and asks again on the same connection."""
    with (
        listening(_busy, Limits(connections=5)) as (port, _),
        closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection,
    ):
        for _ in range(3):
            connection.sendall(request_)
            assert answers_until(connection, 1).count(b"HTTP/1.1 200 ") == 1


def test_cookies_of_a_load_balancer_fit(service: Service) -> None:
    """Those of AWS have 16 KiB; a longer head than nginx takes is refused."""
    start = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: "
    for size, end, status in ((17_000, b"\r\n\r\n", b"200"), (MAX_HEAD_BYTES, b"", b"400")):
        with closing(service.connect()) as connection:
            connection.sendall(start + b"a" * size)
            time.sleep(0.2)  # it comes in two parts: only what is incomplete is bounded
            assert whole_answer(connection, end).startswith(b"HTTP/1.1 " + status)


def test_a_unix_socket_answers(tmp_path: Path) -> None:
    """It has no TCP options."""
    path = str(tmp_path / "http")
    config = uvicorn.Config(_busy, http=protocol_with(Limits(connections=5)), log_config=None, lifespan="off", uds=path)
    with running(uvicorn.Server(config)), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(path)
        assert b"\r\nhere\r\n" in whole_answer(
            connection, b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )


def test_a_new_connection_replaces_the_longest_idle_one() -> None:
    """Where all have a running request, a new one is refused."""
    with listening(_busy, Limits(connections=5)) as (port, server), ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))

        idle = [connect() for _ in range(5)]
        wait_until(lambda: len(server.server_state.connections) == 5)
        request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert b"\r\nhere\r\n" in whole_answer(connect(), request)
        assert idle[0].recv(1) == b""
        for connection in (*idle[1:], connect()):
            connection.sendall(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        refusal = whole_answer(connect())
        assert refusal.startswith(b"HTTP/1.1 503 ") and b"5 connections are open already" in refusal


def test_a_client_that_does_not_read_is_dropped() -> None:
    with (
        listening(_busy, Limits(connections=5, send_s=0.5)) as (port, server),
        closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection,
    ):
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        wait_until(lambda: len(server.server_state.connections) == 0)


@contextmanager
def anonymous(redis_url: str, directory: Path) -> Iterator[Service]:
    """A service that wants a token, which its callers do not have."""
    with serving(Settings.model_validate({"redis_url": redis_url, "api_token": TOKEN}), directory) as service:
        yield service


def send_all(service: Service, stack: ExitStack, count: int, data: bytes) -> list[socket.socket]:
    """Open connections that send `data` and read nothing."""
    opened = []
    for _ in range(count):
        connection = stack.enter_context(closing(socket.socket()))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", service.port))
        with suppress(OSError):  # it may be dropped while it sends
            connection.sendall(data)
        opened.append(connection)
    return opened


@pytest.mark.sampled(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("data", [
    pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 60_000, id="headers without an end"),
    pytest.param(POST.replace(b"/v1/jobs", b"/healthz") + b"content-length: 65536\r\n\r\n" + b"a" * 65_535,
                 id="bodies where none is allowed"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n" + b"a" * 65_535,
                 id="bodies of GETs"),
    pytest.param(b"GET /page/app.js HTTP/1.1\r\nhost: x\r\n\r\n" * 60, id="answers that are not read"),
    pytest.param(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 4000, id="requests ahead of answers"),
])  # fmt: skip
def test_a_thousand_connections_without_a_token_share_a_budget(redis_url: str, tmp_path: Path, data: bytes) -> None:
    """Whatever they send, the service keeps within 256 MiB and answers others meanwhile."""
    with anonymous(redis_url, tmp_path) as service, ExitStack() as stack:
        send_all(service, stack, 1000, data)
        for _ in range(3):
            assert service.ask("GET", "/healthz").status == 200
            time.sleep(1)
        peak = status_sizes(service.process.pid)["VmHWM"]
    assert peak < MEMORY_BOUND


def test_connections_that_are_not_read_give_way() -> None:
    """They kept others out for a minute, though nobody waited for their answers."""
    limits = Limits(connections=20, patience_s=0.2)
    with listening(_busy, limits) as (port, server), ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=20)))
            connection.sendall(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 20)
        time.sleep(0.5)
        request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        for _ in range(5):
            connection = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=20)))
            assert b"\r\nhere\r\n" in whole_answer(connection, request)


def test_a_picture_is_not_read_before_it_has_a_place(redis_url: str, tmp_path: Path) -> None:
    """150 bodies of 4 MiB less a byte took 685 MiB before anybody asked which job they are for."""
    head = b"POST /v1/jobs/nobody/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\n"
    body = b"content-length: %d\r\n\r\n" % (4 << 20) + b"x" * ((1 << 20) - 1)
    Redis.from_url(redis_url).flushall()
    with serving(Settings(redis_url=redis_url), tmp_path) as service, ExitStack() as stack:
        opened = [stack.enter_context(service.connect()) for _ in range(150)]
        for connection in opened:
            connection.settimeout(2)
            with suppress(OSError):  # it need not be taken
                connection.sendall(head + body)
        assert b" 404 " in opened[0].recv(100)
        peak = status_sizes(service.process.pid)["VmHWM"]
    assert peak < MEMORY_BOUND


def test_the_number_of_watched_jobs_is_limited(service: Service, redis_url: str) -> None:
    """Their viewers come at once, more than may read from Redis at once; one more job gets 429."""
    redis = Redis.from_url(redis_url)
    for number in range(MAX_SUBSCRIPTIONS + 1):
        redis.hset(f"rq:job:together-{number}", "status", "queued")
    with ExitStack() as stack:
        viewers = [stack.enter_context(service.connect()) for _ in range(MAX_SUBSCRIPTIONS)]
        for number, viewer in enumerate(viewers):
            viewer.sendall(f"GET /v1/jobs/together-{number}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert {viewer.recv(12) for viewer in viewers} == {b"HTTP/1.1 200"}
        refused = service.ask("GET", f"/v1/jobs/together-{MAX_SUBSCRIPTIONS}/events")
        assert (refused.status, refused["reason"]) == (429, "too_many_watched")
    redis.flushall()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_within_its_bound(redis_url: str, tmp_path: Path) -> None:
    """1,000 idle sockets, 200 jobs of 10,000 events each watched from the first on, a list of 100,000 jobs: 256 MiB."""
    redis = Redis.from_url(redis_url)
    redis.flushall()
    fill(redis)
    with serving(Settings(redis_url=redis_url), tmp_path) as service:
        heard = asyncio.run(crowd(service.port))
        peak = status_sizes(service.process.pid)["VmHWM"]
    redis.flushall()
    print(f"\nat most {peak >> 20} MiB resident")
    assert heard == [EVENTS_KEPT] * JOBS
    assert peak < MEMORY_BOUND
