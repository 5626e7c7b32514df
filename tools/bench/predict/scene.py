"""A web service whose alias has two models, and connections to it and to a plain service."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import psutil
from PIL import Image, ImageDraw

from preflight.recognizer.onnx import ONNX
from preflight.redis.server.embedded import redis_server
from tools.faults.machines import free_port
from worker.config.settings import Settings, load, service_environment
from worker.models.promoting import promote_artifact
from worker.models.store import Author, ModelStore, open_store

ALIAS: Final = "bench"
PATH: Final = f"/v1/models/{ALIAS}/predict"
ME: Final = Author(by="bench")
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A service and the path of its requests."""

    name: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A running service whose alias points to the second of two models."""

    ours: Target
    process: psutil.Process
    settings: Settings
    store: ModelStore
    artifacts: Sequence[Path]
    core: int
    """Core on which the service runs; the clients have another one where there is one."""

    @contextmanager
    def plain(self, parser: str) -> Iterator[Target]:
        """Run the plain service on the core of ours, with the same model; `parser` is uvicorn's for HTTP."""
        model = self.store.resolve(ALIAS).directory / ONNX
        target = Target(f"plain with {parser}", free_port(), "/predict")
        command = [sys.executable, "-P", "-m", "tools.bench.predict.plain", str(model), str(target.port), parser]
        with process(command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, {self.core}):
            Connection(target).ask(picture(10))
            yield target


@contextmanager
def scene(enter: Sequence[str] = (), cores: set[int] | None = None) -> Iterator[Scene]:
    """Run our service behind the words `enter`, on `cores` or on the first one."""
    own = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        url = stack.enter_context(redis_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="preflight-predict-")))
        places = {f"{name}_dir": folder / name for name in ("data", "artifact", "cache", "state")}
        settings = load().model_copy(update={"redis_url": url, **places})
        store = open_store(settings)
        artifacts = [train(settings.artifact_dir / f"job{seed}", seed) for seed in range(2)]
        for artifact in artifacts:
            promote_artifact(store, ALIAS, artifact, ME)
            # Each further promotion would export it again, for seconds.
            (artifact / ONNX).write_bytes((store.resolve(ALIAS).directory / ONNX).read_bytes())
        ours = Target("ours", free_port(), PATH)
        command = [*enter, sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(ours.port)]
        service = stack.enter_context(process(command, dict(service_environment(settings)), cores or {own[0]}))
        os.sched_setaffinity(0, {own[-1]})
        stack.callback(os.sched_setaffinity, 0, set(own))
        Connection(ours)  # it listens
        yield Scene(ours, service, settings, store, artifacts, own[0])


def picture(width: int) -> bytes:
    """Return a zero like MNIST's, `width` pixels wide, as PNG."""
    image = Image.new("L", (28, 28))
    left = 14 - width // 2
    ImageDraw.Draw(image).ellipse((left, 4, left + width - 1, 23), outline=255, width=3)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def train(directory: Path, seed: int) -> Path:
    """Write an artifact of `cnn` with random weights; return its directory."""
    program = (
        "import sys, torch; from pathlib import Path; from safetensors.torch import save as encode\n"
        "from training.artifacts.model_dir import save; from training.models.factory import build\n"
        "torch.manual_seed(int(sys.argv[2])); weights = encode(build('cnn', (1, 28, 28), 10).state_dict())\n"
        "reads = {'shape': [1, 28, 28], 'classes': 10, 'mean': 33.3, 'std': 78.6, 'filled': 20 / 28}\n"
        "save(Path(sys.argv[1]), [weights], {'spec': {'model': 'cnn', 'dataset': 'mnist'}, 'input': reads})"
    )
    subprocess.run([sys.executable, "-P", "-c", program, str(directory), str(seed)], check=True)
    return directory


@contextmanager
def process(command: Sequence[str], environment: dict[str, str], cores: set[int]) -> Iterator[psutil.Process]:
    """Run a service on these cores."""
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )  # fmt: skip
    try:
        yield psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait()


class Connection:
    """A connection that is kept open; it reads no more of an answer than it needs, to leave the core to others."""

    def __init__(self, target: Target) -> None:
        """Connect, as soon as the service listens."""
        self._head = f"POST {target.path} HTTP/1.1\r\nhost: localhost\r\n".encode()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", target.port), timeout=60)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes, kind: bytes = b"image/png") -> bytes:
        """Return the body of the answer; raises `SystemExit` for another status than 200."""
        status, content = self.send(body, kind)
        if status != 200:
            raise SystemExit(f"the service answered {status}: {content.decode()[:200]}")
        return content

    def send(self, body: bytes, kind: bytes = b"image/png") -> tuple[int, bytes]:
        """Return status and body of the answer; raises `ConnectionError`."""
        length = str(len(body)).encode()
        self._socket.sendall(
            self._head + b"content-type: " + kind + b"\r\ncontent-length: " + length + b"\r\n\r\n" + body
        )  # fmt: skip
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, content = received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts, missing = [content], size - len(content)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        return int(head[9:12]), b"".join(parts)

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the service closed the connection")
        return data


def resident(service: psutil.Process) -> int:
    """Return the bytes of a process and its children in memory."""
    return sum(each.memory_info().rss for each in (service, *service.children(recursive=True)))
