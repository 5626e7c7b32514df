"""Image operations of the augmentation: affine maps, morphology, blur and dots, by given amounts.

Images are float32 [B, C, H, W] in 0..1 with background 0. A sample's arithmetic never depends on its place in the
batch: images meet only element-wise operations, `grid_sample` and copies, and transcendental functions are taken in
float64 and rounded, as their vector and scalar versions may differ in the last bit.
"""

import math
from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor


def affine(images: Tensor, degrees: Tensor, shifts: Tensor, sizes: Tensor) -> Tensor:
    """Rotate counterclockwise about the centre and resize, then shift; bilinear, background outside.

    `degrees` is [B]; `shifts` is [B, 2], pixels rightwards and downwards; `sizes` is [B], 2 for twice as large.
    """
    # affine_grid makes the same grid with a small matrix product per pixel, in ten times the time.
    grid = _source_coordinates(degrees, shifts, sizes, *images.shape[-2:])
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def dilate(images: Tensor, kernel: int) -> Tensor:
    """Return the largest value in the square of side `kernel` (odd, pixels) around each pixel, within the image."""
    return _extremes(images, kernel, torch.maximum, -math.inf)


def erode(images: Tensor, kernel: int) -> Tensor:
    """Return the smallest value in the square of side `kernel` (odd, pixels) around each pixel, within the image.

    Pixels outside the image are ignored, so a stroke that touches the border is not eaten from there.
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


def _extremes(images: Tensor, kernel: int, choose: Callable[[Tensor, Tensor], Tensor], outside: float) -> Tensor:
    height, width = images.shape[-2:]
    padded = F.pad(images, (kernel // 2,) * 4, value=outside)
    rows = reduce(choose, (padded[..., top : top + height, :] for top in range(kernel)))
    return reduce(choose, (rows[..., left : left + width] for left in range(kernel)))


def _source_coordinates(degrees: Tensor, shifts: Tensor, sizes: Tensor, height: int, width: int) -> Tensor:
    """Return where each pixel of the result comes from: [B, H, W, 2] as x, y in `grid_sample`'s units.

    They are rotated in pixels about the centre, so that an image that is not square is not sheared; `grid_sample`'s
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
    """Return weights at distances 0..radius from the centre, [radius + 1, B]; both sides and the centre sum to 1."""
    distances = torch.arange(radius + 1, device=sigmas.device)[:, None]
    # A sigma of a thousandth of a pixel already gives weight 0 at distance 1.
    weights = torch.exp(-0.5 * (distances / sigmas.double().clamp(min=1e-3)) ** 2)
    return (weights / (weights[0] + 2 * weights[1:].sum(dim=0))).float()


def _weighted_shifts(images: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return the symmetric convolution along `dim`; `weights` holds one factor per distance, each [B, 1, 1, 1]."""
    side = images.shape[dim]
    total, term = images * weights[0], torch.empty_like(images)
    for distance, weight in enumerate(weights[1:side], start=1):
        torch.mul(images, weight, out=term)
        overlap = side - distance
        total.narrow(dim, distance, overlap).add_(term.narrow(dim, 0, overlap))
        total.narrow(dim, 0, overlap).add_(term.narrow(dim, distance, overlap))
    return total
