"""Augmentation: random changes to training images, drawn for each sample and computed for a whole batch.

Amounts come from counter-based random numbers, so a sample's result in an epoch is the same, to the bit, in any batch.
"""

import math

import torch
from torch import Tensor

from preflight.contract.spec import Augmentation
from training.data.counter_rng import uniform
from training.data.image_ops import affine, dilate, draw_dots, erode, gaussian_blur

AFFINE_STREAM = 0
MORPHOLOGY_STREAM = 1
BLUR_STREAM = 2
DOTS_STREAM = 3
NOISE_STREAM = 4
"""Streams of random numbers. Renumbering them changes the result of every seed."""


@torch.no_grad()
def augment(images: Tensor, augmentation: Augmentation, *, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Images of the same shape, each changed by amounts drawn for (seed, epoch, its number in `samples`).

    `samples` is int64 [B], on the device of `images`, and holds each image's number in the data set. The
    order is affine, morphology, blur, dots, noise. The input is left as it is; where nothing is active it is
    returned.
    """
    if not augmentation.active:
        return images
    height, width = images.shape[-2:]
    draws = uniform(seed, epoch, samples, _numbers_needed(augmentation, height * width))
    # New ones in any case, as those below change them in place.
    images = _random_affine(images, augmentation, draws[AFFINE_STREAM]) if AFFINE_STREAM in draws else images.clone()
    if MORPHOLOGY_STREAM in draws:
        _thin_and_thicken(images, augmentation, draws[MORPHOLOGY_STREAM][:, 0])
    if BLUR_STREAM in draws:
        images = _random_blur(images, augmentation, draws[BLUR_STREAM][:, 0])
    if DOTS_STREAM in draws:
        _add_dots(images, augmentation, draws[DOTS_STREAM])
    if NOISE_STREAM in draws:
        _add_noise(images, augmentation, draws[NOISE_STREAM])
    return images.clamp_(0, 1)  # interpolation and blur may exceed 1 by a rounding


def _numbers_needed(augmentation: Augmentation, pixels: int) -> dict[int, int]:
    """Return how many random numbers of each stream an image takes, of the streams that are used."""
    numbers = {}
    if augmentation.rotate_degrees or augmentation.translate or augmentation.scale:
        numbers[AFFINE_STREAM] = 4
    if augmentation.erode_probability or augmentation.dilate_probability:
        numbers[MORPHOLOGY_STREAM] = 1
    if augmentation.blur_sigma:
        numbers[BLUR_STREAM] = 1
    if augmentation.dots_probability:
        numbers[DOTS_STREAM] = 1 + 2 * augmentation.dots_count
    if augmentation.noise_probability:
        numbers[NOISE_STREAM] = 2 * min(pixels, _most_of(pixels, augmentation.noise_probability))
    return numbers


def _random_affine(images: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    signed = draws * 2 - 1
    degrees = signed[:, 0] * augmentation.rotate_degrees
    shifts = signed[:, 1:3] * (augmentation.translate * signed.new_tensor([width, height]))
    return affine(images, degrees, shifts, 1 + signed[:, 3] * augmentation.scale)


def _thin_and_thicken(images: Tensor, augmentation: Augmentation, draws: Tensor) -> None:
    eroded = draws < augmentation.erode_probability
    changed = draws < augmentation.erode_probability + augmentation.dilate_probability
    for chosen, change in ((eroded, erode), (changed & ~eroded, dilate)):
        positions = chosen.nonzero()[:, 0]
        images.index_copy_(0, positions, change(images.index_select(0, positions), augmentation.morphology_kernel))


def _random_blur(images: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    # Of the knob, not of the batch's largest sigma, on which a sample's kernel must not depend. Three of them, as
    # OpenCV takes for images of 8 bits: what is left out is less than one of their levels.
    radius = round(3 * augmentation.blur_sigma)
    return gaussian_blur(images, draws * augmentation.blur_sigma, radius)


def _add_dots(images: Tensor, augmentation: Augmentation, draws: Tensor) -> None:
    height, width = images.shape[-2:]
    count, size = augmentation.dots_count, min(augmentation.dots_size, height, width)
    chosen = (draws[:, 0] < augmentation.dots_probability).nonzero()[:, 0]
    corners = draws[chosen, 1:]
    tops = (corners[:, :count] * (height - size + 1)).long()
    lefts = (corners[:, count:] * (width - size + 1)).long()
    draw_dots(images, chosen, tops, lefts, size)


def _add_noise(images: Tensor, augmentation: Augmentation, draws: Tensor) -> None:
    height, width = images.shape[-2:]
    pixels, share = height * width, augmentation.noise_probability
    most = draws.shape[1] // 2
    # From one noisy pixel to the next is geometric: a number for each of these, and not for each pixel.
    positions = (_geometric(draws[:, :most], share) + 1).cumsum(1) - 1
    samples, columns = (positions < pixels).nonzero(as_tuple=True)
    where = positions[samples, columns]
    salt = draws[samples, most + columns] < augmentation.salt_vs_pepper
    images.view(*images.shape[:2], pixels).transpose(1, 2)[samples, where] = salt.to(images.dtype)[:, None]


def _most_of(count: int, share: float) -> int:
    """Return what successes of probability `share` in `count` trials exceed less than once in 10^9 times."""
    mean = count * share
    return math.ceil(mean + 6 * math.sqrt(mean * (1 - share)) + 12)


def _geometric(draws: Tensor, share: float) -> Tensor:
    """Return, for numbers in [0, 1), the failures before the first success of probability `share` > 0, int64."""
    if share == 1:
        return torch.zeros_like(draws, dtype=torch.int64)
    # A boundary that a number meets exactly must not depend on the last bit of a logarithm.
    return (torch.log1p(-draws.double()) / math.log1p(-share) + 1e-9).clamp(max=2.0**31).long()
