"""A checkout as git on Windows makes it: `core.autocrlf=true` changes no file."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")


def git(directory: Path, *arguments: str) -> str:
    """Run git without the settings of this machine; return what it prints."""
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments], cwd=directory, env=clean | own, capture_output=True, text=True, check=True  # noqa: S607
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with `core.autocrlf=true` of the working tree, changes that are not committed included."""
    origin = tmp_path_factory.mktemp("origin")
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            (origin / name).write_bytes((ROOT / name).read_bytes())
            (origin / name).chmod((ROOT / name).stat().st_mode)
    git(origin, "init", "--quiet")
    git(origin, "add", "--all")
    git(origin, *IDENTITY, "commit", "--quiet", "--message", "the working tree")
    clone = tmp_path_factory.mktemp("clone") / "checkout"
    git(origin, "clone", "--quiet", "-c", "core.autocrlf=true", str(origin), str(clone))
    return clone


def test_every_file_is_as_it_was(checkout: Path) -> None:
    """Scripts, Dockerfile, configurations, fixtures and pictures, byte for byte."""
    names = git(checkout, "ls-files", "-z").split("\0")[:-1]
    assert {"Dockerfile", "Makefile", "deploy/redis/redis.conf", "tests/wire/train.json", "docs/page.png"} <= {*names}
    assert [name for name in names if (checkout / name).read_bytes() != (ROOT / name).read_bytes()] == []


def test_a_script_runs(checkout: Path, tmp_path: Path) -> None:
    """With a carriage return its interpreter is not found: exit code 127."""
    done = subprocess.run([checkout / "deploy" / "redis" / "secrets.sh", tmp_path / "secrets"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "secrets").iterdir()]
