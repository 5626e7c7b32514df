"""What `preflight doctor` looks at: everything that would make a job fail here, found before one does."""

import os
import platform
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from redis import Redis
from redis.exceptions import RedisError

from training.config.registry import DATASETS, MODELS, names
from training.data.prepare import available
from training.errors import PreflightError
from training.system.requirements import compiled_anew
from training.system.resources import detect
from worker.broker.retry import CLUSTERED, clustered
from worker.config.settings import Settings
from worker.exporters.base import exports, see_that_usable

LEAST_TORCH = (2, 10)
"""From here on torch.load's known holes are closed, and what this project uses is there."""
PACKAGES = ("rq", "redis", "pydantic", "structlog", "numpy", "safetensors")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each thing that a job needs; none shows a secret."""
    for finding in _examine(settings):
        yield replace(finding, detail=settings.scrubbed(finding.detail))


def _examine(settings: Settings) -> Iterator[Finding]:
    yield Finding("preflight", "ok", f"{version('preflight-worker')} on Python {platform.python_version()}")
    yield from _packages()
    yield _torch()
    yield _bytecode()
    yield _torchvision()
    yield _redis(settings)
    signed = "only signed jobs are taken" if settings.signing_key else "jobs are taken without a signature"
    yield Finding("signing", "ok", signed)
    yield from _resources()
    for name in ("data_dir", "artifact_dir", "cache_dir", "state_dir"):
        yield _directory(name, getattr(settings, name))
    yield _data(settings)
    yield from _exports(settings)
    yield Finding("registered", "ok", f"data sets {', '.join(names(DATASETS))}; models {', '.join(names(MODELS))}")


def _packages() -> Iterator[Finding]:
    for package in PACKAGES:
        found = _version(package)
        if found is None:
            yield Finding(f"python-{package}", "fail", "is not installed; pip install 'preflight-worker[train]'")
        else:
            yield Finding(f"python-{package}", "ok", found)


def _torch() -> Finding:
    found = _version("torch")
    if found is None:
        return Finding("torch", "fail", "is not installed; pip install 'preflight-worker[train]'")
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        return Finding("torch", "fail", f"{found} is older than {least}; pip install 'torch>={least}'")
    return Finding("torch", "ok", found)


def _bytecode() -> Finding:
    slow = compiled_anew()
    return Finding("bytecode", "warn" if slow else "ok", slow or "no training compiles torch's own code anew")


def _torchvision() -> Finding:
    """Compare torch with what torchvision was built for, without importing either."""
    found, torch = _version("torchvision"), _version("torch")
    if found is None:
        return Finding("torchvision", "warn", "is not installed; data sets are read from data_dir but not downloaded")
    pins = [re.match(r"torch\s*\(?==\s*([\d.]+)", requirement) for requirement in requires("torchvision") or []]
    wanted = next((pin[1] for pin in pins if pin), None)
    if wanted is not None and torch is not None and torch.split("+")[0] != wanted:
        detail = f"{found} was built for torch {wanted}, not {torch}; install a matching pair"
        return Finding("torchvision", "fail", detail)
    return Finding("torchvision", "ok", f"{found} matches torch")


def _redis(settings: Settings) -> Finding:
    try:
        info = Redis.from_url(settings.redis_url, socket_connect_timeout=2).info("server")
    except (RedisError, ValueError, OSError) as error:  # the latter two: parameters of the URL, files that they name
        return Finding("redis", "fail", f"{settings.safe_redis_url}: {error}; set REDIS_URL or start Redis")
    if clustered(info):
        return Finding("redis", "fail", f"{settings.safe_redis_url} {CLUSTERED}")
    return Finding("redis", "ok", f"{settings.safe_redis_url} answers, version {info['redis_version']}")


def _resources() -> Iterator[Finding]:
    found = detect()
    quota = "no quota" if found.quota is None else f"quota {found.quota:g}"
    yield Finding("cpu", "ok", f"{found.cores} cores ({quota}), from {found.cores_source}")
    yield Finding("memory", "ok", f"{found.memory_bytes >> 20} MiB, from {found.memory_source}")
    for warning in found.warnings:
        yield Finding("resources", "warn", warning)


def _directory(name: str, path: Path) -> Finding:
    """Try to write, because permission bits say nothing of read-only mounts and full disks."""
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        read_only_is_fine = name == "data_dir" and os.access(path, os.R_OK)
        status: Literal["warn", "fail"] = "warn" if read_only_is_fine else "fail"
        advice = "nothing can be downloaded into it" if read_only_is_fine else f"set PREFLIGHT_{name.upper()}"
        return Finding(name, status, f"{path} cannot be written ({error.strerror}); {advice}")
    return Finding(name, "ok", f"{path} can be written" + ("" if path.exists() else ", and will be made"))


def _exports(settings: Settings) -> Iterator[Finding]:
    for export in exports(settings):
        try:
            see_that_usable(export)
        except PreflightError as error:
            yield Finding("exports", "fail", error.message)
        else:
            yield Finding("exports", "ok", f"models also go to {export.where}")
    if settings.tensorboard_dir is not None:
        yield _directory("tensorboard_dir", settings.tensorboard_dir)


def _data(settings: Settings) -> Finding:
    present = []
    for name in names(DATASETS):
        try:
            if available(name, settings.data_dir, settings.cache_dir):
                present.append(name)
        except PreflightError as error:
            return Finding("data", "fail", error.message)
    if not present:
        return Finding("data", "warn", f"no data set lies in {settings.data_dir}; {_download()}")
    return Finding("data", "ok", f"present: {', '.join(present)}")


def _download() -> str:
    if _version("torchvision") is None:
        return "without torchvision none can be downloaded; put the files there"
    return "the first job that names one downloads it"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
