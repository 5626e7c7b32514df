"""Flips and crops of the augmentation, by given amounts; names and ranges are those of torchvision.transforms.v2.

Images are float32 [B, C, H, W] with background 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def flip(images: Tensor, chosen: Tensor, dim: int) -> None:
    """Mirror the images that are `chosen`, bool [B], in place: along dim -1 left to right, along -2 upside down."""
    positions = chosen.nonzero()[:, 0]
    images.index_copy_(0, positions, images.index_select(0, positions).flip(dim))


def padded_crop(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Take a crop of the same size from each image with `padding` pixels of background around it.

    `offsets`, int64 [B, 2], are how far right and down of the upper left corner of the padding it begins.
    """
    height, width = images.shape[-2:]
    samples, channels = (torch.arange(count, device=images.device) for count in images.shape[:2])
    columns = offsets[:, :1] + torch.arange(width, device=images.device)
    rows = offsets[:, 1:] + torch.arange(height, device=images.device)
    padded = F.pad(images, (padding,) * 4)
    return padded[
        samples[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]


def resized_crop(images: Tensor, corners: Tensor, sizes: Tensor) -> Tensor:
    """Enlarge a part of each image to the size of the image, bilinearly; nothing outside of the part is seen.

    `corners` are its left and top, `sizes` its width and height, int64 [B, 2] each, in whole pixels.
    """
    height, width = images.shape[-2:]
    x = _sources(corners[:, 0], sizes[:, 0], width)
    y = _sources(corners[:, 1], sizes[:, 1], height)
    grid = torch.stack((x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _sources(first: Tensor, size: Tensor, side: int) -> Tensor:
    """Return where each of `side` pixels comes from, [B, side] in `grid_sample`'s units (half a side)."""
    places = (torch.arange(side, device=first.device).double() + 0.5) * size[:, None] / side - 0.5
    inside = torch.minimum(places.clamp_(min=0), size[:, None] - 1.0)
    return ((2 * (first[:, None] + inside) + 1) / side - 1).float()
