"""Imports beside what people read the same files with: `python -m tools.bench.data_import [--rounds N] [--parts ...]`.

`png`: 60,000 digits as PNG in class folders, imported with checks and hashes, beside torchvision's ImageFolder with a
DataLoader of two workers that reads them once. `csv`: Kaggle's table of 42,000 digits as a whole command, beside
pandas.read_csv alone (pyarrow's reader where pandas is not installed). `npz`, `parquet`: beside reading their bytes and
decoding alone. `epoch`: the same training on imported and built-in data, in pairs. Sides take turns; medians.

Real MNIST is read from PREFLIGHT_DATA_DIR.
"""

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from training.data.builtin.catalog import MNIST

COUNT: Final = 60_000
ROWS: Final = 42_000
BATCH: Final = 256
PARTS: Final = ("png", "csv", "npz", "parquet", "epoch")

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
import json, resource, sys, time
began = time.perf_counter()
from worker.cli.__main__ import main
try:
    main()
finally:
    use = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    sys.stderr.write("\\nPEAK " + json.dumps([use, time.perf_counter() - began]) + "\\n")
"""


class Bench:
    """Sources and their imports below one directory."""

    def __init__(self, root: Path, rounds: int) -> None:
        samples = MNIST.load(Path(os.environ["PREFLIGHT_DATA_DIR"]), download=False)
        self.images: npt.NDArray[np.uint8] = samples.train.images[:, 0]
        self.labels = samples.train.labels
        self.root, self.rounds = root, rounds

    def run_command(self, source: Path) -> tuple[float, list[int]]:
        """Import a source by the command; return its seconds and the peaks of parent and children, KiB."""
        with tempfile.TemporaryDirectory(dir=self.root) as data:
            environment = {**os.environ, "PREFLIGHT_DATA_DIR": data}
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-P", "-c", PEAK, "data", "add", "bench", str(source), "--json"],
                env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            seconds = time.perf_counter() - began
        peaks: list[int] = json.loads(done.stderr.rpartition("PEAK ")[2])[0]
        return seconds, peaks

    def turns(self, name: str, ours: Callable[[], float], theirs: Callable[[], float], bound: str) -> None:
        """Let both sides take turns, and print the ratio of the medians of their seconds."""
        pairs = [(ours(), theirs()) for _ in range(self.rounds)]
        medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
        ratios = [theirs / ours for ours, theirs in pairs]
        print(
            f"{name:9} ours {medians[0]:7.2f} s  theirs {medians[1]:7.2f} s  ratio {statistics.median(ratios):5.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {bound}",
            flush=True,
        )

    def png(self) -> None:
        tree = self.root / "tree"
        for number, (image, label) in enumerate(zip(self.images, self.labels, strict=True)):
            (tree / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tree / str(label) / f"{number}.png")
        peaks: list[int] = []

        def ours() -> float:
            seconds, found = self.run_command(tree)
            peaks.append(max(found))
            return seconds

        self.turns("png", ours, lambda: _other(IMAGE_FOLDER, tree), "at least 1.5")
        bare = _bare_interpreter()
        print(f"          peak of any process {max(peaks) / 1024 - bare:.0f} MiB beyond an interpreter, at most 300")

    def csv(self) -> None:
        path = self.root / "train.csv"
        header = ",".join(["label", *(f"pixel{number}" for number in range(784))])
        table = np.concatenate((self.labels[:ROWS, None], self.images[:ROWS].reshape(ROWS, -1)), 1)
        np.savetxt(path, table, fmt="%d", delimiter=",", header=header, comments="")
        reader = "pandas" if find_spec("pandas") else "pyarrow"
        self.turns("csv", lambda: self.run_command(path)[0], lambda: _other(READ_CSV, path), f"{reader}; at least 0.5")

    def npz(self) -> None:
        path = self.root / "mine.npz"
        np.savez(path, images=self.images, labels=self.labels)

        def theirs() -> float:
            began = time.perf_counter()
            with np.load(path) as arrays:
                found = arrays["images"].copy(), arrays["labels"].copy()
            del found
            return time.perf_counter() - began

        self.turns("npz", lambda: self.run_command(path)[0], theirs, "at least 0.7")

    def parquet(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        def encoded(image: npt.NDArray[np.uint8]) -> dict[str, bytes]:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            return {"bytes": file.getvalue()}

        path = self.root / "train.parquet"
        table = pa.table({"image": [encoded(image) for image in self.images], "label": self.labels.astype(np.int64)})
        pq.write_table(table, path, row_group_size=1_000)

        def theirs() -> float:
            began = time.perf_counter()
            for batch in pq.ParquetFile(path).iter_batches():
                for cell in batch.column(0).field("bytes").to_pylist():
                    np.asarray(Image.open(io.BytesIO(cell)))
            return time.perf_counter() - began

        self.turns("parquet", lambda: self.run_command(path)[0], theirs, "at least 0.7")

    def epoch(self) -> None:
        """Train an epoch on imported and on built-in data."""
        tree = self.root / "mnist-test.npz"
        samples = MNIST.load(Path(os.environ["PREFLIGHT_DATA_DIR"]), download=False)
        np.savez(
            tree, x_train=self.images, y_train=self.labels, x_test=samples.test.images[:, 0], y_test=samples.test.labels
        )
        own = Path(os.environ["PREFLIGHT_DATA_DIR"])
        data = self.root / "data"
        data.mkdir()
        for path in own.iterdir():
            (data / path.name).symlink_to(path)
        environment = {**os.environ, "PREFLIGHT_DATA_DIR": str(data), "PREFLIGHT_REPORT": "off"}
        for name in ("cache", "state", "artifact"):
            environment[f"PREFLIGHT_{name.upper()}_DIR"] = str(self.root / name)
        command = [sys.executable, "-P", "-m", "worker.cli"]
        subprocess.run(
            [*command, "data", "add", "imported", str(tree), "--validation", "0", "--keep-duplicates"], env=environment,
            check=True, capture_output=True,
        )  # fmt: skip

        def seconds(dataset: str) -> float:
            done = subprocess.run(
                [*command, "train", "--dataset", dataset, "--max-steps", "200", "--no-calibrate", "--json", "--set",
                 "validation_samples=0"],
                env=environment, check=True, capture_output=True, text=True,
            )  # fmt: skip
            found: float = json.loads(done.stdout)["train_s"]
            return found

        self.turns("epoch", lambda: seconds("imported"), lambda: seconds("mnist"), "at least 0.97")


def _other(program: str, source: Path) -> float:
    """Return the seconds that a program in a fresh interpreter says it took, its imports left out."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        done = subprocess.run([sys.executable, file.name, str(source)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _bare_interpreter() -> float:
    """Return the peak of an interpreter that has imported NumPy and Pillow, MiB."""
    program = "import resource, numpy, PIL.Image; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as directory:
        for part in asked.parts:
            root = Path(directory) / part
            root.mkdir()
            getattr(Bench(root, asked.rounds), part)()


if __name__ == "__main__":
    main()
