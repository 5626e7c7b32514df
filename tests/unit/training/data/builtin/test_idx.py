"""IDX files: the well-formed are read exactly, all others are a `DatasetError` that names the file."""

import gzip
import hashlib
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.files.mnist_files import idx_bytes

from preflight.errors import DatasetError
from training.data.builtin import idx


def arrays_of(dtype: str) -> st.SearchStrategy[npt.NDArray[np.generic]]:
    shapes = hnp.array_shapes(max_dims=idx.MAX_DIMENSIONS, max_side=6)
    return hnp.arrays(np.dtype(dtype), shapes)


THREE_LABELS = b"\0\0\x08\x01" + struct.pack(">I", 3) + b"\x01\x02\x03"
PACKED = gzip.compress(THREE_LABELS, mtime=0)


def refused(path: Path, data: bytes) -> str:
    """Write `data`, expect it to be refused under the file's name, and return the message."""
    path.write_bytes(data)
    with pytest.raises(DatasetError) as caught:
        idx.read(path)
    assert caught.value.field == str(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


@given(array=st.sampled_from(sorted(idx.TYPES.values())).flatmap(arrays_of), compress=st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_type_and_shape_comes_back_bit_for_bit(array: npt.NDArray[np.generic], compress: bool) -> None:
    """Reading gives back values, shape and MD5 of what was written, raw or gzipped, in native byte order."""
    data = idx_bytes(array)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.gz" if compress else "a")
        path.write_bytes(gzip.compress(data) if compress else data)
        content = idx.read(path)
    read = content.array()
    assert read.dtype.isnative
    assert read.shape == array.shape
    assert read.astype(array.dtype).tobytes() == array.tobytes()
    assert content.md5 == hashlib.md5(data, usedforsecurity=False).hexdigest()


@given(
    data=st.one_of(
        st.binary(max_size=64),
        st.builds(lambda head, rest: b"\0\0" + head + rest, st.binary(min_size=2, max_size=2), st.binary()),
        st.builds(lambda rest: b"\0\0\x08\x01" + rest, st.binary(max_size=16)),
    ),
    wrap=st.sampled_from(["raw", "gz", "named gz"]),
)
@settings(deadline=None, max_examples=150)
def test_random_bytes_are_read_or_refused(data: bytes, wrap: str) -> None:
    """Whatever a file holds, nothing but `DatasetError` comes out of reading it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a" if wrap == "raw" else "a.gz")
        path.write_bytes(gzip.compress(data) if wrap == "gz" else data)
        try:
            content = idx.read(path)
        except DatasetError as error:
            assert error.field == str(path)
        else:
            assert idx_bytes(content.array().astype(content.dtype)) == data


@given(at=st.integers(min_value=0, max_value=10_000), flip=st.integers(min_value=1, max_value=255))
@settings(deadline=None, max_examples=80)
def test_a_changed_byte_of_a_gzip_file_never_changes_the_values_silently(at: int, flip: int) -> None:
    """Any one changed byte of a gzipped file is refused, unless it is one that gzip does not use."""
    array = np.arange(2000, dtype=np.uint16).astype(">i2")
    data = bytearray(gzip.compress(idx_bytes(array), mtime=0))
    data[at % len(data)] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gz"
        path.write_bytes(data)
        try:
            read = idx.read(path).array()
        except DatasetError:
            return
    assert read.tobytes() == array.astype("=i2").tobytes()


DEFECTS = {
    "empty": ("labels", b"", "it is empty, not an IDX file"),
    "a zip file": ("labels", b"PK\x03\x04" + THREE_LABELS, "it is a zip archive, not an IDX file"),
    "a web page": ("labels.gz", b"<!DOCTYPE html><title>404</title>", "it is a web page, not an IDX file"),
    "a gzipped web page": ("labels.gz", gzip.compress(b"\n<HTML>"), "it is a web page, not an IDX file"),
    "a pointer": ("labels", b"version https://git-lfs.github.com/spec/v1", "it is a pointer of Git LFS"),
    "an error of a store": ("labels", b"<?xml version='1.0'?><Error/>", "it is an XML document"),
    "unknown type": ("labels", b"\0\0\x0a\x01" + THREE_LABELS[4:], "magic number"),
    "no dimensions": ("labels", b"\0\0\x08\x00" + THREE_LABELS[4:], "dimensions"),
    "five dimensions": ("labels", b"\0\0\x08\x05" + THREE_LABELS[4:], "dimensions"),
    "half a header": ("labels", THREE_LABELS[:6], "within its header"),
    "a side of 0": ("labels", b"\0\0\x08\x01" + bytes(4), "dimensions is 0"),
    "a side too long": ("labels", b"\0\0\x08\x01" + struct.pack(">I", 1000) + bytes(900), "cannot hold"),
    "a byte less": ("labels", THREE_LABELS[:-1], "promises 3 bytes and only 2 follow"),
    "a byte more": ("labels", THREE_LABELS + b"\0", "promises 3 bytes and more follow"),
    "gzip without its end": ("labels.gz", PACKED[:-1], "gzip"),
    "gzip without its checksum": ("labels.gz", PACKED[:-9], "gzip"),
    "gzip with half a header": ("labels", PACKED[:5], "gzip"),
    "gzip with another checksum": ("labels.gz", PACKED[:-8] + bytes(8), "gzip"),
    "gzip with garbage after it": ("labels.gz", PACKED + b"garbage", "gzip"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_refused_by_name(tmp_path: Path, defect: str) -> None:
    """The message says which of magic, type, dimensions, length and compression is wrong."""
    name, data, says = DEFECTS[defect]
    assert says in refused(tmp_path / name, data)


def refused_at_once(path: Path, data: bytes) -> str:
    """Expect data to be refused without being read into memory, and return the message."""
    tracemalloc.start()
    message = refused(path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    return message


def test_a_gzip_file_is_not_expanded_beyond_what_its_header_promises(tmp_path: Path) -> None:
    """64 MB behind a header that promises 3 bytes are refused without being expanded."""
    data = gzip.compress(THREE_LABELS + bytes(1 << 26), compresslevel=1)
    assert "promises 3 bytes and more follow" in refused_at_once(tmp_path / "bomb.gz", data)


@pytest.mark.parametrize("sides", [(2**32 - 1,) * 4, (2**31,)], ids=["2^128 bytes", "2^31 bytes"])
@pytest.mark.parametrize("name", ["huge", "huge.gz"])
def test_absurd_dimensions_are_refused_before_anything_is_allocated(
    tmp_path: Path, name: str, sides: tuple[int, ...]
) -> None:
    """A header that promises too much is refused at once, raw and gzipped."""
    data = b"\0\0\x08" + bytes([len(sides)]) + struct.pack(f">{len(sides)}I", *sides) + b"some bytes"
    assert "cannot hold" in refused_at_once(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    """Neither a missing file nor a directory is a traceback."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(DatasetError, match="cannot be read") as caught:
            idx.read(path)
        assert caught.value.field == str(path)
