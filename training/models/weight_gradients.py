"""Gradients of convolution weights as one matrix product each, where torch's library is slow at them.

oneDNN computes them at 40 to 60 % of the speed of the convolution itself where images are small or strided and channels
are many (`python -m bench.speed roof`). Laying out what each result was made of, one row each, and multiplying costs a
copy of nine times the layer's input and is quicker there in bfloat16 - on some processors, so it is a knob.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

MIN_CHANNELS: Final = 128
"""Input channels from which on a strided convolution gains; with 64 it lost (docs/decisions.md)."""
MIN_CHANNELS_UNSTRIDED: Final = 512
"""The same of one without a stride; with 256 it lost."""


def has_slow_weight_gradients(model: nn.Module) -> bool:
    """Whether `use_matrix_products` would change anything about the model."""
    return any(map(_gains, model.modules()))


def use_matrix_products(model: nn.Module) -> None:
    """Replace, in place, the convolutions of the model that gain; names, weights and results stay as they are."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d) and _gains(layer):
                setattr(parent, name, ProductConvolution(layer))


def _gains(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.bias is not None or layer.groups != 1 or layer.padding_mode != "zeros":
        return False  # a subclass may do anything
    square = all(len({*each}) == 1 for each in (layer.kernel_size, layer.stride, layer.padding))
    strided = layer.stride[0] > 1
    least = MIN_CHANNELS if strided else MIN_CHANNELS_UNSTRIDED
    return square and layer.dilation == (1, 1) and layer.padding != "same" and layer.in_channels >= least


class ProductConvolution(nn.Conv2d):
    """A convolution whose weights' gradient is a matrix product."""

    def __init__(self, of: nn.Conv2d) -> None:
        """Take over the weights of a square convolution without bias, groups or dilation."""
        (kernel, _), (stride, _) = of.kernel_size, of.stride
        padding = of.padding[0] if isinstance(of.padding[0], int) else 0
        super().__init__(of.in_channels, of.out_channels, kernel, stride, padding, bias=False, device="meta")
        self.weight = of.weight
        self._stride, self._padding = stride, padding

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H', W'], as nn.Conv2d does."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(images)
        kind = images.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        results: Tensor = _Convolution.apply(images.to(dtype), self.weight.to(dtype), self._stride, self._padding)
        return results


class _Context(FunctionCtx):
    """What the backward pass knows of the forward pass."""

    saved_tensors: tuple[Tensor, Tensor]
    stride: int
    padding: int


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, images: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(images, weight, stride=stride, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        images, weight = ctx.saved_tensors
        of_images: Tensor = torch.ops.aten.convolution_backward(
            gradient, images, weight, None, [ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1,
            [True, False, False],
        )[0]  # fmt: skip
        return of_images, weight_gradient(images, gradient, weight.shape[-1], ctx.stride, ctx.padding), None, None


def weight_gradient(images: Tensor, results: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Return the gradient [outputs, inputs, kernel, kernel] of a convolution's weights.

    `images` [B, inputs, H, W] are what it saw, `results` [B, outputs, H', W'] the gradient of what it made of them;
    both are quickest as channels_last.
    """
    batch, outputs, height, width = results.shape
    inputs = images.shape[1]
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding))
    sample, line, pixel, channel = padded.stride()
    windows = padded.as_strided(
        (batch, height, width, kernel, kernel, inputs),
        (sample, line * stride, pixel * stride, line, pixel, channel),
    ).reshape(batch * height * width, kernel * kernel * inputs)
    product = results.permute(0, 2, 3, 1).reshape(-1, outputs).T @ windows
    return product.view(outputs, kernel, kernel, inputs).permute(0, 3, 1, 2)
