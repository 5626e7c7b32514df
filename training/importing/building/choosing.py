"""The form of a data set, chosen by some of its pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from preflight.pictures.form import Form
from training.importing.form import DEFAULT_SIDE, Options
from training.importing.shards import Shard

LOOKED_AT: Final = 400
"""Number of pictures that are looked at."""
PAPER: Final = 160
"""Brightness of a border from which it is paper, with dark ink on it."""
SHARE: Final = 0.8
COLOURED: Final = 0.02
"""Share of coloured pictures from which colour is kept."""

Found = Sequence[tuple[int, int, bool, int]]
"""Height, width, whether it is coloured, and the brightness of a plain border or -1, of each picture."""


def sample(shards: Sequence[Shard]) -> list[Shard]:
    """Return tasks with some of the pictures, spread over all: the same ones at every import of the same source."""
    some = [shards[number * len(shards) // min(len(shards), 32)] for number in range(min(len(shards), 32))]
    each = max(1, LOOKED_AT // len(some))
    return [_part(shard, each) for shard in some]


def _part(shard: Shard, count: int) -> Shard:
    if shard.kind == "files":
        step = max(1, len(shard.files) // count)
        return replace(shard, files=shard.files[::step][:count], labels=(), sides=(), groups=(), names=())
    if shard.kind == "pixels":
        end = min(int(str(shard.extra["end"])), int(str(shard.extra["start"])) + (64 << 10))
        return replace(shard, extra={**shard.extra, "end": end})
    return replace(shard, count=min(shard.count, count))


def choose_form(found: Found, options: Options) -> Form:
    """Return the form: the options that were given, and the rest from the pictures."""
    height, width = options.size or _size(found)
    coloured = sum(colour for _, _, colour, _ in found) > COLOURED * len(found)
    channels = 3 if options.channels == "rgb" or (options.channels == "auto" and coloured) else 1
    light = sum(paper >= PAPER for _, _, _, paper in found) >= SHARE * len(found)
    invert = options.ink == "dark" or (options.ink == "auto" and channels == 1 and light)
    return Form(height=height, width=width, channels=channels, invert=invert)


def _size(found: Found) -> tuple[int, int]:
    """Return the most frequent size, the larger of two; beyond `DEFAULT_SIDE` that as a square."""
    sizes = Counter((height, width) for height, width, _, _ in found)
    height, width = max(sizes, key=lambda size: (sizes[size], size))
    return (height, width) if max(height, width) <= DEFAULT_SIDE else (DEFAULT_SIDE, DEFAULT_SIDE)
