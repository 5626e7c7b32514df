"""Colour changes of the augmentation: brightness, contrast, saturation, hue and greyscale, by given amounts.

Names and formulas are those of torchvision.transforms.v2. Images are float32 [B, C, H, W] in 0..1 and are changed in
place; amounts are [B]. As in `image_ops`, a sample's arithmetic never depends on its place in the batch.
"""

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601, rounded as torchvision has them)."""
FIXED_POINT = 2.0**20
"""Luminances are added up as whole numbers, so that their sum does not depend on the order."""


def brighten(images: Tensor, factors: Tensor) -> None:
    """Multiply by `factors`, at least 0."""
    images.mul_(_each(factors)).clamp_(0, 1)


def change_contrast(images: Tensor, factors: Tensor) -> None:
    """Blend with the image's mean luminance: factor 0 leaves it alone, 1 changes nothing."""
    whole = luminance(images).mul_(FIXED_POINT).round_().long().sum((1, 2, 3))
    mean = (whole.double() / (FIXED_POINT * images.shape[2] * images.shape[3])).float()
    _blend(images, _each(mean), factors)


def saturate(images: Tensor, factors: Tensor) -> None:
    """Blend images in colour with their luminance: factor 0 leaves it alone, 1 changes nothing."""
    _blend(images, luminance(images), factors)


def shift_hue(images: Tensor, shifts: Tensor) -> None:
    """Turn the hue of images in colour by `shifts`, -0.5 to 0.5 of the whole circle."""
    largest = images.amax(1)
    span = largest - images.amin(1)
    red, green, blue = images.unbind(1)
    below = (largest[:, None] - images) / torch.where(span == 0, 1.0, span)[:, None]
    from_red, from_green, from_blue = below.unbind(1)
    sixths = torch.where(
        red == largest, from_blue - from_green,
        torch.where(green == largest, 2 + from_red - from_blue, 4 + from_green - from_red),
    )  # fmt: skip
    hue = _fraction(sixths / 6 + shifts[:, None, None])
    for channel, offset in zip((red, green, blue), (5, 3, 1), strict=True):
        place = _fraction((hue * 6 + offset) / 6) * 6
        channel.copy_(largest - span * torch.minimum(place, 4 - place).clamp_(0, 1))


def make_grey(images: Tensor, chosen: Tensor) -> None:
    """Replace the colours of the images that are `chosen`, bool [B], by their luminance."""
    positions = chosen.nonzero()[:, 0]
    grey = luminance(images.index_select(0, positions))
    images.index_copy_(0, positions, grey.expand(-1, images.shape[1], -1, -1))


def luminance(images: Tensor) -> Tensor:
    """Return [B, 1, H, W]: the weighted sum of red, green and blue, or a copy of the one channel."""
    if images.shape[1] != len(LUMA):
        return images[:, :1].clone()
    red, green, blue = (images[:, channel : channel + 1] * weight for channel, weight in enumerate(LUMA))
    return red.add_(green).add_(blue)


def _blend(images: Tensor, others: Tensor, factors: Tensor) -> None:
    images.mul_(_each(factors)).add_(others * _each(1 - factors)).clamp_(0, 1)


def _each(amounts: Tensor) -> Tensor:
    return amounts[:, None, None, None]


def _fraction(values: Tensor) -> Tensor:
    return values - values.floor()
