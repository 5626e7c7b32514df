"""TensorBoard's event files, written without TensorBoard, whose writer imports numpy.

A file is a sequence of records: length, its checksum, an `Event` of tensorflow/core/util/event.proto, its checksum.
"""

import math
import struct
from functools import reduce
from typing import Final

WALL_TIME, STEP, FILE_VERSION, SUMMARY, SESSION_LOG = 1, 2, 3, 5, 7
"""Fields of `Event`."""
VERSION: Final = b"brain.Event:2"
START: Final = 1
"""`SessionLog.START`: TensorBoard discards values from this step on."""
DT_STRING: Final = 7
MAX_FLOAT: Final = 3.4028234663852886e38
"""Larger values, such as the loss of a diverging training, are written as infinite."""
CRC: Final = tuple(reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), byte) for byte in range(256))
"""CRC-32C of each byte."""


def header(when: float) -> bytes:
    """Return the first record of a file; `when` is in seconds since the epoch."""
    return _record(_double(WALL_TIME, when) + _bytes(FILE_VERSION, VERSION))


def start(when: float, step: int) -> bytes:
    """Return the record of a start or resumption at `step`."""
    return _event(when, step, SESSION_LOG, _number(1, START))


def scalar(when: float, step: int, tag: str, value: float) -> bytes:
    """Return the record of a scalar."""
    return _event(when, step, SUMMARY, _bytes(1, _bytes(1, tag.encode()) + _float(2, value)))


def text(when: float, step: int, tag: str, markdown: str) -> bytes:
    """Return the record of a text."""
    shape = _bytes(2, _number(1, 1))
    tensor = _number(1, DT_STRING) + _bytes(2, shape) + _bytes(8, markdown.encode())
    plugin = _bytes(1, _bytes(1, b"text"))
    return _event(when, step, SUMMARY, _bytes(1, _bytes(1, tag.encode()) + _bytes(9, plugin) + _bytes(8, tensor)))


def _event(when: float, step: int, field: int, message: bytes) -> bytes:
    return _record(_double(WALL_TIME, when) + _number(STEP, step) + _bytes(field, message))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as in TFRecord files."""
    crc = ~reduce(lambda crc, byte: crc >> 8 ^ CRC[(crc ^ byte) & 0xFF], data, 0xFFFFFFFF) & 0xFFFFFFFF
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    in_range = abs(value) <= MAX_FLOAT
    return _varint(field << 3 | 5) + struct.pack("<f", value if in_range else math.copysign(math.inf, value))
