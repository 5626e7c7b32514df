"""Convolutions as matrix products, where torch's library is slow at them.

oneDNN computes the gradients of weights at 40 to 60 % of the speed of the convolution itself where images are small or
strided and channels are many, and on images of a few pixels it multiplies much padding
(`python -m tools.bench.speed roof`). Laying out the inputs of each result, one row each and without padding, and
multiplying is quicker there in bfloat16 - on some processors, so it is a knob.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

MIN_CHANNELS: Final = 128
"""Input channels from which on a convolution may gain; a strided one with 64 lost (docs/decisions.md)."""
MAX_RESULTS: Final = 16
"""Results of a sample per channel up to which, or with a stride, the library's gradient of weights is slow."""
MAX_INSIDE: Final = 0.75
"""Largest share of a kernel's taps off the padding with which products gain forward and backward: 0.69 on images of
4x4; at 0.82, those of 7x7, they lost."""


def has_slow_weight_gradients(model: nn.Module) -> bool:
    """Whether `use_matrix_products` would change the model; whether that gains depends on its images, too."""
    return any(map(_may_gain, model.modules()))


def use_matrix_products(model: nn.Module) -> None:
    """Replace, in place, the convolutions of the model that may gain; names, weights and results stay as they are."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d) and _may_gain(layer):
                setattr(parent, name, ProductConvolution(layer))


def _may_gain(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.bias is not None or layer.groups != 1 or layer.padding_mode != "zeros":
        return False  # a subclass may do anything
    square = all(len({*each}) == 1 for each in (layer.kernel_size, layer.stride, layer.padding))
    return square and layer.dilation == (1, 1) and layer.padding != "same" and layer.in_channels >= MIN_CHANNELS


@dataclass(frozen=True, slots=True)
class Geometry:
    """Geometry of a square convolution."""

    kernel: int
    stride: int
    padding: int

    def results(self, size: int) -> int:
        """Return how many results `size` pixels along an axis have."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1

    def inside(self, size: int) -> float:
        """Return the share of the taps of all results along an axis of `size` pixels that is not on padding."""
        taps = [self.taps(result, size) for result in range(self.results(size))]
        return sum(map(len, taps)) / max(1, len(taps) * self.kernel)

    def taps(self, result: int, size: int) -> range:
        """Return the taps of a result that are on the image."""
        first = result * self.stride - self.padding
        start = max(0, -first)
        return range(start, max(start, min(self.kernel, size - first)))

    def transposed(self) -> "Geometry":
        """Return the geometry of the convolution that makes the images' gradient of the results', without a stride."""
        return Geometry(self.kernel, 1, self.kernel - 1 - self.padding)


class ProductConvolution(nn.Conv2d):
    """A convolution of matrix products in training, where its images are such that these are quicker."""

    def __init__(self, of: nn.Conv2d) -> None:
        """Take over the weights of a square convolution without bias, groups or dilation."""
        (kernel, _), (stride, _) = of.kernel_size, of.stride
        padding = of.padding[0] if isinstance(of.padding[0], int) else 0
        super().__init__(of.in_channels, of.out_channels, kernel, stride, padding, bias=False, device="meta")
        self.weight = of.weight
        self.training = of.training
        self._geometry = Geometry(kernel, stride, padding)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H', W'], as nn.Conv2d does."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(images)
        geometry = self._geometry
        small = math.prod(map(geometry.inside, images.shape[2:])) <= MAX_INSIDE
        slow = geometry.stride > 1 or math.prod(map(geometry.results, images.shape[2:])) <= MAX_RESULTS
        if not (small or slow):
            return super().forward(images)
        kind = images.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        results: Tensor = _Convolution.apply(images.to(dtype), self.weight, geometry, small)
        return results


class _Context(FunctionCtx):
    """Values that the forward pass keeps for the backward pass."""

    saved_tensors: tuple[Tensor, Tensor]
    geometry: Geometry
    small: bool


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, images: Tensor, weight: Tensor, geometry: Geometry, small: bool) -> Tensor:
        weight = weight.to(images.dtype)
        ctx.save_for_backward(images, weight)
        ctx.geometry, ctx.small = geometry, small
        if small:
            return convolve(images, weight.permute(2, 3, 1, 0), geometry)
        return F.conv2d(images, weight, stride=geometry.stride, padding=geometry.padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        images, weight = ctx.saved_tensors
        return (
            image_gradient(images, gradient, weight, ctx.geometry, small=ctx.small),
            weight_gradient(images, gradient, ctx.geometry),
            None,
            None,
        )


def convolve(images: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the convolution [B, outputs, H', W'] of `images` [B, inputs, H, W] by `weight` [k, k, inputs, outputs]."""
    height, width = map(geometry.results, images.shape[2:])
    results = images.new_empty(len(images), height, width, weight.shape[3])
    for at, taps, windows in _windows(images, geometry):
        results[at] = (windows @ _matrix(weight[taps])).view_as(results[at])
    return results.permute(0, 3, 1, 2)


def weight_gradient(images: Tensor, results: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient [outputs, inputs, k, k] of a convolution's weights, float32 or better.

    `images` [B, inputs, H, W] are its inputs, `results` [B, outputs, H', W'] the gradient of its outputs; both are
    quickest as channels_last.
    """
    inputs, outputs, kernel = images.shape[1], results.shape[1], geometry.kernel
    dtype = torch.promote_types(images.dtype, torch.float32)
    gradient = images.new_zeros(outputs, kernel, kernel, inputs, dtype=dtype)
    rows = results.permute(0, 2, 3, 1)
    for at, taps, windows in _windows(images, geometry):
        some = gradient[:, *taps]
        some += (rows[at].reshape(-1, outputs).T @ windows).view_as(some)
    return gradient.permute(0, 3, 1, 2)


def image_gradient(images: Tensor, results: Tensor, weight: Tensor, geometry: Geometry, *, small: bool) -> Tensor:
    """Return the gradient [B, inputs, H, W] of a convolution's images, given that of its results.

    `small`: whether products are quicker on such images where there is no stride.
    """
    kernel, stride, padding = geometry.kernel, geometry.stride, geometry.padding
    if small and stride == 1 and padding < kernel:
        return convolve(results, weight.permute(2, 3, 0, 1).contiguous().flip(0, 1), geometry.transposed())
    if kernel == 1 and padding == 0:
        gradient = torch.zeros_like(images)
        seen = gradient.permute(0, 2, 3, 1)[:, ::stride, ::stride]
        seen[...] = results.permute(0, 2, 3, 1) @ weight[:, :, 0, 0]
        return gradient
    of_images: Tensor = torch.ops.aten.convolution_backward(
        results, images, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False]
    )[0]
    return of_images


def _matrix(weight: Tensor) -> Tensor:
    """Return [k, k, inputs, outputs] as [k * k * inputs, outputs], copying no single numbers but runs of them."""
    return weight.permute(3, 0, 1, 2).flatten(1).T if weight.stride(2) == 1 else weight.flatten(0, 2)


_Slices = tuple[slice, slice]


def _windows(images: Tensor, geometry: Geometry) -> Iterator[tuple[tuple[slice, slice, slice], _Slices, Tensor]]:
    """Yield zones of results that see the same taps: their place in [B, H', W'], the taps, and their inputs.

    The inputs are one row [taps * inputs] for each result.
    """
    batch, inputs, height, width = images.shape
    sample, channel, line, pixel = images.stride()
    stride = geometry.stride
    for (rows, high, top), (columns, wide, left) in product(_zones(height, geometry), _zones(width, geometry)):
        windows = images.as_strided(
            (batch, len(rows), len(columns), len(high), len(wide), inputs),
            (sample, line * stride, pixel * stride, line, pixel, channel),
            images.storage_offset() + top * line + left * pixel,
        )
        at = slice(None), slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        taps = slice(high.start, high.stop), slice(wide.start, wide.stop)
        yield at, taps, windows.reshape(batch * len(rows) * len(columns), -1)


def _zones(size: int, geometry: Geometry) -> Iterator[tuple[range, range, int]]:
    """Yield results along an axis of `size` pixels that see the same taps: themselves, the taps, the first pixel."""
    results = range(geometry.results(size))
    for taps, each in groupby(results, key=lambda result: geometry.taps(result, size)):
        first, *more = each
        yield range(first, first + 1 + len(more)), taps, first * geometry.stride - geometry.padding + taps.start
