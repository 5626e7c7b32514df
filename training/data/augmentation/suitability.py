"""Whether an augmentation makes sense for the images of a data set; torch-free."""

from typing import Final

from preflight.contract.spec import Augmentation
from preflight.errors import InvalidConfig
from training.data.dataset_info import DatasetInfo

COLOURED: Final = ("saturation", "hue", "random_grayscale")
"""Fields that change nothing in grey images."""
DRAWN: Final = ("erode_probability", "dilate_probability")
"""Fields for strokes of ink, which images in colour have none of."""
FLIPS: Final = ("random_horizontal_flip", "random_vertical_flip")
WRITTEN: Final = frozenset({"mnist", "emnist", "qmnist", "kmnist", "digits"})
"""Built-in data sets of handwritten signs."""
DIGITS: Final = frozenset("0123456789")


def require_suitable(augmentation: Augmentation, info: DatasetInfo) -> None:
    """Refuse an augmentation that makes no sense for the images of a data set; raises `InvalidConfig`."""
    channels, height, width = info.shape
    fields, images = (DRAWN, "in colour") if channels > 1 else (COLOURED, "grey")
    for field in fields:
        value = getattr(augmentation, field)
        if value:
            raise InvalidConfig(
                f"augmentation.{field} is {value}, but images of {info.name} are {images}; leave it out",
                field=f"augmentation.{field}",
            )
    padding, side = augmentation.random_crop_padding, min(height, width)
    if padding >= side:
        raise InvalidConfig(
            f"augmentation.random_crop_padding is {padding}, but images of {info.name} are {height}x{width}, so that a "
            f"crop may show nothing of them; use at most {side - 1}",
            field="augmentation.random_crop_padding",
        )


def flip_warning(augmentation: Augmentation, info: DatasetInfo) -> str | None:
    """Return a sentence on what is wrong with mirrored images of handwritten signs; None: nothing is."""
    flipped = [field for field in FLIPS if getattr(augmentation, field)]
    if not flipped or not (info.name in WRITTEN or _has_digits(info)):
        return None
    return (
        f"augmentation.{flipped[0]} mirrors images of {info.name}, but a mirrored sign is another one or none; leave "
        "it out unless that is meant"
    )


def _has_digits(info: DatasetInfo) -> bool:
    """Whether an imported data set has grey images and all ten digits as class names: fewer may be plain numbers."""
    return info.inverted is not None and info.shape[0] == 1 and {*info.class_names} >= DIGITS
