"""Writer of safetensors files (github.com/huggingface/safetensors, "Format"), in chunks and without a copy.

The library's own `save_file` chooses the temporary name itself, takes no lock and does not sync.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Layout:
    """Type and shape of a tensor whose numbers come piece by piece."""

    dtype: str
    shape: tuple[int, ...]
    width: int
    """Bytes of one number."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as safetensors stores it."""

    dtype: str
    """Number type as safetensors names it, such as `F32`."""
    shape: tuple[int, ...]
    data: memoryview
    """The numbers row by row, as bytes."""
    width: int
    """Bytes of one number."""


def safetensors_chunks(
    tensors: Mapping[str, TensorView], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece; no view is held longer than its piece, as it may be a copy."""
    ordered, header = safetensors_header(tensors, metadata)
    yield header
    for name in ordered:
        yield tensors[name].data


def safetensors_header(
    tensors: Mapping[str, TensorView | Layout], metadata: Mapping[str, str] | None = None
) -> tuple[list[str], bytes]:
    """Return the names of the tensors in the order in which they follow, and the bytes before the first one."""
    # The widest numbers first: then each tensor begins at a multiple of its width.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].width, name))
    header: dict[str, JsonValue] = {} if metadata is None else {"__metadata__": {**metadata}}
    end = 0
    for name in ordered:
        view = tensors[name]
        begin, end = end, end + math.prod(view.shape) * view.width
        header[name] = {"dtype": view.dtype, "shape": list(view.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return ordered, len(encoded).to_bytes(8, "little") + encoded
