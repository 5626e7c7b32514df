"""Convolutional networks: the default `cnn`, and those of the recipes."""

from torch import nn

from preflight.contract.recipes import require_image_size
from training.models.ensemble import Ensemble, ShiftAverage
from training.models.layers import CosineConvolution, convolution, head, last_convolution, pooled_convolution


def cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the fast default: a 4x4 stride-2 stem, then five 3x3 layers; 135 thousand parameters.

    The stem halves both sides at once: a network for 28x28 images spends most of its time there otherwise. Images of
    less than 24 pixels are pooled once, of less than 12 not at all, so that the last layer still has its 3x3.
    """
    require_image_size("cnn", shape)
    side = min(shape[1:])
    return nn.Sequential(
        convolution(shape[0], 16, kernel=4, stride=2),
        convolution(16, 32),
        *([nn.MaxPool2d(2)] if side >= 12 else []),
        convolution(32, 64),
        convolution(64, 64),
        *([nn.MaxPool2d(2)] if side >= 24 else []),
        convolution(64, 64),
        last_convolution(64, 64),
        *head(64, classes),
    )


def cnn_small_valid(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `fast` up to 0.17.0; 99 thousand parameters."""
    return _valid("cnn-small-valid", shape, classes, (16, 32, 64, 128))


def cnn_valid(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `balanced` up to 0.17.0; 118 thousand parameters."""
    return _valid("cnn-valid", shape, classes, (32, 48, 64, 128))


def cnn_small_cosine(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `fast`: its stem is not trained; 99 thousand parameters."""
    return _valid("cnn-small-cosine", shape, classes, (16, 32, 64, 128), cosine=True)


def cnn_cosine(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `balanced`: its stem is not trained, it sees shifts; 110 thousand parameters."""
    return ShiftAverage(_valid("cnn-cosine", shape, classes, (16, 48, 64, 128), cosine=True))


def cnn_committee(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the network of the recipe `best`: an ensemble of two; 2.5 million parameters."""
    return Ensemble([_valid("cnn-committee", shape, classes, (64, 128, 256, 384)) for _ in range(2)])


def _valid(
    name: str, shape: tuple[int, int, int], classes: int, widths: tuple[int, int, int, int], *, cosine: bool = False
) -> nn.Module:
    """Return a 5x5 stride-2 stem and three 3x3 layers with `widths` channels, no padding anywhere, pooled once.

    They turn 28x28 images into 12x12, 10x10 halved to 5x5, 3x3 and 1x1: the second layer computes two thirds of what
    it would with padding, the third, which need not be pooled, a quarter. A `cosine` stem is fixed, and needs no batch
    norm.
    """
    require_image_size(name, shape)
    stem, first, second, last = widths
    return nn.Sequential(
        nn.Sequential(CosineConvolution(shape[0], stem, kernel=5, stride=2), nn.ReLU(inplace=True))
        if cosine
        else convolution(shape[0], stem, kernel=5, stride=2, padding=0),
        pooled_convolution(stem, first),
        convolution(first, second, padding=0),
        last_convolution(second, last),
        *head(last, classes),
    )
