"""The child that looks for wrong labels: `python -m training.loop.issues_child REQUEST`.

The data set, training and test samples together, is divided into folds; a quick training on the others gives the class
probabilities of each fold. A sample is suspicious where the class that it is given is improbable. How many labels are
wrong is estimated by confident learning: a sample counts where another class is more probable than that class is on
average for its own samples (Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels", JAIR 70, 2021).
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.errors import ChildStopped
from preflight.files.journal import JournalWriter
from training.process.child_main import serve_request

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.dataset_store import PreparedDataset

MODULE: Final = "training.loop.issues_child"
FOLDS: Final = 2
"""Number of folds by default."""
BATCH, LEAST_BATCH = 128, 8
BATCH_PIXELS: Final = 1 << 17
"""Most pixels of a batch of large pictures: on a worker the search has 1 GiB of memory, of which torch takes half."""
LEAST_STEPS: Final = 400
"""Least steps of the training for one fold; more passes where there are few samples."""
LEAST_EPOCHS, MOST_EPOCHS = 2, 40
RATE: Final = 0.005
TIMED: Final = 10
"""Steps from which the cost is estimated, after as many others."""
TOLD: Final = 0.5
"""Seconds between two records of the progress."""
PIXELS_PER_SECOND: Final = 2e6
"""Rough number of pixels that `cnn` trains per second on one processor, for the cost before anything was measured."""
START_SECONDS: Final = 5.0
"""Rough seconds until the first step."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class IssuesRequest:
    """Request to the child."""

    store: Path
    model: str
    folds: int
    threads: int
    most: int
    """Samples that are listed, the most suspicious first."""
    seed: int = 0


REQUEST = TypeAdapter(IssuesRequest)


def course_of(samples: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return batch size, epochs, and steps of an epoch of the training on so many samples."""
    most = min(BATCH, max(LEAST_BATCH, BATCH_PIXELS // (shape[1] * shape[2])))
    size = min(most, max(2, samples // 4))
    steps = max(1, samples // size)
    return size, min(MOST_EPOCHS, max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))), steps


def expected_seconds(samples: int, shape: tuple[int, int, int], folds: int, processors: int) -> float:
    """Return roughly the seconds of a search, before anything was measured."""
    size, epochs, steps = course_of(samples - samples // folds, shape)
    pixels = folds * epochs * steps * size * shape[1] * shape[2]
    return START_SECONDS + pixels / (PIXELS_PER_SECOND * processors)


def find_issues(request: IssuesRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:
    """Train and predict; record `step` with the progress and the seconds left, and `done` with the samples."""
    import torch

    from training.data.dataset_store import open_dataset

    torch.set_num_threads(request.threads)
    torch.manual_seed(request.seed)
    began = time.perf_counter()
    folds = _Folds(open_dataset(request.store), request, journal, should_stop)
    probabilities = torch.cat([folds.predict(fold) for fold in range(request.folds)])[torch.argsort(folds.order)]
    given = folds.labels
    own = probabilities.gather(1, given[:, None])[:, 0]
    thresholds = torch.stack([
        own[given == label].mean() if bool((given == label).any()) else torch.tensor(1.0)
        for label in range(probabilities.shape[1])
    ])  # fmt: skip
    confident = torch.where(probabilities >= thresholds, probabilities, torch.zeros(()))
    estimated = int(((confident.argmax(1) != given) & (confident.max(1).values > 0)).sum())
    listed = torch.argsort(own, stable=True)[: request.most].tolist()
    suggested = probabilities.argmax(1)
    journal.write("done", {
        "estimated": estimated, "samples": len(given), "accuracy": float((suggested == given).float().mean()),
        "seconds": time.perf_counter() - began,
        "issues": [[number, int(given[number]), int(suggested[number]), round(float(own[number]), 6),
                    round(float(probabilities[number].max()), 6)] for number in listed],
    })  # fmt: skip


class _Folds:
    """Samples in a random order, divided into folds of equal length."""

    def __init__(
        self, store: "PreparedDataset", request: IssuesRequest, journal: JournalWriter, should_stop: Callable[[], bool]
    ) -> None:
        import torch

        from training.data.read_ahead import ReadAhead

        self._store, self._request, self._journal, self._should_stop = store, request, journal, should_stop
        self._train_ahead, self._test_ahead = ReadAhead(store.train_images), ReadAhead(store.test_images)
        self.labels = torch.cat((store.train_labels, store.test_labels)).long()
        self.order = torch.randperm(len(self.labels))
        self._parts = self.order.tensor_split(request.folds)
        self._done = self._total = 0
        self._since = self._next = 0.0

    def predict(self, fold: int) -> "Tensor":
        """Return the class probabilities of a fold, by a training on the others."""
        import torch
        from torch.nn.functional import cross_entropy

        from training.models.factory import build

        info = self._store.info
        model = build(self._request.model, info.shape, info.classes)
        rest = torch.cat([part for other, part in enumerate(self._parts) if other != fold])
        size, epochs, steps = course_of(len(rest), info.shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps)
        model.train()
        self._total = self._request.folds * epochs * steps
        for _ in range(epochs):
            for chosen in rest[torch.randperm(len(rest))][: steps * size].split(size):
                if self._should_stop():
                    raise ChildStopped("the search for wrong labels was stopped")
                optimizer.zero_grad()
                cross_entropy(model(self._images(chosen)), self.labels[chosen]).backward()
                optimizer.step()
                schedule.step()
                self._tell()
        model.eval()
        with torch.inference_mode():
            parts = [model(self._images(chosen)).softmax(1) for chosen in self._parts[fold].split(2 * size)]
        return torch.cat(parts)

    def _tell(self) -> None:
        """Count a step, and record the progress now and then."""
        self._done += 1
        now = time.perf_counter()
        if self._done == TIMED:
            self._since = now
        elif self._done >= 2 * TIMED and now >= self._next:
            self._next = now + TOLD
            left = (now - self._since) / (self._done - TIMED) * (self._total - self._done)
            self._journal.write("step", {"done": self._done, "steps": self._total, "seconds_left": left})

    def _images(self, numbers: "Tensor") -> "Tensor":
        """Return the normalized images of samples, float32 [n, C, H, W]."""
        import torch

        store, train = self._store, len(self._store.train_labels)
        is_train = numbers < train
        from_train, from_test = numbers[is_train], numbers[~is_train] - train
        self._train_ahead.ask(from_train)
        self._test_ahead.ask(from_test)
        found = torch.empty((len(numbers), *store.info.shape), dtype=torch.uint8)
        found[is_train] = store.train_images[from_train]
        found[~is_train] = store.test_images[from_test]
        return (found.float() - store.info.mean) / store.info.std


def main() -> NoReturn:
    """Look for wrong labels in the data set of the request that the command line names."""
    serve_request(REQUEST, find_issues)


if __name__ == "__main__":
    main()
