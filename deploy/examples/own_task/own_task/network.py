"""A small network for small colour images."""

from torch import nn


def shapes_net(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a fresh model for images of `shape` (channels, height, width); 60 thousand parameters."""
    channels, _, _ = shape
    return nn.Sequential(
        *_block(channels, 32, stride=2),
        *_block(32, 64, stride=2),
        *_block(64, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def _block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.ReLU(inplace=True),
    ]
