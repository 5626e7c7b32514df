"""Random changes to training images, each sample's own, computed for a whole batch at once.

Images are float32 [B, C, H, W] in 0..1 with background 0. The public functions below `augment` apply given
amounts; `augment` draws the amounts with keyed random numbers, so that a sample's result in an epoch is the
same, to the bit, in whatever batch it comes. To that end a sample's arithmetic never depends on its place in
the batch: images meet only element-wise operations, `grid_sample` and copies, and transcendental functions
are taken in float64 and rounded, as their vector and scalar versions may differ in the last bit.
"""

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from training.config.spec import Augmentation
from training.data.counter_rng import uniform

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


def affine(images: Tensor, degrees: Tensor, shifts: Tensor, sizes: Tensor) -> Tensor:
    """Rotate counterclockwise about the centre and resize, then shift; bilinear, background outside.

    `degrees` is [B]; `shifts` is [B, 2], pixels rightwards and downwards; `sizes` is [B], 2 for twice as large.
    """
    # affine_grid makes the same grid with a small matrix product per pixel, in ten times the time.
    grid = _source_coordinates(degrees, shifts, sizes, *images.shape[-2:])
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def dilate(images: Tensor, kernel: int) -> Tensor:
    """Largest value in the square of side `kernel` (odd, pixels) around each pixel, within the image."""
    return _extremes(images, kernel, torch.maximum, -math.inf)


def erode(images: Tensor, kernel: int) -> Tensor:
    """Smallest value in the square of side `kernel` (odd, pixels) around each pixel, within the image.

    What lies outside the image is ignored, so a stroke that touches the border is not eaten from there.
    """
    return _extremes(images, kernel, torch.minimum, math.inf)


def gaussian_blur(images: Tensor, sigmas: Tensor, radius: int) -> Tensor:
    """Blur with standard deviations `sigmas` ([B], pixels, at least 0), background outside.

    The kernel is the Gaussian sampled at whole pixels up to `radius` and scaled to sum to 1; sigma 0 changes
    nothing.
    """
    weights = _gaussian_weights(sigmas, radius)[..., None, None, None]
    return _weighted_shifts(_weighted_shifts(images, weights, dim=-2), weights, dim=-1)


def draw_dots(images: Tensor, samples: Tensor, tops: Tensor, lefts: Tensor, size: int) -> None:
    """Paint, in place, white squares of side `size` pixels into the images at positions `samples` (int64 [S]).

    Their upper left corners are `tops`, `lefts` (int64 [S, dots]); each square lies within the image.
    """
    offsets = torch.arange(size, device=images.device)
    rows, columns = tops[:, :, None, None] + offsets[:, None], lefts[:, :, None, None] + offsets
    images.permute(0, 2, 3, 1)[samples[:, None, None, None], rows, columns] = 1.0


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


def _extremes(images: Tensor, kernel: int, choose: Callable[[Tensor, Tensor], Tensor], outside: float) -> Tensor:
    height, width = images.shape[-2:]
    padded = F.pad(images, (kernel // 2,) * 4, value=outside)
    rows = reduce(choose, (padded[..., top : top + height, :] for top in range(kernel)))
    return reduce(choose, (rows[..., left : left + width] for left in range(kernel)))


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


def _source_coordinates(degrees: Tensor, shifts: Tensor, sizes: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel of the result comes from: [B, H, W, 2] as x, y in `grid_sample`'s units.

    Rotated in pixels about the centre, so that an image that is not square is not sheared; `grid_sample`'s
    unit is half a side.
    """
    radians = torch.deg2rad(degrees.double())
    cos, sin = (torch.cos(radians) / sizes)[:, None], (torch.sin(radians) / sizes)[:, None]
    x = torch.arange(width, device=degrees.device) - (width - 1) / 2 - shifts[:, :1]
    y = torch.arange(height, device=degrees.device) - (height - 1) / 2 - shifts[:, 1:]
    of_columns = torch.stack((x * cos * (2 / width), x * sin * (2 / height)), dim=1)
    of_rows = torch.stack((y * -sin * (2 / width), y * cos * (2 / height)), dim=1)
    return (of_columns.float()[:, :, None, :] + of_rows.float()[:, :, :, None]).permute(0, 2, 3, 1)


def _gaussian_weights(sigmas: Tensor, radius: int) -> Tensor:
    """Weights at distances 0..radius from the centre, [radius + 1, B]; both sides and the centre sum to 1."""
    distances = torch.arange(radius + 1, device=sigmas.device)[:, None]
    # A sigma of a thousandth of a pixel already gives weight 0 at distance 1.
    weights = torch.exp(-0.5 * (distances / sigmas.double().clamp(min=1e-3)) ** 2)
    return (weights / (weights[0] + 2 * weights[1:].sum(dim=0))).float()


def _weighted_shifts(images: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Symmetric convolution along `dim`; `weights` holds one factor per distance, each [B, 1, 1, 1]."""
    side = images.shape[dim]
    total, term = images * weights[0], torch.empty_like(images)
    for distance, weight in enumerate(weights[1:side], start=1):
        torch.mul(images, weight, out=term)
        overlap = side - distance
        total.narrow(dim, distance, overlap).add_(term.narrow(dim, 0, overlap))
        total.narrow(dim, 0, overlap).add_(term.narrow(dim, distance, overlap))
    return total
