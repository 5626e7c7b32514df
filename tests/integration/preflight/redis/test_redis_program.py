"""The server that the demo and the tests start, and what is said where there is none."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pydantic import TypeAdapter
from support.worker.services import ROOT

from preflight.redis.server import embedded as embedded_redis
from preflight.redis.server import program as redis_program
from preflight.redis.server.embedded import NoRedisServer, executable, redis_server
from preflight.redis.server.program import GLIBC, MACHINES, PACKAGES, PYTHON, find_program, has_wheel
from worker.cli.demo import run_demo
from worker.config.settings import Settings

PROGRAM = ROOT / "client" / "preflight" / "redis" / "server" / "program.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEMO = [Requirement(line) for line in TypeAdapter(list[str]).validate_python(PROJECT["optional-dependencies"]["demo"])]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UNUSUAL = """#!/bin/sh
exec {python} -I -c "import platform, runpy, sys; platform.machine = lambda: 'riscv64'
runpy.run_path(sys.argv[-1], run_name='__main__')" "$@"
"""
"""A Python on a processor for which no package has a server."""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_path_comes_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under either name; it is started."""
    (tmp_path / name).symlink_to(executable())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == str(tmp_path / name)
    with redis_server() as url:
        assert url.startswith("unix://")


@pytest.mark.parametrize("said", ["Redis server v=6.0.16 sha=0", "Redis server v=5.0.7", "", "no such option"])
def test_an_old_or_broken_server_on_path_is_passed_over(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of a package is taken; where there is none, the sentence names the old one."""
    old = script(tmp_path / "redis-server", f"#!/bin/sh\necho '{said}'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() not in (None, old)
    assert redis_program.missing_server().startswith(f"{old} is older than 6.2, and ")


def test_each_python_and_machine_gets_one_package() -> None:
    """Exactly where `has_wheel` says so, and none elsewhere: its source would need a compiler."""
    for machine in (*MACHINES, "riscv64", "ppc64le"):
        for python in PYTHONS:
            here = {"sys_platform": "linux", "platform_machine": machine, "python_version": python}
            chosen = [one.name for one in DEMO if one.name in PACKAGES and one.marker and one.marker.evaluate(here)]
            assert len(chosen) == has_wheel("linux", machine, ("glibc", "2.36")), (machine, python, chosen)
    assert not has_wheel("linux", "x86_64", ("glibc", f"{GLIBC[0]}.{GLIBC[1] - 1}"))
    assert not has_wheel("linux", "x86_64", ("", ""))  # musl
    assert not has_wheel("darwin", "arm64", ("", ""))


def test_it_runs_before_anything_is_installed_on_an_old_python() -> None:
    """Python 3.6 parses it, and it imports the standard library alone."""
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= sys.stdlib_module_names
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, PYTHON))}"


def test_make_says_what_is_missing_before_it_downloads(tmp_path: Path) -> None:
    """One sentence with the packages of three systems; no environment is made."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = script(tmp_path / "python", UNUSUAL.format(python=base))
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "sh"):
        (tools / name).symlink_to(next(Path(part, name) for part in os.get_exec_path() if Path(part, name).exists()))
    done = subprocess.run(
        ["make", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", "demo"],  # noqa: S607 - the one in PATH
        cwd=ROOT, env={"PATH": str(tools)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert re.match(r"no redis-server or valkey-server is on PATH, .*`apt install redis-server`.*`dnf.*`brew", sentence)
    assert not (tmp_path / "venv").exists()


def test_the_demo_says_it_before_it_downloads_a_data_set(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(embedded_redis, "find_program", lambda: None)
    with pytest.raises(NoRedisServer, match=r"install Redis 6\.2 or newer, or Valkey"):
        run_demo(settings, {})
    assert capsys.readouterr().out == ""
