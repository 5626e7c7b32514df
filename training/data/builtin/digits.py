"""Scikit-learn's digits as a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.errors import DatasetError
from preflight.packages import how_to_install
from training.data.datasets import LabeledImages, Samples

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TRAIN_SAMPLES: Final = 1500
TEST_SAMPLES: Final = 297
"""The last 297 of the 1,797 digits are the test set."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Scikit-learn's bundled digits: 1,797 real 8x8 images of 17 grey levels, enlarged to 28x28; no network.

    Enlarged bilinearly with half-pixel centres: row (or column) i of the result is taken at
    (i + 1/2) * 8/28 - 1/2 of the original, clipped to its edge; levels 0..16 become 0..255.
    """

    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return no files: the images come with scikit-learn."""
        del data_dir
        return ()

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Return the first 1,500 images as training set and the other 297 as test set.

        Raises:
            DatasetError: scikit-learn is not installed.
        """
        del data_dir, download
        import numpy as np

        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DatasetError(
                f"digits comes with scikit-learn, which is not installed; {how_to_install('demo')}", field="digits"
            ) from error
        pixels, targets = load_digits(return_X_y=True)
        small = np.asarray(pixels, dtype=np.float64).reshape(-1, 8, 8)
        labels = np.asarray(targets, dtype=np.uint8)
        images = np.rint(_enlarged(small, self.shape[1]) * (255 / 16)).astype(np.uint8)[:, np.newaxis]
        first = len(images) - TEST_SAMPLES
        return Samples(
            train=LabeledImages(images[:first], labels[:first]),
            test=LabeledImages(images[first:], labels[first:]),
            classes=self.classes,
        )


def _enlarged(images: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    """Return square `images` [N, S, S] as [N, side, side], bilinearly; the formula is in `Digits`."""
    import numpy as np

    small = images.shape[1]
    at = (np.arange(side) + 0.5) * small / side - 0.5
    weights = np.stack([np.interp(at, np.arange(small), row) for row in np.eye(small)], axis=1)
    enlarged: npt.NDArray[np.float64] = weights @ images @ weights.T
    return enlarged


DIGITS: Final = Digits()
