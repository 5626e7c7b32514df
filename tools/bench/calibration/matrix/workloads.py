"""Workloads that are not built in: MNIST with a short test set, the example of a user's own task, a perceptron.

    python -m tools.bench.calibration.matrix.workloads DATASET CACHE_DIR

prepares a data set.
"""

import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training.data.builtin.catalog import MNIST
from training.data.datasets import Dataset, LabeledImages, Samples
from training.data.prepare import prepare
from worker.config.settings import load

if TYPE_CHECKING:
    from torch import nn

ROOT: Final = Path(__file__).parents[4]
TEST: Final = 1_000
"""Test samples: with all 10,000 a starved container would test for longer than it trains."""
ENTRY_POINTS: Final = """
[preflight.datasets]
mnist-short = tools.bench.calibration.matrix.workloads:MNIST_SHORT
shapes = own_task.shapes:SHAPES
[preflight.models]
shapes-net = own_task.network:shapes_net
two-layers = tools.bench.calibration.matrix.workloads:two_layers
"""


@dataclass(frozen=True, slots=True)
class ShortTest:
    """Another data set with its first `TEST` test samples."""

    whole: Dataset

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.whole.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.whole.shape

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the files of the whole data set."""
        return self.whole.sources(data_dir)

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Load the whole data set and cut its test set."""
        samples = self.whole.load(data_dir, download=download)
        test = LabeledImages(images=samples.test.images[:TEST], labels=samples.test.labels[:TEST])
        return replace(samples, test=test)


MNIST_SHORT: Final = ShortTest(MNIST)


def two_layers(shape: tuple[int, int, int], classes: int) -> "nn.Module":
    """Return a perceptron with a hidden layer of 256, as first examples have it."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 256), nn.ReLU(), nn.Linear(256, classes))


def python_path(directory: Path) -> str:
    """Register the workloads in `directory` and return the PYTHONPATH with which Pythons find them."""
    package = directory / "matrix-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: matrix\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    own_task = ROOT / "deploy" / "examples" / "own_task"
    return os.pathsep.join(map(str, (directory, ROOT, ROOT / "client", own_task, os.environ.get("PYTHONPATH", ""))))


def main() -> None:
    """Prepare the data set that the command line names."""
    prepare(sys.argv[1], load().data_dir, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
