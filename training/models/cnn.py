"""The built-in models, each a function of (image shape, classes) that returns a fresh `nn.Module`.

Registered under the entry-point group `preflight.models`; a user's package registers its own the same way. A model
takes float32 [B, C, H, W] of that shape (C, H, W) and returns logits [B, classes].
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.config.registry import MODELS, load
from training.errors import InvalidConfig

_LARGE: Final = (64, 128, 256, 384)
"""Channels of `cnn-large-valid`'s layers, and of each network that votes in the recipe `best`."""


def build(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a fresh model by its registered name, initialised from torch's global random state.

    Raises:
        InvalidConfig: the name is unknown, what it names is no model factory, or the shape does not suit it.
    """
    factory = load(MODELS, "model", name)
    model = factory(shape, classes) if callable(factory) else None
    if not isinstance(model, nn.Module):
        raise InvalidConfig(
            f"model {name!r} is registered as {factory!r}, which does not return a torch.nn.Module",
            field="model",
        )
    return model


def cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the fast default: a 4x4 stride-2 stem, then five 3x3 layers; 135 thousand parameters.

    The stem halves both sides at once, which is where a network for 28x28 images spends its time otherwise.
    """
    _see_that_large_enough("cnn", shape)
    return nn.Sequential(
        _convolution(shape[0], 16, kernel=4, stride=2, padding=1),
        _convolution(16, 32),
        nn.MaxPool2d(2),
        _convolution(32, 64),
        _convolution(64, 64),
        nn.MaxPool2d(2),
        _convolution(64, 64),
        _last_convolution(64, 64),
        *_head(64, classes),
    )


def cnn_small(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a 5x5 stride-2 stem, then three 3x3 layers, for images from 24x24 on; 47 thousand parameters."""
    return _pooled_early("cnn-small", shape, classes, (16, 32, 48, 64))


def cnn_medium(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return `cnn-small`, half as wide again; 95 thousand parameters."""
    return _pooled_early("cnn-medium", shape, classes, (24, 48, 64, 96))


def cnn_small_unpadded(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return `cnn-unpadded`, each layer twice as wide as the one before; 99 thousand parameters."""
    return _pooled_early("cnn-small-unpadded", shape, classes, (16, 32, 64, 128), padding=0)


def cnn_unpadded(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return four layers whose stem has no padding, for images from 28x28 on; 118 thousand parameters.

    Of 28x28 the stem makes 12x12 instead of 14x14: a quarter less for all layers to do, and what is halved after them
    is even.
    """
    return _pooled_early("cnn-unpadded", shape, classes, (32, 48, 64, 128), padding=0)


def cnn_large(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return `cnn-medium`, twice as wide; 377 thousand parameters."""
    return _pooled_early("cnn-large", shape, classes, (48, 96, 128, 192))


def cnn_small_valid(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `fast`: `cnn-valid`, narrower at first; 99 thousand parameters."""
    return _valid("cnn-small-valid", shape, classes, (16, 32, 64, 128))


def cnn_valid(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `balanced`: `cnn-unpadded`, no layer with padding; 118 thousand parameters."""
    return _valid("cnn-valid", shape, classes, (32, 48, 64, 128))


def cnn_large_valid(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return `cnn-valid`, two to three times as wide; 1.3 million parameters."""
    return _valid("cnn-large-valid", shape, classes, _LARGE)


def cnn_committee(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `best`: two of `cnn-large-valid` that vote; 2.5 million parameters."""
    return Committee([_valid("cnn-committee", shape, classes, _LARGE) for _ in range(2)])


def _pooled_early(
    name: str, shape: tuple[int, int, int], classes: int, widths: tuple[int, int, int, int], padding: int = 2
) -> nn.Module:
    """Return a 5x5 stride-2 stem and three 3x3 layers of these widths.

    Pooling comes before batch norm and ReLU, which then have a quarter to do: they take longer than the convolutions.
    """
    _see_that_large_enough(name, shape, 28 - 2 * padding)
    stem, first, second, last = widths
    return nn.Sequential(
        _convolution(shape[0], stem, kernel=5, stride=2, padding=padding),
        _pooled_convolution(stem, first),
        _pooled_convolution(first, second),
        _last_convolution(second, last),
        *_head(last, classes),
    )


def _valid(name: str, shape: tuple[int, int, int], classes: int, widths: tuple[int, int, int, int]) -> nn.Module:
    """Return a 5x5 stride-2 stem and three 3x3 layers of these widths, no padding anywhere, pooled once.

    Of 28x28 images they make 12x12, 10x10 halved to 5x5, 3x3 and 1x1: the second layer computes two thirds of what it
    does with padding, the third, which need not be pooled, a quarter.
    """
    _see_that_large_enough(name, shape, 28)
    stem, first, second, last = widths
    return nn.Sequential(
        _convolution(shape[0], stem, kernel=5, stride=2, padding=0),
        _pooled_convolution(stem, first, padding=0),
        _convolution(first, second, padding=0),
        _last_convolution(second, last),
        *_head(last, classes),
    )


def _see_that_large_enough(name: str, shape: tuple[int, int, int], least: int = 24) -> None:
    """Raise `InvalidConfig` for images of which nothing would be left on the way."""
    _, height, width = shape
    if min(height, width) < least:
        raise InvalidConfig(
            f"model {name!r} needs images of at least {least}x{least}, but these are {height}x{width}; use 'resnet18'",
            field="model",
        )


def _head(features: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)


class LastConvolution(nn.Conv2d):
    """A convolution without padding or bias: one matrix product where its kernel just covers the images.

    So it does after the other layers of the models here on images of 28x28. The library's own takes longer for it, with
    its gradients a tenth of a training step, sometimes a quarter (`python -m bench.last`).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H', W'], as nn.Conv2d does."""
        if images.shape[2:] != self.weight.shape[2:]:
            return super().forward(images)
        rows, matrix = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (images, self.weight))
        return F.linear(rows, matrix)[:, :, None, None]


class Committee(nn.Module):
    """Networks alike but for their first weights, whose mean logits are the answer.

    In training each learns from its own share of the batch, so that all of them together cost what one does. They err
    on different samples, and their mean less often than any of them.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, classes]; of fewer than two samples for each member all see all, in training, too."""
        if self.training and len(images) >= 2 * len(self.members):
            shares = images.tensor_split(len(self.members))
            return torch.cat([member(share) for member, share in zip(self.members, shares, strict=True)])
        return torch.stack([member(images) for member in self.members]).mean(0)


def networks_of(model: nn.Module) -> int:
    """Return of how many networks alike a model is made."""
    return len(model.members) if isinstance(model, Committee) else 1


def _convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _last_convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(LastConvolution(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _pooled_convolution(inputs: int, outputs: int, padding: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=padding, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2015, "Deep Residual Learning", section 4.1)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride=stride)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H/stride, W/stride]."""
        return F.relu(self.second(self.first(images)) + self.shortcut(images), inplace=True)


def resnet18(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ResNet-18 with the CIFAR stem (3x3 stride 1, no first max-pool); 11.2 million parameters."""
    channels, _, _ = shape
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(
        _convolution(channels, 64),
        *blocks,
        *_head(512, classes),
    )
