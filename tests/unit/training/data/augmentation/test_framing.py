"""Flips and crops: each against torchvision's, and their amounts."""

import math

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from preflight.contract.spec import Augmentation
from training.data.augmentation.augment import augment
from training.data.augmentation.framing import flip, padded_crop, resized_crop


def pictures(count: int, channels: int = 3, height: int = 20, width: int = 24) -> Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(1))


def augmented(images: Tensor, augmentation: Augmentation) -> Tensor:
    return augment(images, augmentation, seed=3, epoch=0, samples=torch.arange(len(images)))


def test_flips_are_torchvisions() -> None:
    """The chosen images alone."""
    chosen = torch.tensor([True, False, True])
    for dim, expected in ((-1, reference.horizontal_flip), (-2, reference.vertical_flip)):
        images = pictures(3)
        before = images.clone()
        flip(images, chosen, dim)
        assert torch.equal(images[chosen], expected(before[chosen]))
        assert torch.equal(images[1], before[1])


def test_padded_crops_are_torchvisions() -> None:
    """At every offset that there is."""
    offsets = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    images = pictures(len(offsets))
    found = padded_crop(images, offsets, 3)
    for image, (left, top), crop in zip(images, offsets.tolist(), found, strict=True):
        assert torch.equal(crop, reference.crop(reference.pad(image, [3]), top, left, 20, 24))


def test_resized_crops_are_torchvisions() -> None:
    """From one pixel to the whole image."""
    parts = [(0, 0, 24, 20), (3, 5, 1, 1), (0, 0, 1, 20), (12, 10, 12, 10), (5, 2, 13, 7), (23, 19, 1, 1)]
    images = pictures(len(parts))
    placed = torch.tensor(parts)
    found = resized_crop(images, placed[:, :2], placed[:, 2:])
    for image, (left, top, width, height), crop in zip(images, parts, found, strict=True):
        wanted = reference.resized_crop(image, top, left, height, width, [20, 24], antialias=True)
        torch.testing.assert_close(crop, wanted, atol=2e-5, rtol=0)


def test_flips_and_offsets_have_their_shares() -> None:
    """Of 4,000 images, each within 4.5 standard deviations."""
    images = torch.zeros(4000, 1, 9, 9)
    images[:, :, 2, 3] = 1
    flipped = augmented(images, Augmentation(random_horizontal_flip=0.3, random_vertical_flip=0.6))
    for share, found in ((0.3, flipped[..., 5].sum()), (0.6, flipped[:, :, 6].sum())):
        assert abs(float(found) - 4000 * share) < 4.5 * math.sqrt(4000 * share * (1 - share))
    moved = augmented(images, Augmentation(random_crop_padding=2)).mean((0, 1))
    assert float(moved[:5, 1:6].min()) > 0
    assert int((moved > 0).sum()) == 25
    assert abs(float(moved[2, 3]) - 1 / 25) < 4.5 * math.sqrt(1 / 25 * 24 / 25 / 4000)


def test_parts_have_the_scale_and_ratio_that_are_asked_for() -> None:
    """Of an image whose pixels say where they are."""
    side = 64
    place = torch.arange(side, dtype=torch.float32) / side
    images = torch.stack((place.expand(side, side), place[:, None].expand(side, side)))[None].repeat(2000, 1, 1, 1)
    found = augmented(images, Augmentation(random_resized_crop_scale=0.25, random_resized_crop_ratio=2.0))
    width, height = (
        (found[:, channel].amax((1, 2)) - found[:, channel].amin((1, 2))) * side + 1 for channel in range(2)
    )
    area = (width * height) / side**2
    assert 0.22 < float(area.min()) < 0.3
    assert 0.9 < float(area.max()) <= 1.001
    ratio = width / height
    assert 0.47 < float(ratio.min()) < 0.55
    assert 1.8 < float(ratio.max()) < 2.15
