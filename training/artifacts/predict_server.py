"""Prediction process: answers requests that come over a socket; those that wait together form one batch.

A frame is its length, 4 bytes, big-endian, and so many bytes. A request is its number, 4 bytes; the length of a JSON
object, 4 bytes; that object (`Asked`); and each picture as a frame. An answer is the number, 4 bytes; the length of a
JSON object, 4 bytes; that object (`Summary`); and JSON objects, separated by commas, one for each picture.
"""

import json
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NoReturn, TypedDict

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from preflight.errors import ArtifactError, InvalidConfig, PreflightError
from preflight.files.journal import JournalWriter
from preflight.pictures.reading import Picture, Reading
from preflight.recognizer.model import Model
from preflight.recognizer.recognizer import MAX_BATCH, open_model
from training.artifacts.model_dir import require_files
from training.process.child_main import StopFlag, serve_request

MODULE: Final = "training.artifacts.predict_server"
MAX_MODELS: Final = 4
"""Most models that are kept in memory."""
RECEIVED: Final = 1 << 20
"""Bytes that are read from the socket at once."""
LENGTH: Final = struct.Struct("!I")
HEAD: Final = struct.Struct("!II")
DIGITS: Final = 6
"""Decimals of a probability."""


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Serving:
    """Source of the requests, and their limits."""

    socket: Path
    idle_seconds: float
    """Seconds without a request after which the process ends and its memory is free."""
    most_pixels: int
    """Most pixels of a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Head of a request, before its pictures."""

    model: str
    """Directory of the model."""
    version: str
    """Version of the model; another version is loaded again."""
    sha256: str
    """Digest of the weights, for the answer."""
    files: tuple[tuple[str, str], ...] = ()
    """Name and sha256 of each file of the model, which are compared when it is loaded; empty: not compared."""
    reading: bool = False
    """Whether the answer contains the network's view of each picture, which takes as long as the network."""


class Summary(TypedDict, total=False):
    """Figures that a service counts, and the reason why a request has no answer."""

    batch: int
    """Pictures that were recognized together, those of other requests included."""
    classes: list[str]
    """Name of the class of each picture; empty for one that cannot be read."""
    reason: str
    """Reason of the error, where none of the pictures can be recognized; the body is the error's message then."""


@dataclass(slots=True)
class Request:
    """Pictures that wait for their answer."""

    number: int
    asked: Asked
    pictures: list[bytes]


REQUEST = TypeAdapter(Serving)
ASKED: Final = TypeAdapter(Asked)
HEADS: Final = 64
"""Heads that each side keeps, so that it does not write or read the same one for each request."""


def run(request: Serving, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Answer requests until the service closes the connection, or none comes for `idle_seconds`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(request.socket))
        connection.settimeout(request.idle_seconds)
        server = PredictServer(request.most_pixels)
        received = bytearray()
        while True:
            try:
                data = connection.recv(RECEIVED)
            except TimeoutError:
                return
            if not data:
                return
            received += data
            waiting = [parse_request(frame) for frame in take_frames(received)]
            if waiting:
                connection.sendall(b"".join(server.answer(waiting)))


class PredictServer:
    """Recognizes pictures by models that it keeps in memory."""

    def __init__(self, most_pixels: int) -> None:
        self._most_pixels = most_pixels
        self._models: OrderedDict[tuple[str, str], Model] = OrderedDict()
        self._prefix = os.urandom(8).hex()
        self._answered = 0

    def answer(self, waiting: Sequence[Request]) -> Iterator[bytes]:
        """Yield the frame that answers each request, those of one model together."""
        groups: dict[tuple[str, str], list[Request]] = {}
        for request in waiting:
            groups.setdefault((request.asked.model, request.asked.version), []).append(request)
        for key, group in groups.items():
            try:
                yield from self._recognize(self._model(key, group[0].asked.files), group)
            except PreflightError as error:
                for request in group:
                    yield answer_frame(request.number, {"reason": error.reason}, error.message.encode())

    def _model(self, key: tuple[str, str], files: tuple[tuple[str, str], ...]) -> Model:
        """Return a model from memory, or load it; raises `PreflightError`."""
        model = self._models.get(key)
        if model is None:
            if files:
                require_files(Path(key[0]), dict(files))
            try:
                model = open_model(Path(key[0]))
            except InvalidConfig as error:  # of the model, not of the request
                raise ArtifactError(f"the model cannot be opened: {error.message}", field="model") from error
            self._models[key] = model
            while len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return model

    def _recognize(self, model: Model, requests: Sequence[Request]) -> Iterator[bytes]:
        """Yield the frame that answers each request to one model."""
        readings: list[Reading | InvalidConfig] = []
        for request in requests:
            readings += [self._read(model, picture) for picture in request.pictures]
        readable = [reading for reading in readings if not isinstance(reading, InvalidConfig)]
        batches = [readable[first : first + MAX_BATCH] for first in range(0, len(readable), MAX_BATCH)]
        found = [row for batch in batches for row in self._encoded(model, batch)]
        answers = iter(found)
        rest = iter(readings)
        for request in requests:
            classes, bodies = [], []
            for _ in request.pictures:
                reading = next(rest)
                if isinstance(reading, InvalidConfig):
                    name, body = "", json.dumps({"error": {"reason": reading.reason, "message": reading.message}})
                else:
                    name, body = next(answers)
                    if request.asked.reading:
                        body = f'{body[:-1]},"reading":{json.dumps(reading.described())}}}'
                self._answered += 1
                classes.append(name)
                said = f'{{"id":"{self._prefix}{self._answered:08x}","model_sha256":"{request.asked.sha256}",'
                bodies.append(said + body[1:])
            yield answer_frame(request.number, {"batch": len(readable), "classes": classes}, ",".join(bodies).encode())

    def _read(self, model: Model, data: bytes) -> Reading | InvalidConfig:
        try:
            return model.read(Picture(data), self._most_pixels)
        except InvalidConfig as error:
            return error
        except Exception as error:
            return InvalidConfig(f"the picture cannot be read ({type(error).__name__}); save it again", field="image")

    def _encoded(self, model: Model, readings: Sequence[Reading]) -> Iterator[tuple[str, str]]:
        """Yield the name of the class of each picture, and its answer as JSON."""
        import numpy as np

        probabilities = model.recognize(np.stack([reading.image for reading in readings]))
        labels = probabilities.argmax(1).tolist()
        for reading, label, row in zip(readings, labels, probabilities.tolist(), strict=True):
            shares = [repr(round(value, DIGITS)) for value in row]
            parts = ",".join([f"{quoted}:{share}" for quoted, share in zip(model.quoted, shares, strict=True)])
            body = (
                f'{{"class":{model.quoted[label]},"probability":{shares[label]},"probabilities":{{{parts}}},'
                f'"uncertain":{json.dumps(model.is_uncertain(row[label], reading))}}}'
            )
            yield model.names[label], body


def request_frame(number: int, asked: Asked, pictures: Sequence[bytes]) -> bytes:
    """Return a request as it is sent."""
    head = _written(asked)
    parts = [HEAD.pack(number, len(head)), head]
    for picture in pictures:
        parts += (LENGTH.pack(len(picture)), picture)
    return b"".join([LENGTH.pack(sum(map(len, parts))), *parts])


def parse_request(frame: bytes) -> Request:
    """Return the request in a frame."""
    number, length = HEAD.unpack_from(frame)
    pictures = take_frames(bytearray(frame[HEAD.size + length :]))
    return Request(number, _parsed(frame[HEAD.size : HEAD.size + length]), pictures)


@lru_cache(HEADS)
def _written(asked: Asked) -> bytes:
    return ASKED.dump_json(asked)


@lru_cache(HEADS)
def _parsed(head: bytes) -> Asked:
    return ASKED.validate_json(head)


def answer_frame(number: int, summary: Summary, body: bytes) -> bytes:
    """Return an answer as it is sent."""
    head = json.dumps(summary).encode()
    return b"".join(
        (LENGTH.pack(HEAD.size + len(head) + len(body)), HEAD.pack(number, len(head)), head, body)
    )  # fmt: skip


def parse_answer(frame: bytes) -> tuple[int, Summary, bytes]:
    """Return number, summary and body of an answer."""
    number, length = HEAD.unpack_from(frame)
    summary: Summary = json.loads(frame[HEAD.size : HEAD.size + length])
    return number, summary, frame[HEAD.size + length :]


def take_frames(received: bytearray) -> list[bytes]:
    """Take the whole frames from the beginning of what was received, and return their contents."""
    frames, start = [], 0
    while len(received) - start >= LENGTH.size:
        (length,) = LENGTH.unpack_from(received, start)
        end = start + LENGTH.size + length
        if len(received) < end:
            break
        frames.append(bytes(received[start + LENGTH.size : end]))
        start = end
    del received[:start]
    return frames


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
