"""Augmentation: random changes to training images, drawn for each sample and computed for a whole batch.

Amounts come from counter-based random numbers, so a sample's result in an epoch is the same, to the bit, in any batch.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from preflight.contract.spec import Augmentation
from training.data.augmentation.colour import brighten, change_contrast, make_grey, saturate, shift_hue
from training.data.augmentation.framing import flip, padded_crop, resized_crop
from training.data.augmentation.image_ops import affine, dilate, draw_dots, erode, gaussian_blur
from training.data.counter_rng import uniform

AFFINE_STREAM = 0
MORPHOLOGY_STREAM = 1
BLUR_STREAM = 2
DOTS_STREAM = 3
NOISE_STREAM = 4
RESIZED_CROP_STREAM = 5
CROP_STREAM = 6
FLIP_STREAM = 7
COLOUR_STREAM = 8
"""Streams of random numbers. Renumbering them changes the result of every seed."""


COLOURS = ("brightness", "contrast", "saturation", "hue", "random_grayscale")
"""Fields of the augmentation, by their column in the stream of colours."""


@torch.no_grad()
def augment(images: Tensor, augmentation: Augmentation, *, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Return images of the same shape, each changed by amounts drawn for (seed, epoch, its number in `samples`).

    `samples` is int64 [B], on the device of `images`, and holds each image's number in the data set. The
    order is crops, flips, affine, morphology, blur, colour, dots, noise. The input is left as it is; where nothing
    is active it is returned.
    """
    if not augmentation.active:
        return images
    height, width = images.shape[-2:]
    draws = uniform(seed, epoch, samples, _numbers_needed(augmentation, height * width))
    images = _reframed(images, augmentation, draws)  # new ones, as those below change them in place
    if MORPHOLOGY_STREAM in draws:
        _thin_and_thicken(images, augmentation, draws[MORPHOLOGY_STREAM][:, 0])
    if BLUR_STREAM in draws:
        images = _random_blur(images, augmentation, draws[BLUR_STREAM][:, 0])
    if COLOUR_STREAM in draws:
        _change_colours(images, augmentation, draws[COLOUR_STREAM])
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
    if augmentation.random_resized_crop_scale < 1:
        numbers[RESIZED_CROP_STREAM] = 4
    if augmentation.random_crop_padding:
        numbers[CROP_STREAM] = 2
    if augmentation.random_horizontal_flip or augmentation.random_vertical_flip:
        numbers[FLIP_STREAM] = 2
    if any(getattr(augmentation, field) for field in COLOURS):
        numbers[COLOUR_STREAM] = len(COLOURS)
    return numbers


def _reframed(images: Tensor, augmentation: Augmentation, draws: Mapping[int, Tensor]) -> Tensor:
    """Return the images cropped, mirrored, turned and shifted; copies of them where nothing of that is active."""
    moved = images
    if RESIZED_CROP_STREAM in draws:
        moved = _random_resized_crop(moved, augmentation, draws[RESIZED_CROP_STREAM])
    if CROP_STREAM in draws:
        moved = _random_crop(moved, augmentation, draws[CROP_STREAM])
    if FLIP_STREAM in draws:
        moved = moved.clone() if moved is images else moved
        _random_flip(moved, augmentation, draws[FLIP_STREAM])
    if AFFINE_STREAM in draws:
        moved = _random_affine(moved, augmentation, draws[AFFINE_STREAM])
    return moved.clone() if moved is images else moved


def _random_resized_crop(images: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    """Enlarge a part of each image, as torchvision's RandomResizedCrop; one that does not fit in is cut off."""
    least, most = augmentation.random_resized_crop_scale, math.log(augmentation.random_resized_crop_ratio)
    amounts = draws.double()
    sides = torch.tensor(images.shape[:-3:-1], device=draws.device)  # width, height
    share = (least + (1 - least) * amounts[:, 0]).sqrt()
    stretch = ((2 * amounts[:, 1] - 1) * (most / 2)).exp()
    sizes = (torch.stack((share * stretch, share / stretch), 1) * sides).round().long()
    sizes = torch.minimum(sizes.clamp_(min=1), sides)
    return resized_crop(images, (amounts[:, 2:] * (sides - sizes + 1)).long(), sizes)


def _random_crop(images: Tensor, augmentation: Augmentation, draws: Tensor) -> Tensor:
    padding = augmentation.random_crop_padding
    return padded_crop(images, (draws * (2 * padding + 1)).long(), padding)


def _random_flip(images: Tensor, augmentation: Augmentation, draws: Tensor) -> None:
    flip(images, draws[:, 0] < augmentation.random_horizontal_flip, -1)
    flip(images, draws[:, 1] < augmentation.random_vertical_flip, -2)


def _change_colours(images: Tensor, augmentation: Augmentation, draws: Tensor) -> None:
    """Change colours as torchvision's ColorJitter, always in this order, and RandomGrayscale."""
    for column, (most, change) in enumerate((
        (augmentation.brightness, brighten), (augmentation.contrast, change_contrast),
        (augmentation.saturation, saturate),
    )):  # fmt: skip
        if most:
            least = max(0.0, 1 - most)
            change(images, least + (1 + most - least) * draws[:, column])
    if augmentation.hue:
        shift_hue(images, (2 * draws[:, 3] - 1) * augmentation.hue)
    if augmentation.random_grayscale:
        make_grey(images, draws[:, 4] < augmentation.random_grayscale)


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
    # From the setting, not from the batch's largest sigma, on which a sample's kernel must not depend. Three sigmas, as
    # OpenCV takes for images of 8 bits: the part left out is less than one of their levels.
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
    # The distance between noisy pixels is geometric: it takes a number for each of these, and not for each pixel.
    positions = (_geometric(draws[:, :most], share) + 1).cumsum(1) - 1
    samples, columns = (positions < pixels).nonzero(as_tuple=True)
    where = positions[samples, columns]
    salt = draws[samples, most + columns] < augmentation.salt_vs_pepper
    images.view(*images.shape[:2], pixels).transpose(1, 2)[samples, where] = salt.to(images.dtype)[:, None]


def _most_of(count: int, share: float) -> int:
    """Return a number that successes of probability `share` in `count` trials exceed less than once in 10^9 times."""
    mean = count * share
    return math.ceil(mean + 6 * math.sqrt(mean * (1 - share)) + 12)


def _geometric(draws: Tensor, share: float) -> Tensor:
    """Return, for numbers in [0, 1), the failures before the first success of probability `share` > 0, int64."""
    if share == 1:
        return torch.zeros_like(draws, dtype=torch.int64)
    # A boundary that a number meets exactly must not depend on the last bit of a logarithm.
    return (torch.log1p(-draws.double()) / math.log1p(-share) + 1e-9).clamp(max=2.0**31).long()
