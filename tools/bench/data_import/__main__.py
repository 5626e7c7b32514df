"""Imports compared with other readers of the same files, and trainings on them with built-in data.

    python -m tools.bench.data_import [PART ...] [--minutes N]

`png`: 60,000 digits as PNG in class folders, imported with checks and hashes, against torchvision's ImageFolder with a
DataLoader of two workers that reads them once, both without the start of the program. `csv`: Kaggle's table of
42,000 digits as a whole command, against pandas.read_csv alone (pyarrow's reader where pandas is not installed). `npz`,
`parquet`: without the command's start, against reading their bytes and decoding alone in one process. `epoch`,
`calibration`: the same on imported and on built-in data. `large`: data of twice the memory limit against data that fit.
`photographs`: from the files to a result. Sides take turns; medians. Real MNIST is read from PREFLIGHT_DATA_DIR.
`calibration` takes ten minutes, `large` eight, each of the others two.
"""

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tools.bench.data_import.common import mnist, turns, work_directory
from tools.bench.data_import.trained import calibration, epoch, large, photographs
from tools.bench.pieces import Bench, Row
from tools.bench.record import judged

ROWS: Final = 42_000
MOST_MIB: Final = 300
"""Most MiB of any process of an import, beyond those of an interpreter."""

IMAGE_FOLDER: Final = """
import sys, time
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor
if __name__ == "__main__":
    began = time.perf_counter()
    data = ImageFolder(sys.argv[1], transform=PILToTensor())
    count = sum(len(labels) for _, labels in DataLoader(data, batch_size=256, num_workers=2))
    print(count, time.perf_counter() - began)
"""
READ_CSV: Final = """
import sys, time
began = time.perf_counter()
try:
    import pandas
    began = time.perf_counter()
    frame = pandas.read_csv(sys.argv[1])
except ImportError:
    import pyarrow, pyarrow.csv
    began = time.perf_counter()
    names = ["label"] + [f"pixel{number}" for number in range(784)]
    options = pyarrow.csv.ConvertOptions(column_types={name: pyarrow.uint8() for name in names})
    frame = pyarrow.csv.read_csv(sys.argv[1], convert_options=options)
print(len(frame), time.perf_counter() - began)
"""
PEAK: Final = """
import json, resource, sys
from preflight.container.resources import status_sizes
from worker.cli.__main__ import main
try:
    main()
finally:  # its own peak by the memory that it has: that of its usage began before it was this program
    use = [status_sizes()["VmHWM"] >> 10, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]
    sys.stderr.write("\\nPEAK " + json.dumps(use) + "\\n")
"""


def png() -> list[Row]:
    """Return the rows of pictures in class folders: seconds and memory."""
    train, peaks = mnist().train, list[int]()
    with work_directory() as root:
        for number, (image, label) in enumerate(zip(train.images[:, 0], train.labels, strict=True)):
            (root / str(label)).mkdir(exist_ok=True)
            Image.fromarray(image).save(root / str(label) / f"{number}.png")
        start = _start()

        def ours() -> float:
            seconds, peak = _imported(root)
            peaks.append(peak)
            return seconds - start

        rate = turns(
            f"{len(train.labels):,} PNGs in class folders", ours, lambda: _other(IMAGE_FOLDER, root), 1.5,
            "torchvision's ImageFolder",
        )  # fmt: skip
    most = max(peaks) / 1024 - _bare_interpreter()
    return [rate, ("peak of a process of it beyond an interpreter", f"{most:.0f} MiB", "", f"at most {MOST_MIB} MiB",
                   judged(most <= MOST_MIB))]  # fmt: skip


def csv() -> list[Row]:
    """Return the row of a table of pixels."""
    train = mnist().train
    with work_directory() as root:
        path = root / "train.csv"
        header = ",".join(["label", *(f"pixel{number}" for number in range(784))])
        table = np.concatenate((train.labels[:ROWS, None], train.images[:ROWS].reshape(ROWS, -1)), 1)
        np.savetxt(path, table, fmt="%d", delimiter=",", header=header, comments="")
        reader = "pandas.read_csv" if find_spec("pandas") else "pyarrow's reader of CSV"
        figure = f"CSV of {ROWS:,} rows, whole command"
        return [turns(figure, lambda: _imported(path)[0], lambda: _other(READ_CSV, path), 0.5, reader)]


def npz() -> list[Row]:
    """Return the row of arrays."""
    train = mnist().train
    with work_directory() as root:
        path, start = root / "mine.npz", _start()
        np.savez_compressed(path, images=train.images[:, 0], labels=train.labels)

        def theirs() -> float:
            began = time.perf_counter()
            with np.load(path) as arrays:
                found = arrays["images"], arrays["labels"]
            del found
            return time.perf_counter() - began

        return [turns("npz, compressed as Keras's", lambda: _imported(path)[0] - start, theirs, 0.7, "numpy.load")]


def parquet() -> list[Row]:
    """Return the row of encoded pictures in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def encoded(image: npt.NDArray[np.uint8]) -> dict[str, bytes]:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        return {"bytes": file.getvalue()}

    train = mnist().train
    with work_directory() as root:
        path, start = root / "train.parquet", _start()
        cells = [encoded(image) for image in train.images[:, 0]]
        pq.write_table(
            pa.table({"image": cells, "label": train.labels.astype(np.int64)}), path, row_group_size=1_000
        )  # fmt: skip

        def theirs() -> float:
            began = time.perf_counter()
            for batch in pq.ParquetFile(path).iter_batches():
                for cell in batch.column(0).field("bytes").to_pylist():
                    np.asarray(Image.open(io.BytesIO(cell)))
            return time.perf_counter() - began

        return [turns("Parquet", lambda: _imported(path)[0] - start, theirs, 0.7, "pyarrow and Pillow")]


def _start() -> float:
    """Return the seconds of an import of a hundred samples, which the command takes whatever it imports."""
    images = np.random.default_rng(0).integers(0, 256, (100, 28, 28), dtype=np.uint8)
    with work_directory() as root:
        path = root / "small.npz"
        np.savez(path, images=images, labels=np.arange(100) % 10)
        return statistics.median(_imported(path)[0] for _ in range(3))


def _imported(source: Path) -> tuple[float, int]:
    """Import a source by the command; return its seconds and the peak of any of its processes, KiB."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as data:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-P", "-c", PEAK, "data", "add", "bench", str(source), "--json"],
            env={**os.environ, "PREFLIGHT_DATA_DIR": data}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return seconds, max(json.loads(done.stderr.rpartition("PEAK ")[2]))


def _other(program: str, source: Path) -> float:
    """Return the seconds that a program in a fresh interpreter says it took, its imports left out."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        done = subprocess.run([sys.executable, file.name, str(source)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _bare_interpreter() -> float:
    """Return the peak of an interpreter that has imported NumPy and Pillow, MiB."""
    program = (
        "import numpy, PIL.Image\n"
        "from preflight.container.resources import status_sizes\n"
        "print(status_sizes()['VmHWM'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout) / 2**20


BENCH: Final = Bench(
    name="data-import", command="python -m tools.bench.data_import",
    leaves_out="of what is beside an import, its start and imports",
    parts={
        "png": png, "csv": csv, "npz": npz, "parquet": parquet, "epoch": epoch, "calibration": calibration,
        "large": large, "photographs": photographs,
    },
)  # fmt: skip


if __name__ == "__main__":
    BENCH.main(__doc__)
