"""A Parquet file with one row group, as pandas writes it, is read in batches: each process holds a few of its rows."""

import io
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.files.pictures import imported

from preflight.container.resources import status_sizes

ROWS, SIDE = 4_500, 250
MOST = 430 << 20
"""Bytes: an interpreter with pyarrow, and pages of 64 MiB. The row group of 280 MiB and a task's 125 would be 530."""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.files.pictures import imported
print(imported(Path(sys.argv[1]), Path(sys.argv[2]), size=(28, 28), keep_duplicates=True).samples)
"""


def write(path: Path, rows: int, side: int) -> None:
    """Write pictures of noise, one row group of them all."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary())])), ("label", pa.int64())])
    files = []
    for _ in range(rows):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (side, side), dtype=np.uint8)).save(file, "PNG", compress_level=0)
        files.append({"bytes": file.getvalue()})
    table = pa.table({"image": files, "label": [number % 4 for number in range(rows)]}, schema=schema)
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=rows)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    write(tmp_path / "large.parquet", ROWS, SIDE)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(tmp_path / "large.parquet"),
               str(Path(__file__).parents[3])]  # fmt: skip
    peaks = Counter[int]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            for process in (psutil.Process(running.pid), *psutil.Process(running.pid).children()):
                with suppress(OSError, KeyError):
                    peaks[process.pid] = status_sizes(process.pid)["VmHWM"]
            time.sleep(0.02)
        assert running.stdout is not None
        assert running.stdout.read() == f"{ROWS}\n"
    assert len(peaks) >= 2
    assert max(peaks.values()) < MOST, peaks


def test_tasks_of_one_row_group_have_each_row_once(tmp_path: Path) -> None:
    """Whichever child gets which of them, in whatever order."""
    write(tmp_path / "mine.parquet", 4_100, 8)
    version = imported(tmp_path / "data", tmp_path / "mine.parquet", keep_duplicates=True, test=0.25, validation=0)
    assert version.samples == 4_100
    assert [each.train + each.test for each in version.classes] == [1_025] * 4
    assert "'samples': 0" in str(version.report["exact_duplicates"])
