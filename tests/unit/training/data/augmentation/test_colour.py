"""Colour changes: each against torchvision's, within its range, and refused for images that have no colour."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from preflight.contract.spec import Augmentation
from preflight.errors import InvalidConfig
from training.data.augmentation.augment import COLOURS, augment
from training.data.augmentation.colour import brighten, change_contrast, make_grey, saturate, shift_hue
from training.data.augmentation.suitability import COLOURED, DRAWN, FLIPS, flip_warning, require_suitable
from training.data.dataset_info import DatasetInfo

AUGMENTATION = TypeAdapter(Augmentation)
JITTER = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, random_grayscale=0.2)


def pictures(count: int = 12) -> Tensor:
    """Return random pictures in colour, of which one is grey and one black."""
    images = torch.rand(count, 3, 20, 24, generator=torch.Generator().manual_seed(1))
    images[0] = images[0, :1]
    images[1] = 0
    return images


def with_field(name: str, value: float) -> Augmentation:
    return AUGMENTATION.validate_json(json.dumps({name: value}))


def info_of(name: str, shape: tuple[int, int, int]) -> DatasetInfo:
    return DatasetInfo(
        name=name, path=Path(), shape=shape, classes=10, train_count=1, test_count=1, mean=1.0, std=1.0, sources=()
    )


@pytest.mark.parametrize(("change", "expected", "amounts"), [
    (brighten, reference.adjust_brightness, (0.0, 2.0)),
    (change_contrast, reference.adjust_contrast, (0.0, 2.0)),
    (saturate, reference.adjust_saturation, (0.0, 2.0)),
    (shift_hue, reference.adjust_hue, (-0.5, 0.5)),
])  # fmt: skip
def test_a_change_is_torchvisions(
    change: Callable[[Tensor, Tensor], None], expected: Callable[[Tensor, float], Tensor], amounts: tuple[float, float]
) -> None:
    """By an amount for each image, its limits among them."""
    images = pictures()
    factors = torch.linspace(*amounts, len(images))
    wanted = torch.stack([expected(image, float(factor)) for image, factor in zip(images, factors, strict=True)])
    change(images, factors)
    torch.testing.assert_close(images, wanted, atol=2e-5, rtol=0)


def test_grey_is_torchvisions() -> None:
    """The chosen ones alone."""
    images = pictures(3)
    before = images.clone()
    make_grey(images, torch.tensor([False, False, True]))
    torch.testing.assert_close(images[2], reference.rgb_to_grayscale(before[2], 3))
    assert torch.equal(images[:2], before[:2])


@pytest.mark.parametrize("field", COLOURS)
def test_a_colour_change_is_the_same_in_any_batch(field: str) -> None:
    """Alone, in parts and with more threads, to the bit; and it changes most of the images."""
    images, samples = pictures(64), torch.arange(64)
    wanted = with_field(field, 0.5)

    def run(part: Tensor) -> Tensor:
        return augment(images[part], wanted, seed=2, epoch=1, samples=part)

    whole = run(samples)
    for parts in (64, 9, 2):
        assert torch.equal(torch.cat([run(part) for part in samples.chunk(parts)]), whole)
    changed = (whole != images).flatten(1).any(1).float().mean()
    assert 0.25 < float(changed) < 1


def test_factors_reach_the_range_and_no_further() -> None:
    """Brightness 0.4 is a factor from 0.6 to 1.4; 1.5 begins at 0, as torchvision's ColorJitter has it."""
    images = torch.full((4000, 3, 1, 1), 0.4)
    for most, low, high in ((0.4, 0.24, 0.56), (1.5, 0.0, 1.0)):
        found = augment(images, Augmentation(brightness=most), seed=0, epoch=0, samples=torch.arange(4000))
        assert low <= float(found.min()) < low + 0.01
        assert high - 0.01 < float(found.max()) <= high


def test_all_of_it_stays_within_range() -> None:
    """Together with what is for digits, too."""
    images = pictures(40)
    found = augment(images, replace(JITTER, blur_sigma=1.0, noise_probability=0.1), seed=0, epoch=0,
                    samples=torch.arange(40))  # fmt: skip
    assert found.shape == images.shape
    assert bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("field", COLOURED)
def test_colour_is_refused_for_grey_images(field: str) -> None:
    wanted = with_field(field, 0.25)
    with pytest.raises(InvalidConfig) as caught:
        require_suitable(wanted, info_of("mnist", (1, 28, 28)))
    says = f"augmentation.{field} is 0.25, but images of mnist are grey; leave it out"
    assert (caught.value.message, caught.value.field) == (says, f"augmentation.{field}")
    require_suitable(wanted, info_of("photos", (3, 28, 28)))


@pytest.mark.parametrize("field", DRAWN)
def test_what_is_about_strokes_is_refused_for_images_in_colour(field: str) -> None:
    wanted = with_field(field, 0.25)
    with pytest.raises(InvalidConfig) as caught:
        require_suitable(wanted, info_of("photos", (3, 32, 32)))
    assert caught.value.message == f"augmentation.{field} is 0.25, but images of photos are in colour; leave it out"
    require_suitable(wanted, info_of("mnist", (1, 28, 28)))


def test_a_crop_beyond_the_image_is_refused() -> None:
    """It would show the padding alone."""
    with pytest.raises(InvalidConfig, match=r"padding is 28, but images of photos are 40x28, so .* at most 27"):
        require_suitable(Augmentation(random_crop_padding=28), info_of("photos", (3, 40, 28)))
    require_suitable(Augmentation(random_crop_padding=27), info_of("photos", (3, 40, 28)))


@pytest.mark.parametrize("field", FLIPS)
def test_a_mirrored_digit_warns(field: str) -> None:
    """Whatever else is asked for; clothes and photographs may be mirrored."""
    wanted = with_field(field, 0.5)
    says = f"augmentation.{field} mirrors images of mnist, but a mirrored sign is another one or none; leave it out"
    warning = flip_warning(wanted, info_of("mnist", (1, 28, 28)))
    assert warning is not None
    assert warning.startswith(says)
    assert flip_warning(wanted, info_of("fashion-mnist", (1, 28, 28))) is None
    assert flip_warning(Augmentation(brightness=0.5), info_of("mnist", (1, 28, 28))) is None


def test_a_flip_of_imported_digits_warns() -> None:
    """All ten digits as class names are digits; fewer, in colour, or of a package may be plain numbers."""
    wanted = Augmentation(random_horizontal_flip=0.5)
    digits = replace(info_of("mine@1", (1, 28, 28)), class_names=tuple("0123456789"), inverted=False)
    assert "mirrors images of mine@1" in str(flip_warning(wanted, digits))
    for other in (
        replace(digits, class_names=tuple("01234")), replace(digits, shape=(3, 28, 28)), replace(digits, inverted=None),
    ):  # fmt: skip
        assert flip_warning(wanted, other) is None


def test_every_field_makes_the_augmentation_active() -> None:
    """But those that only say how."""
    how = {
        "salt_vs_pepper": 0.25, "dots_count": 5, "dots_size": 5, "morphology_kernel": 5,
        "random_resized_crop_ratio": 2.0,
    }  # fmt: skip
    for name in (field.name for field in fields(Augmentation)):
        value = how.get(name, 2 if name == "random_crop_padding" else 0.5)
        assert with_field(name, value).active == (name not in how)
