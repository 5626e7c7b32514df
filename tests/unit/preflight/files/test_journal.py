"""Journal: every whole record is read once and in order, whatever else the file holds."""

import json
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from preflight.files.journal import MAX_LINE_BYTES, JournalReader, JournalWriter, decode, encode

RUN = "training-child-17-1"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
PAYLOADS = st.dictionaries(st.text(), VALUES)


def sealed(body: dict[str, JsonValue]) -> bytes:
    """Return any object as a line with a valid checksum, computed here."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return json.dumps(body | {"crc": zlib.crc32(text.encode())}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def line(seq: int, *, run: str = RUN, kind: str = "progress") -> bytes:
    return encode(run, seq, kind, 1700000000.25, {"seq": seq})


def seqs(path: Path) -> list[int]:
    """Return the numbers of the records that a new reader finds."""
    return [record.seq for record in JournalReader(path, RUN).read()]


@given(kind=st.text(), payload=PAYLOADS, seq=st.integers(min_value=1), now=st.floats(0, 1e11))
@settings(deadline=None)
def test_decode_returns_what_was_encoded(kind: str, payload: dict[str, JsonValue], seq: int, now: float) -> None:
    encoded = encode(RUN, seq, kind, now, payload)
    assert encoded.isascii()
    assert encoded.index(b"\n") == len(encoded) - 1
    record = decode(encoded, RUN)
    assert record is not None
    assert (record.seq, record.kind, record.time, record.payload) == (seq, kind, now, payload)


@given(st.binary() | st.text().map(str.encode) | VALUES.map(lambda value: json.dumps(value).encode()))
@settings(deadline=None)
def test_decode_returns_none_for_garbage(garbage: bytes) -> None:
    assert decode(garbage, RUN) is None


def test_decode_returns_none_for_deep_nesting() -> None:
    """Such a line can be parsed but not be written."""
    for depth in range(100, 1200):
        nested = b"[" * depth + b"]" * depth
        assert decode(b'{"crc":0,"payload":' + nested + b',"run":"' + RUN.encode() + b'","v":1}', RUN) is None


def test_a_torn_tail_is_read_once_it_is_completed(path: Path) -> None:
    """Cut at any byte."""
    lines = [line(seq) for seq in (1, 2, 3)]
    whole = b"".join(lines)
    ends = [len(b"".join(lines[:count])) for count in range(1, 4)]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        reader = JournalReader(path, RUN)
        before = [record.seq for record in reader.read()]
        assert before == [number for number, end in enumerate(ends, 1) if end <= cut]
        with path.open("ab") as file:
            file.write(whole[cut:])
        assert before + [record.seq for record in reader.read()] == [1, 2, 3]
        assert reader.read() == []


def test_a_damaged_record_is_skipped_alone(path: Path) -> None:
    before, damaged, after = line(1), line(2), line(3)
    for at in range(len(damaged) - 1):
        changed = damaged[:at] + bytes([damaged[at] ^ 1]) + damaged[at + 1 :]
        path.write_bytes(before + changed + after)
        assert seqs(path) == [1, 3]


STRANGERS: dict[str, bytes] = {
    "another run": line(2, run="training-child-17-2"),
    "the same number": line(1),
    "a smaller number": line(0),
    "another version": sealed({"v": 2, "run": RUN, "seq": 2, "kind": "done", "t": 1.5, "payload": {}}),
    "no checksum": json.dumps({"v": 1, "run": RUN, "seq": 2, "kind": "done", "t": 1.5, "payload": {}}).encode() + b"\n",
    "payload a list": sealed({"v": 1, "run": RUN, "seq": 2, "kind": "done", "t": 1.5, "payload": []}),
    "number a text": sealed({"v": 1, "run": RUN, "seq": "2", "kind": "done", "t": 1.5, "payload": {}}),
    "no kind": sealed({"v": 1, "run": RUN, "seq": 2, "t": 1.5, "payload": {}}),
    "an empty line": b"\n",
    "longer than any record": encode(RUN, 2, "done", 1.5, {"x": "y" * MAX_LINE_BYTES}),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_other_lines_are_skipped(path: Path, what: str) -> None:
    path.write_bytes(line(1) + STRANGERS[what] + b"\n" + line(3))
    assert seqs(path) == [1, 3]


def test_sequence_numbers_may_skip_but_not_repeat(path: Path) -> None:
    path.write_bytes(line(1) + line(5) + line(3) + line(5) + line(6))
    assert seqs(path) == [1, 5, 6]


@pytest.mark.parametrize("newlines", [True, False])
def test_records_around_megabytes_of_garbage_are_read(path: Path, newlines: bool) -> None:
    """10 MB in many lines or in one, read at once or in parts."""
    garbage = random.Random(0).randbytes(10 << 20)  # noqa: S311 - the same garbage each time
    if not newlines:
        garbage = garbage.replace(b"\n", b"x")
    path.write_bytes(line(1) + garbage + b"\n" + line(2))
    assert seqs(path) == [1, 2]

    reader = JournalReader(path, RUN)
    path.write_bytes(line(1))
    found = reader.read()
    for start in range(0, len(garbage), 4 << 20):
        with path.open("ab") as file:
            file.write(garbage[start : start + (4 << 20)])
        found += reader.read()
    with path.open("ab") as file:
        file.write(b"\n" + line(2))
    assert [record.seq for record in found + reader.read()] == [1, 2]


def test_a_missing_journal_is_empty(path: Path) -> None:
    reader = JournalReader(path, RUN)
    assert reader.read() == []
    path.write_bytes(line(1))
    assert [record.seq for record in reader.read()] == [1]


WRITER = """
import sys
from pathlib import Path
from preflight.files.journal import JournalWriter
count = int(sys.argv[3])
with JournalWriter(Path(sys.argv[1]), sys.argv[2]) as journal:
    number = 0
    while not count or number < count:
        number += 1
        journal.write("progress", {"number": number, "filler": "x" * (number * 37 % 3000)})
"""


def start_writer(path: Path, run: str, count: int) -> subprocess.Popen[bytes]:
    """Start a process that writes `count` records; 0: endlessly."""
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), run, str(count)])


def test_a_concurrent_reader_gets_each_record_once(path: Path) -> None:
    reader = JournalReader(path, RUN)
    with start_writer(path, RUN, 3000) as writer:
        found = reader.read()
        while writer.poll() is None:
            found += reader.read()
    found += reader.read()
    assert writer.returncode == 0
    assert [record.seq for record in found] == list(range(1, 3001))
    for record in found:
        assert record.payload == {"number": record.seq, "filler": "x" * (record.seq * 37 % 3000)}


def test_a_killed_writer_loses_at_most_its_last_record(path: Path) -> None:
    reader = JournalReader(path, RUN)
    with start_writer(path, RUN, 0) as writer:
        found = reader.read()
        deadline = time.monotonic() + 60
        while len(found) < 500 and time.monotonic() < deadline:
            found += reader.read()
        writer.send_signal(signal.SIGKILL)
    found += reader.read()
    assert len(found) >= 500
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    with start_writer(path, "the next", 3) as writer:
        pass
    assert [record.seq for record in JournalReader(path, "the next").read()] == [1, 2, 3]


def test_a_writer_starts_a_new_line_after_a_torn_one(path: Path) -> None:
    path.write_bytes(line(1, run="earlier") + line(2, run="earlier")[:-20])
    with JournalWriter(path, RUN) as journal:
        journal.write("start", {})
    assert [record.kind for record in JournalReader(path, RUN).read()] == ["start"]


def test_a_full_disk_drops_progress_and_raises_for_durable_records(small_disk: tuple[Path, Callable[[], None]]) -> None:
    directory, make_room = small_disk
    path = directory / "journal"
    reader = JournalReader(path, RUN)
    filler = "x" * 1400  # so that the space ends within a record
    with JournalWriter(path, RUN) as journal:
        for number in range(20):
            journal.write("progress", {"number": number, "filler": filler})
        fitted = [record.payload["number"] for record in reader.read()]
        assert fitted == list(range(len(fitted)))
        assert 1 <= len(fitted) < 20
        assert not path.read_bytes().endswith(b"\n")
        with pytest.raises(OSError, match=r"bytes were written|No space left|File too large"):
            journal.write("done", {}, durable=True)
        make_room()
        journal.write("progress", {"number": 20, "filler": filler})
        journal.write("done", {}, durable=True)
    assert [(record.kind, record.seq) for record in reader.read()] == [("progress", 22), ("done", 23)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused(path: Path, value: float) -> None:
    """They raise, and the journal stays as it was."""
    with JournalWriter(path, RUN) as journal:
        journal.write("progress", {"loss": 0.5})
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.write("progress", {"loss": value})
        journal.write("progress", {"loss": 0.25})
    assert [record.payload["loss"] for record in JournalReader(path, RUN).read()] == [0.5, 0.25]
