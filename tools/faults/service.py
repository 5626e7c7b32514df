"""A service under test, and what its scenes share."""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Generic, Self, TypeVar

from tools.faults.jobs import Undisturbed
from tools.faults.scene import Scene

S = TypeVar("S", bound=Scene)


class Service(ABC, Generic[S]):
    """A service under test, and what its scenes share."""

    name: str

    def __init__(self, root: Path) -> None:
        self.root = root
        self.expected: Undisturbed | None = None
        self._numbers = count(1)
        self._idle: list[S] = []
        self._scenes: list[S] = []
        self._lock = threading.Lock()

    def learn(self) -> None:
        """Run one job undisturbed, to know the pace and the result that disturbed ones must have."""
        with self.fresh() as scene:
            job, seen = scene.new_job(), False
            submitted = time.time()
            scene.submit(job)
            scene.add_container()
            while not scene.ended(job) and time.time() - submitted < scene.patience:
                scene.sleep(0.1)
                seen = seen or any(scene.is_training(process) for process in scene.strangers())
            whole_s = time.time() - submitted
            scene.problems += scene.verdict(job, time.time()).problems
            if scene.problems or not seen:
                raise RuntimeError(f"an undisturbed job of {self.name}: {scene.problems or 'not seen training'}")
            self.expected = Undisturbed(scene.pace(job, whole_s), scene.result(job))

    @contextlib.contextmanager
    def fresh(self) -> Iterator[S]:
        """Yield a new scene without any container; its directory stays when promises were broken in it."""
        with self._new() as scene:
            yield scene
        if scene.intact:
            scene.discard()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[S]:
        """Yield a scene with one running worker, used before by others unless promises were broken in it."""
        with self._lock:
            scene = self._idle.pop() if self._idle else None
        with contextlib.ExitStack() as stack:
            if scene is None:
                scene = self._new()
                scene.open()
                scene.add_container()
            stack.push(scene)
            yield scene
            if scene.intact:
                stack.pop_all()
                with self._lock:
                    self._idle.append(scene)

    def _new(self) -> S:
        scene = self._make(self.root / f"{self.name[0]}{next(self._numbers)}")
        with self._lock:
            self._scenes.append(scene)
        return scene

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for scene in self._scenes:  # those of an interrupted round, too
            scene.close()
        for scene in self._idle:
            scene.discard()

    @abstractmethod
    def _make(self, directory: Path) -> S:
        """Return a scene in `directory`."""
