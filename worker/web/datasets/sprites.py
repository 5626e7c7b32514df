"""Samples of a class as a grid in one small PNG: read from the mapped store, without NumPy or Pillow."""

import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.data.dataset_info import Place, info_of, opened, tensor_places

COLUMNS: Final = 12
MAX_SAMPLES: Final = 60
MAX_BYTES: Final = 256 << 10
"""Most bytes of the pixels of a grid."""
LARGEST: Final = 64
"""Most pixels of a side; of larger pictures every second or third pixel is shown."""


@dataclass(frozen=True, slots=True)
class Sprite:
    """A grid of pictures, row by row."""

    png: bytes
    samples: tuple[int, ...]
    """Numbers of the samples in the store, test samples behind the training samples."""
    width: int
    """Width of one picture in pixels."""
    height: int
    columns: int


@dataclass(frozen=True, slots=True)
class OfClass:
    """Samples of a class from the `first` on, those that train before those of the test."""

    label: int
    first: int
    most: int = MAX_SAMPLES


def sprite(path: Path, wanted: OfClass | Sequence[int]) -> Sprite:
    """Return pictures of a class, or of samples by their numbers; those that are not there are left out.

    Raises:
        DatasetError: the store cannot be read.
    """
    with opened(path) as file:
        info, places = info_of(file, path), tensor_places(file, path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as store:
            channels, height, width = info.shape
            step = -(-max(height, width) // LARGEST)
            high, wide = -(-height // step), -(-width // step)
            each = channels * high * wide
            most = max(1, min(MAX_SAMPLES, MAX_BYTES // each))
            if isinstance(wanted, OfClass):
                found = _of_class(store, places, wanted.label, wanted.first, min(wanted.most, most))
            else:
                found = [number for number in wanted if number < info.train_count + info.test_count][:most]
            columns = max(1, min(COLUMNS, len(found)))
            rows = -(-len(found) // columns)
            line = 1 + columns * wide * channels
            canvas = bytearray(line * rows * high)  # each line begins with its filter, 0: none
            for place, number in enumerate(found):
                left, top = 1 + place % columns * wide * channels, place // columns * high
                for y in range(high):
                    at = (top + y) * line + left
                    canvas[at : at + wide * channels] = _line(store, places, number, info.shape, y * step, step)
    png = _png(columns * wide, rows * high, channels, bytes(canvas)) if found else b""
    return Sprite(png, tuple(found), wide, high, columns)


def _of_class(store: mmap.mmap, places: dict[str, Place], label: int, first: int, count: int) -> list[int]:
    """Return the numbers of samples of a class."""
    found: list[int] = []
    skip, before = first, 0
    for name in ("train_labels", "test_labels"):
        place = places[name]
        wanted = label.to_bytes(place.bytes, "little") if label < 1 << 8 * place.bytes else b""
        at, end = place.offset, place.offset + place.count * place.bytes
        while wanted and len(found) < count and (at := store.find(wanted, at, end)) >= 0:
            number, rest = divmod(at - place.offset, place.bytes)
            if rest:
                at += 1
                continue
            if skip:
                skip -= 1
            else:
                found.append(before + number)
            at += place.bytes
        before += place.count
    return found


def _line(
    store: mmap.mmap, places: dict[str, Place], number: int, shape: tuple[int, int, int], y: int, step: int
) -> bytes:  # fmt: skip
    """Return a line of pixels of a sample, the channels of each pixel next to each other."""
    train = places["train_images"]
    place, own = (train, number) if number < train.count else (places["test_images"], number - train.count)
    channels, height, width = shape
    begin = place.offset + own * place.bytes + y * width
    lines = [
        store[begin + channel * height * width : begin + channel * height * width + width : step]
        for channel in range(channels)
    ]
    if channels == 1:
        return lines[0]
    mixed = bytearray(len(lines[0]) * channels)
    for channel, line in enumerate(lines):
        mixed[channel::channels] = line
    return bytes(mixed)


def _png(width: int, height: int, channels: int, lines: bytes) -> bytes:
    """Return the PNG of lines of 8-bit grey or RGB pixels, each behind its filter (PNG, third edition, 5 and 11)."""
    colour = 0 if channels == 1 else 2
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
