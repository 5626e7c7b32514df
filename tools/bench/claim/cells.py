"""Cells of the claim: a training in a container, alone or next to a busy process; and a turn of its three commands."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from tools.bench.calibration.common import PREFLIGHT
from tools.bench.calibration.matrix.workloads import python_path
from tools.bench.container import Container, container
from tools.bench.lines import ResultFile
from tools.bench.record import RESULTS
from tools.faults.means import neighbours
from worker.config.settings import load

Command = Literal["plain", "cold", "warm"]
"""Plain PyTorch; `preflight train` with empty caches; and again with the files that it left there."""
SCRIPT: Final = Path(__file__).with_name("plain.py")
MEMORY: Final = 4 << 30
CPUS: Final = (0.5, 1.0, 2.0)
LONGEST: Final = 600.0
"""Seconds after which a command is ended."""
LONGEST_BESIDE: Final = 240.0
"""The same for plain PyTorch beside a busy process, where it takes ten minutes and more: its ratio is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A training: data set, model, epochs and samples of each."""

    dataset: str
    model: str
    epochs: int
    samples: int


NETWORKS: Final[Mapping[str, Network]] = {
    "cnn": Network(dataset="mnist", model="cnn", epochs=1, samples=60_000),
    "resnet18": Network(dataset="mnist-short", model="resnet18", epochs=1, samples=6_400),
    "own task": Network(dataset="shapes", model="shapes-net", epochs=10, samples=6_000),
    "two layers": Network(dataset="mnist", model="two-layers", epochs=5, samples=60_000),
}
"""`mnist-short` has 1,000 test samples; `shapes` and `shapes-net` are those of deploy/examples/own_task."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One place in the table."""

    network: str
    cpus: float
    busy: bool
    """Whether `while True: pass` runs outside of the container."""

    @property
    def name(self) -> str:
        """Return its name."""
        return f"{self.network}, {self.cpus:g} CPU{', one neighbour' if self.busy else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole command."""

    seconds: float
    ended: bool
    """Whether it trained to its end; otherwise its time was over, or it failed."""
    accuracy: float | None = None
    sentence: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One turn of the three commands."""

    cell: Cell
    runs: dict[Command, Run]
    at: str
    version: str
    machine: str

    @property
    def seconds(self) -> float:
        """Seconds of the turn."""
        return sum(run.seconds for run in self.runs.values())


PAIR: Final = TypeAdapter(Pair)
FILE: Final = ResultFile(RESULTS / "claim.jsonl", PAIR)


def measure_turn(cell: Cell, *, plain_first: bool) -> dict[Command, Run]:
    """Run the three commands one after the other; warm always follows cold."""
    order: Sequence[Command] = ("plain", "cold", "warm") if plain_first else ("cold", "warm", "plain")
    with (
        tempfile.TemporaryDirectory(prefix="preflight-claim-") as name,
        container(cell.cpus, MEMORY) as box,
        neighbours(1) if cell.busy else nullcontext(),
    ):
        place = Path(name)
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(place / "site"),
            "PREFLIGHT_DATA_DIR": str(load().data_dir),
            **{f"PREFLIGHT_{kind}_DIR": str(place / kind.lower()) for kind in ("CACHE", "STATE", "ARTIFACT")},
        }
        return {
            each: run_command(command_of(each, NETWORKS[cell.network]), box, environment, limit_of(each, cell))
            for each in order
        }


def limit_of(command: Command, cell: Cell) -> float:
    """Return the seconds that a command has."""
    return LONGEST_BESIDE if cell.busy and command == "plain" else LONGEST


def command_of(command: Command, network: Network) -> list[str]:
    """Return the command line."""
    words = [str(network.epochs), str(network.samples)]
    if command == "plain":
        return [sys.executable, str(SCRIPT), network.dataset, network.model, *words]
    return [
        PREFLIGHT, "train", "--dataset", network.dataset, "--model", network.model, "--epochs", words[0],
        "--set", f"train_samples={words[1]}", "--set", "validation_samples=0", "--json",
    ]  # fmt: skip


def run_command(words: Sequence[str], box: Container | None, environment: Mapping[str, str], limit: float) -> Run:
    """Run a command in a container, or in this one; a failure is a run, too."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*(box.enter if box else ()), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        printed, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        seconds = time.monotonic() - began
        process.terminate()
        process.communicate()
        return Run(seconds=seconds, ended=False, sentence=f"ended after {limit:g} s")
    seconds = time.monotonic() - began
    if process.returncode:
        return Run(seconds=seconds, ended=False, sentence=said.decode(errors="replace").strip()[-300:])
    last = json.loads(printed.strip().rpartition(b"\n")[2])
    return Run(seconds=seconds, ended=True, accuracy=last["test_accuracy"])
