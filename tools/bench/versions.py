"""This version beside an earlier one: whole commands in turns, each version on its own code, caches and entry points.

    python -m tools.bench.versions REVISION

Prints Markdown tables: medians and ranges of wall seconds, from the start of the process to its end, or to a record in
its log that ends what is compared; and of their ratios, pair by pair. A pair takes turns A B, B A.
"""

import compileall
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from preflight.redis.server.embedded import redis_server
from tools.bench.record import samples, start

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("worker", "calibration", "training", "preflight")
OWN_PACKAGES: Final = ("rq", "pydantic-settings", "python-dotenv")
"""Dependencies that an earlier version has in another version, or that are none any more."""
MAX_SLOWDOWN: Final = 1.05
"""Median ratio of a pair up to which this version is within noise: two of the same differ by as much here."""
TRAIN: Final = ("train", "--no-calibrate", "--json", "--recipe")
NO_REDIS: Final = "redis://none"
"""For commands that ask none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What both versions do in turns."""

    pairs: int
    arguments: tuple[str, ...]
    until: str = ""
    """The record in its log at which it is stopped; empty: it ends by itself."""


COMMANDS: Final[Mapping[str, Command]] = {
    "worker start": Command(pairs=7, arguments=("worker",), until="worker_started"),
    "recipe `fast`": Command(pairs=5, arguments=(*TRAIN, "fast")),
    "start and calibration of a training, `cnn`": Command(
        pairs=5, arguments=("train", "--force-calibration", "--json"), until="calibration_winner"
    ),
    "recipe `balanced`": Command(pairs=3, arguments=(*TRAIN, "balanced")),
}


def main(revision: str) -> None:
    """Print and write the comparison."""
    record = start("versions", f"python -m tools.bench.versions {revision}")
    with checked_out(revision) as tree, checked_out("HEAD") as here, redis_server() as url:
        was, now = (version_of(each) for each in (tree, here))
        record.version = now
        record.head("command", f"{was}, seconds", f"{now}, seconds", f"{now} / {was}", f"at most {MAX_SLOWDOWN:g}")
        for name, command in COMMANDS.items():
            measure = partial(seconds, command, url)
            for each in (tree, here):
                measure(each)  # data sets are prepared, bytecode is written
            turns = [(tree, here) if number % 2 == 0 else (here, tree) for number in range(command.pairs)]
            taken = [{root: measure(root) for root in turn} for turn in turns]
            before, after = ([each[root] for each in taken] for root in (tree, here))
            ratios = [new / old for old, new in zip(before, after, strict=True)]
            reached = sorted(ratios)[len(ratios) // 2] <= MAX_SLOWDOWN
            cells = (samples(before, ".2f"), samples(after, ".2f"), samples(ratios, ".3f"))
            record.row(name, *cells, "reached" if reached else "missed")
    record.write()


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check a revision out to a temporary directory, compiled, with its entry points and its packages beside it."""
    with tempfile.TemporaryDirectory(prefix="versions-") as scratch:
        tree = Path(scratch)
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)  # noqa: S607 - git on PATH
        subprocess.run(["tar", "-x", "-C", scratch], stdin=archive.stdout, check=True)  # noqa: S607 - tar on PATH
        project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        version = version_of(tree)
        info = tree / f"preflight_worker-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
        groups = ((group, points) for group, points in project["entry-points"].items())
        (info / "entry_points.txt").write_text(
            "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups)
        )
        _install_own(tree)
        for package in PACKAGES:  # no run of it has to, where bytecode is not kept
            for folder in _folders(tree):
                compileall.compile_dir(folder / package, quiet=2)
        yield tree


def _install_own(tree: Path) -> None:
    """Put the packages that a checkout was tested with beside its code, where others or none are installed here."""
    pins = dict(re.findall(r"^(\S+?)==(.+)$", (tree / "constraints.txt").read_text(), re.MULTILINE))
    here = {found.name: found.version for found in distributions()}
    own = {name: pins[name] for name in OWN_PACKAGES if name in pins}
    if any(here.get(name) != pinned for name, pinned in own.items()):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(tree), *map("==".join, own.items())], check=True)


def version_of(tree: Path) -> str:
    """Return the version of a checkout."""
    projects = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in _folders(tree)]
    return next(str(project["version"]) for project in projects if "version" in project)


def _folders(tree: Path) -> list[Path]:
    """Return the folders of a checkout's projects; until 0.27.0 there was one."""
    return [folder for folder in (tree, tree / "client") if (folder / "pyproject.toml").is_file()]


def environment(tree: Path, url: str, directory: Path) -> dict[str, str]:
    """Return the environment of a checkout's commands, with a Redis and what they write in `directory`."""
    python_path = os.pathsep.join(map(str, _folders(tree)))
    return {
        **os.environ, "PYTHONPATH": python_path, "REDIS_URL": url, "PREFLIGHT_LOG_FORMAT": "json",
        **{f"PREFLIGHT_{name}_DIR": str(directory / name) for name in ("CACHE", "STATE", "ARTIFACT")},
    }  # fmt: skip


def seconds(command: Command, url: str, tree: Path) -> float:
    """Run a command of a checkout and return its wall seconds, to its end or to the record at which it is stopped."""
    arguments = [sys.executable, "-P", "-m", "worker.cli", *command.arguments]
    began = time.perf_counter()
    with subprocess.Popen(
        arguments, cwd=tree, env=environment(tree, url, tree / "bench-out"), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        last = ""
        for last in process.stdout or ():
            if command.until and f'"{command.until}"' in last:
                taken = time.perf_counter() - began
                process.terminate()
                return taken
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} of {version_of(tree)} exited with code {process.returncode}: {last}")
    return time.perf_counter() - began


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.bench.versions REVISION")
    main(sys.argv[1])
