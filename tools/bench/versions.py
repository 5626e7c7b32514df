"""Checkouts of other versions, compiled, with their own entry points and packages, for comparisons."""

import compileall
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("worker", "calibration", "training", "preflight")
OWN_PACKAGES: Final = ("rq", "pydantic-settings", "python-dotenv")
"""Dependencies that an earlier version has in another version, or that are none any more."""
NO_REDIS: Final = "redis://none"
"""URL for commands that ask no Redis."""


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check a revision out to a temporary directory, compiled, with its entry points and its packages next to it."""
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
    """Put the packages that a checkout was tested with next to its code, where others or none are installed here."""
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
    """Return the environment of a checkout's commands, with a Redis and their files in `directory`."""
    python_path = os.pathsep.join(map(str, _folders(tree)))
    return {
        **os.environ, "PYTHONPATH": python_path, "REDIS_URL": url, "PREFLIGHT_LOG_FORMAT": "json",
        **{f"PREFLIGHT_{name}_DIR": str(directory / name) for name in ("CACHE", "STATE", "ARTIFACT")},
    }  # fmt: skip
