"""Redis behind TLS: verified connections work, others end the worker with one sentence."""

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme
from redis import Redis
from support.worker.services import RunWorker, StartWorker, digits_job

from preflight import Client
from preflight.redis.server.embedded import redis_server
from worker.broker.connect import RedisUnreachable, connect
from worker.config.settings import Settings, load, service_environment


@contextmanager
def tls_in_front_of(unix_url: str, certificate: trustme.LeafCert) -> Iterator[int]:
    """Forward TLS connections to a socket; yields the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)

    async def publish_pending(source: StreamReader, sink: StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(unix_url.removeprefix("unix://"))
        await asyncio.gather(publish_pending(reader, inner_writer), publish_pending(inner_reader, writer))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # noqa: ARG005 - refused handshakes are what is tested
    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port: int = server.sockets[0].getsockname()[1]
        yield port
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The certificate file of the authority that signed Redis's."""
    return tmp_path / "ca.pem"


@pytest.fixture
def port(settings: Settings, authority: Path) -> Iterator[int]:
    """The TLS port of the test's Redis on localhost."""
    signer = trustme.CA()
    signer.cert_pem.write_to_path(str(authority))
    with tls_in_front_of(settings.redis_url, signer.issue_cert("localhost")) as port:
        yield port


def test_a_job_runs_over_tls(port: int, authority: Path, run_worker: RunWorker) -> None:
    url = f"rediss://localhost:{port}/0?ssl_ca_certs={authority}"
    client = Client(url)
    client.enqueue(digits_job(job_id="secret"))
    run_worker({"PREFLIGHT_REDIS_URL": url})
    assert client.status("secret").status == "finished"
    assert [event.type for event in client.events("secret")][-1] == "training_done"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("wrong", ["authority", "name", "no TLS"])
def test_a_certificate_that_is_not_trusted_ends_the_worker(
    wrong: str, port: int, authority: Path, settings: Settings, start_worker: StartWorker
) -> None:
    """Signed by another, made out to another name, or no TLS spoken: exit code 1.

    The worker and the doctor say it in one sentence each.
    """
    host, scheme, expected = "localhost", "rediss", "certificate verify failed"
    match wrong:
        case "authority":
            trustme.CA().cert_pem.write_to_path(str(authority))
        case "name":
            host, expected = "127.0.0.1", "not valid for '127.0.0.1'"
        case "no TLS":
            scheme, expected = "redis", "write rediss:// instead of redis://"
    url = f"{scheme}://user:hunter2@{host}:{port}/0" + (f"?ssl_ca_certs={authority}" if scheme == "rediss" else "")
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": url, "PREFLIGHT_REDIS_WAIT": "0.2"})
    assert worker.wait() == 1
    *_, sentence = worker.output().splitlines()
    assert sentence.startswith(f"preflight: Redis at {scheme}://user:***@{host}:{port}/0")
    assert expected in sentence
    assert not re.search("Traceback|hunter2", worker.output())
    doctor = subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", "doctor"],
        env={**service_environment(settings), "PREFLIGHT_REDIS_URL": url}, capture_output=True, text=True,
    )  # fmt: skip
    (finding,) = [line for line in doctor.stdout.splitlines() if " redis  " in line]
    assert finding.startswith("fail")
    assert wrong == "no TLS" or expected in finding
    assert doctor.returncode == 1
    assert "hunter2" not in doctor.stdout + doctor.stderr


@pytest.mark.parametrize("parameters", [
    "ssl_cert_reqs=CERT_NONE", "ssl_cert_reqs=none&ssl_check_hostname=true", "skip_verify=true&dial_timeout=3s",
    "tls.rejectUnauthorized=false&family=0", "verifyPeer=NONE&timeout=10s", "ssl=true&ssl_cert_reqs=ssl.CERT_NONE",
])  # fmt: skip
def test_every_client_may_ask_for_no_verification(parameters: str, port: int) -> None:
    """redis-py and Celery, go-redis, ioredis, Lettuce and Kombu each have a word for it."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        client = Client(f"rediss://localhost:{port}/0?{parameters}")
    assert not client.suspended()


def test_a_missing_certificate_file_is_named_at_once(port: int, authority: Path) -> None:
    """A setting that is wrong: exit code 2, without a look at Redis."""
    nowhere = authority.with_name("nowhere.pem")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", "worker"], capture_output=True, text=True,
        env={**os.environ, "PREFLIGHT_REDIS_URL": f"rediss://u:hunter2@localhost:{port}/0?ssl_ca_certs={nowhere}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: PREFLIGHT_REDIS_URL has the parameter ssl_ca_certs={nowhere}, which cannot be read "
        "(No such file or directory); correct the path\n"
    )


def test_tls_to_a_server_without_it_is_explained() -> None:
    """Redis waits for the end of a line that never comes."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with redis_server("--port", str(port)), Redis(port=port) as plain:
        assert plain.ping()
        settings = load(redis_url=f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none", redis_wait=0)
        with pytest.raises(RedisUnreachable, match="write redis:// instead of rediss://"):
            connect(settings)
