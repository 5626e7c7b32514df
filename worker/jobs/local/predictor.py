"""Predictions of models by a process that is kept between questions."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final

from preflight.errors import ChildFailed, InvalidConfig, PreflightError
from preflight.files.journal import Record
from training.artifacts.predict_listener import MODULE, QUESTION, REQUEST, Listening, Question
from training.process.child import Child
from training.process.runner import TICK_SECONDS, raise_failure
from training.system.requirements import NEEDED, require_training_packages
from worker.jobs.local.predict import ImagePrediction

IDLE_SECONDS: Final = 300.0
"""Without a question, after which the process ends and its memory is free."""
START_SECONDS: Final = 60.0
"""For importing torch, on a busy machine from a cold disk."""
ANSWER_SECONDS: Final = 20.0
MAX_PIXELS: Final = 4_000_000
"""Of a picture; decoded it takes several bytes for each."""
PICTURE: Final = "picture"


def can_predict() -> bool:
    """Whether what a prediction needs is installed here."""
    return all(find_spec(name) is not None for name in NEEDED)


class TooSlow(ChildFailed):
    """The process took too long."""


class Predictor:
    """Asks one process, which starts with the first question, one question at a time.

    Every call has to come from the same thread: the kernel ends the process together with the thread that started it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the process with this environment once it is needed."""
        self._environment = environment
        self._lock = Lock()
        self._resources = ExitStack()
        self._running: tuple[Child, Path] | None = None

    def predict(self, model: Path, picture: bytes) -> ImagePrediction:
        """Return what the model of an artifact's directory sees in a PNG or JPEG.

        Raises:
            InvalidConfig: the picture or the model cannot be used.
            MissingPackage: torch is not installed here.
            ChildFailed: the process died or took too long; the next question gets another one.
        """
        require_training_packages()
        with self._lock:
            was_running = self._running is not None
            try:
                return self._ask(model, picture)
            except PreflightError as error:
                if isinstance(error, InvalidConfig):
                    raise
                self._end()
                if isinstance(error, TooSlow) or not was_running:
                    raise
            return self._ask(model, picture)  # it ended between two questions

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ask(self, model: Path, picture: bytes) -> ImagePrediction:
        child, directory = self._child()
        path = directory / PICTURE
        path.write_bytes(picture)
        child.send(QUESTION.dump_json(Question(model=model, image=path, most_pixels=MAX_PIXELS)))
        record = _next_record(child, ANSWER_SECONDS)
        if record.kind == "refused":
            message = str(record.payload["message"])
            raise InvalidConfig(message.replace(str(path), "the picture"), field="image")
        return ImagePrediction.model_validate({**record.payload, "image": PICTURE})

    def _child(self) -> tuple[Child, Path]:
        """Return the process, ready, and the directory of its files."""
        if self._running is not None and self._running[0].running():
            return self._running
        self._end()
        directory = Path(self._resources.enter_context(TemporaryDirectory(prefix="preflight-")))
        body = REQUEST.dump_json(Listening(idle_seconds=IDLE_SECONDS))
        child = Child(MODULE, body, directory, self._environment, task="prediction", listens=True)
        self._resources.enter_context(child)
        _next_record(child, START_SECONDS)
        self._running = child, directory
        return self._running

    def _end(self) -> None:
        self._running = None
        self._resources.close()


def _next_record(child: Child, seconds: float) -> Record:
    """Return the next record of a child; raises `ChildFailed` where none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        ended = not child.running()
        for record in child.records():
            if record.kind == "fail":
                raise_failure(record)
            return record
        if ended:
            raise child.exit_status().error(child.task)
        if time.monotonic() > deadline:
            raise TooSlow(f"the {child.task} process did not answer within {seconds:g} s")
        child.wait(TICK_SECONDS)
