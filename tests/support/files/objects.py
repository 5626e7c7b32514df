"""An S3 server, and a proxy before it with the faults of networks and services."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_DEFAULT_REGION": "us-east-1"}
"""Environment of an S3 client, except for the URL of the server."""
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
"""Enough for moto, which only tells signed requests from anonymous ones."""


class Objects(ThreadingHTTPServer):
    """Passes requests on to an S3 server, unless it is set to fail, to damage or to hold them."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream
        self.passed_on: list[str] = []
        """Method and path of each request that reached the server."""
        self.released = threading.Event()
        self.reset()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reset(self) -> None:
        """Become a plain proxy; uploads that are held go nowhere."""
        self.failing = 0
        """Requests to answer with 503."""
        self.dropping = 0
        """Answers with content to end in the middle, with the connection."""
        self.damaging = 0
        """Uploads of weights of which one byte is changed, once they are there."""
        self.held = ""
        """Part of the path of the uploads that wait for `released`."""
        given_up, self.holding, self.released = self.released, threading.Event(), threading.Event()
        given_up.set()
        self.passed_on.clear()

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[
        int, list[tuple[str, str]], bytes
    ]:  # fmt: skip
        """Ask the S3 server itself."""
        connection = http.client.HTTPConnection(self.upstream)
        try:
            connection.request(method, path, body, SIGNED if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def content(self, name: str) -> bytes | None:
        """Return an object of the bucket, None where there is none."""
        status, _, body = self.ask("GET", f"/{BUCKET}/{name}")
        return body if status == http.HTTPStatus.OK else None


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Objects

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        if server.failing:
            server.failing -= 1
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        if server.held and self.command == "PUT" and server.held in self.path:
            server.holding.set()
            server.released.wait(60)
            if not server.holding.is_set():
                self.close_connection = True
                return
        server.passed_on.append(f"{self.command} {self.path}")
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = server.ask(self.command, self.path, body, headers)
        if server.damaging and self.command == "PUT" and "model.safetensors" in self.path:
            server.damaging -= 1
            server.ask("PUT", self.path, body[:-1] + bytes([body[-1] ^ 1]))
        with suppress(ConnectionError):  # the client was killed meanwhile
            self._answer(*answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815 - the names of http.server

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        kept = [one for one in headers if one[0].lower() not in ("content-length", "transfer-encoding", "connection")]
        length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        for name, value in [*kept, ("Content-Length", length)]:
            self.send_header(name, value)
        self.end_headers()
        if self.server.dropping and self.command == "GET" and "list-type" not in self.path and status < 300 and body:
            self.server.dropping -= 1
            self.close_connection = True
            body = body[: len(body) // 2]
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@contextmanager
def objects() -> Iterator[Objects]:
    """Run the server and the proxy, with one bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with Objects(f"{host}:{port}") as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            status, _, body = proxy.ask("PUT", f"/{BUCKET}")
            assert status == http.HTTPStatus.OK, body
            yield proxy
        finally:
            proxy.released.set()
            proxy.shutdown()
            server.stop()
