"""Prediction child that listens: pictures one after the other, so that torch is imported once.

It ends by itself after `IDLE_SECONDS` without a question.
"""

import select
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.errors import InvalidConfig
from preflight.files.journal import JournalWriter
from training.artifacts.model_dir import MANIFEST
from training.artifacts.predict_child import Model, open_model, predict
from training.process.child_main import StopFlag, serve_request

MODULE: Final = "training.artifacts.predict_listener"
MAX_MODELS: Final = 4
"""Kept in memory."""
MAX_QUESTIONS: Final = 10_000
"""Until the process ends: its journal grows with each."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Question:
    """A picture for a model."""

    model: Path
    """An artifact's directory."""
    image: Path
    most_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Listening:
    """How long to wait for the next question."""

    idle_seconds: float


QUESTION = TypeAdapter(Question)
REQUEST = TypeAdapter(Listening)


def run(request: Listening, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Record `ready`, then for each question on standard input, in turn, `prediction` or `refused`."""
    kept = lru_cache(maxsize=MAX_MODELS)(_open)
    journal.write("ready", {}, durable=True)
    for line in _lines(request.idle_seconds):
        question = QUESTION.validate_json(line)
        try:
            model = kept(question.model, _version(question.model))
        except InvalidConfig as error:
            journal.write("refused", {"message": error.message}, durable=True)
            continue
        predict(model, question.image, journal, most_pixels=question.most_pixels)


def _open(path: Path, version: int) -> Model:  # noqa: ARG001 - a model of another version is another one
    return open_model(path)


def _version(path: Path) -> int:
    """Return the time at which a model was put in place; 0 where there is none."""
    try:
        return (path / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0


def _lines(idle_seconds: float) -> Iterator[bytes]:
    """Yield lines of standard input until its end, or until none comes for so long."""
    for _ in range(MAX_QUESTIONS):
        if not select.select([sys.stdin], [], [], idle_seconds)[0]:
            return
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
