"""Layers that the models share."""

import math
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LastConvolution(nn.Conv2d):
    """A convolution without padding or bias: one matrix product where its kernel just covers the images.

    With images of 28x28 it does in the models here. `nn.Conv2d` takes longer for it: with its gradients a tenth of a
    training step, sometimes a quarter.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H', W'], as nn.Conv2d does."""
        if images.shape[2:] != self.weight.shape[2:]:
            return super().forward(images)
        rows, matrix = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (images, self.weight))
        return F.linear(rows, matrix)[:, :, None, None]


class CosineConvolution(nn.Conv2d):
    """A convolution with fixed filters: the lowest frequencies of the discrete cosine transform, of both signs.

    They are close to the principal components of small patches of images, and a ReLU keeps everything of both signs
    together. A network that begins with it computes no gradients at its highest resolution.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        """Make `outputs` filters, at most twice `inputs` * `kernel`**2, of norm 1."""
        super().__init__(inputs, outputs, kernel, stride, bias=False)
        waves = cosines(inputs, kernel, (outputs + 1) // 2)
        self.weight = nn.Parameter(torch.cat([waves, -waves])[:outputs].contiguous(), requires_grad=False)


def cosines(channels: int, side: int, count: int) -> Tensor:
    """Return the `count` lowest frequencies of the cosine transform, float32 [count, channels, side, side], norm 1."""
    sizes = (channels, side, side)
    lowest = sorted(product(*map(range, sizes)), key=lambda wave: (sum(each**2 for each in wave), wave))[:count]
    axes = ((_cosine(each, size) for each, size in zip(wave, sizes, strict=True)) for wave in lowest)
    return torch.stack([torch.einsum("c,h,w->chw", *each) for each in axes])


def _cosine(frequency: int, size: int) -> Tensor:
    wave = torch.cos(math.pi * frequency * (torch.arange(size) + 0.5) / size)
    return F.normalize(wave, dim=0)


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Module:
    """Return a convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def pooled_convolution(inputs: int, outputs: int) -> nn.Module:
    """Return a 3x3 convolution without padding, pooled before batch norm and ReLU, which then have a quarter to do."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def last_convolution(inputs: int, outputs: int) -> nn.Module:
    """Return a `LastConvolution` of 3x3, batch norm and ReLU."""
    return nn.Sequential(LastConvolution(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def head(features: int, classes: int) -> tuple[nn.Module, ...]:
    """Return the layers from feature maps to logits."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)
