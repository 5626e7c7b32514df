"""Advice to the kernel: a large store's samples are read before they are used, and nothing around them."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from training.data import read_ahead
from training.data.read_ahead import AHEAD, ReadAhead

SHAPE = (1, 64, 64)
"""An image is a page, so that what was read can be told of each."""
COUNT = 1024


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Return uint8 [COUNT, 1, 64, 64] of a mapped file that is not in memory."""
    monkeypatch.setattr(read_ahead, "LEAST_BYTES", 1)
    assert mmap.PAGESIZE == 4096
    path = tmp_path / "images"
    path.write_bytes(os.urandom(COUNT * mmap.PAGESIZE))
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    mapped = torch.from_file(str(path), size=COUNT * mmap.PAGESIZE, dtype=torch.uint8).view(COUNT, *SHAPE)
    if present(mapped):
        pytest.skip("this file system keeps files in memory")
    return mapped


def present(images: Tensor) -> set[int]:
    """Return the numbers of the images whose page is in memory."""
    pages = ctypes.create_string_buffer(len(images))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(images.data_ptr()), ctypes.c_size_t(images.nbytes), pages) == 0
    return {number for number, page in enumerate(pages.raw) if page & 1}


def test_what_is_asked_for_is_read_and_nothing_else(images: Tensor) -> None:
    """The samples that were asked for come into memory, without one access to them."""
    wanted = {3, 500, 77, 1023}
    ReadAhead(images).ask(torch.tensor(sorted(wanted)))
    while present(images) != wanted:  # the read goes on behind the call
        assert present(images) <= wanted


def test_an_access_reads_one_page(images: Tensor) -> None:
    """What was not asked for costs its own page, not 128 KiB around it."""
    ReadAhead(images)
    images[200].sum()
    assert present(images) == {200}


def test_batches_come_in_their_order(images: Tensor) -> None:
    """The next batches are asked for first, repeated samples too; the batches stay as they were."""
    batches = [(number, torch.arange(number, 5 * COUNT, 311)) for number in range(3 * AHEAD)]
    asked, given = list[list[int]](), list[int]()

    class Recorded(ReadAhead):
        def ask(self, samples: Tensor) -> None:
            asked.append(samples.tolist())

    for place, (number, draws) in enumerate(Recorded(images).ahead_of(iter(batches), COUNT)):
        assert draws is batches[place][1]
        assert len(asked) == min(place + AHEAD + 1, len(batches))
        given.append(number)
    assert given == [number for number, _ in batches]
    assert asked == [(draws % COUNT).tolist() for _, draws in batches]


def test_few_images_are_left_to_the_kernel(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """No advice is given about a store that is soon in memory as a whole."""
    monkeypatch.setattr(read_ahead, "LEAST_BYTES", images.nbytes + 1)
    ReadAhead(images).ask(torch.arange(COUNT))
    assert not present(images)
