"""Checks of `preflight doctor`: everything a job needs here."""

import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from redis.exceptions import RedisError

from preflight.cli.unusable import explain_unusable
from preflight.container.resources import detect
from preflight.contract.registry import DATASETS, MODELS, names
from preflight.errors import PreflightError
from preflight.packages import explain, how_to_install, in_the_way
from preflight.redis.connection import open_redis
from preflight.redis.keys import FAILING, RQ_SUSPENDED
from preflight.redis.replies import text
from preflight.redis.retry import CLUSTERED, clustered
from preflight.redis.server.faults import find_faults
from training.data.prepare import available, explain_absence
from training.system.requirements import explain_missing_bytecode, explain_no_code, explain_shared_memory
from worker.cli.diagnosis.health import ask_web
from worker.config.settings import DEFAULT_PORT, Settings
from worker.features.entries import FEATURES
from worker.jobs.hooks import Check

CONNECT_SECONDS = 2
"""Longest wait for a connection to Redis, in seconds."""
MIN_TORCH = (2, 10)
"""First release without the known vulnerabilities of torch.load, and with the APIs used here."""
NOT_INSTALLED = f"not installed; {how_to_install('train')}"
MAX_WORKERS = 200
MAX_SHOWN = 500
"""Most characters that are shown of a worker's failing parts."""
PACKAGES = ("rq", "redis", "pydantic", "structlog", "numpy", "safetensors")


def run_checks(settings: Settings) -> Iterator[Check]:
    """Run all checks; secrets are scrubbed from their details."""
    for check in _run_checks(settings):
        yield replace(check, detail=settings.redact(check.detail))


def _run_checks(settings: Settings) -> Iterator[Check]:
    yield Check("preflight", "ok", f"{version('preflight-worker')} on Python {platform.python_version()}")
    yield from _packages()
    if (found := in_the_way(Path.cwd())) is not None:
        sentence = explain(found.stem, found, listed=False)
        yield Check("packages", "warn", f"{sentence}; programs started here cannot import the client")
    yield _torch()
    yield _bytecode()
    yield _torchvision()
    for note in settings.notes:
        yield Check("settings", "warn", note)
    yield _redis(settings)
    yield from _server(settings)
    yield _web(settings)
    yield from _workers(settings)
    signed = "only signed jobs are accepted" if settings.signing_key else "jobs need no signature"
    yield Check("signing", "ok", signed)
    yield from _resources()
    for name in ("data_dir", "artifact_dir", "cache_dir", "state_dir"):
        yield _directory(name, getattr(settings, name))
    yield from _data(settings)
    for feature in FEATURES:
        yield from feature.probe(settings)
    if settings.tensorboard_dir is not None:
        yield _directory("tensorboard_dir", settings.tensorboard_dir)
    yield Check("registered", "ok", f"data sets: {', '.join(names(DATASETS))}; models: {', '.join(names(MODELS))}")


def _packages() -> Iterator[Check]:
    for package in PACKAGES:
        found = _version(package)
        yield Check(f"python-{package}", "ok" if found else "fail", found or NOT_INSTALLED)


def _torch() -> Check:
    found = _version("torch")
    if found is None:
        return Check("torch", "fail", NOT_INSTALLED)
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < MIN_TORCH:
        least = ".".join(map(str, MIN_TORCH))
        return Check("torch", "fail", f"{found} is older than {least}; pip install 'torch>={least}'")
    return Check("torch", "ok", found)


def _bytecode() -> Check:
    slow = explain_missing_bytecode()
    return Check("bytecode", "warn" if slow else "ok", slow or "torch bytecode is precompiled")


def _torchvision() -> Check:
    """Compare torch with what torchvision was built for, without importing either."""
    found, torch = _version("torchvision"), _version("torch")
    if found is None:
        return Check("torchvision", "warn", "not installed; data sets are read from data_dir but not downloaded")
    pins = [re.match(r"torch\s*\(?==\s*([\d.]+)", requirement) for requirement in requires("torchvision") or []]
    wanted = next((pin[1] for pin in pins if pin), None)
    if wanted is not None and torch is not None and torch.split("+")[0] != wanted:
        detail = f"{found} was built for torch {wanted}, not {torch}; install a matching pair"
        return Check("torchvision", "fail", detail)
    return Check("torchvision", "ok", f"{found} matches torch")


def _redis(settings: Settings) -> Check:
    try:
        info = open_redis(settings.redis_url, connect_seconds=CONNECT_SECONDS).info("server")
    except RedisError as error:
        return Check("redis", "fail", explain_unusable(settings, error))
    except (ValueError, OSError) as error:  # ValueError, OSError: bad parameters in the URL, missing files
        return Check("redis", "fail", f"{settings.safe_redis_url}: {error}; set REDIS_URL or start Redis")
    if clustered(info):
        return Check("redis", "fail", f"{settings.safe_redis_url} {CLUSTERED}")
    return Check("redis", "ok", f"{settings.safe_redis_url} answers, version {info['redis_version']}")


def _server(settings: Settings) -> Iterator[Check]:
    with suppress(RedisError, ValueError, OSError):  # the check of Redis says why
        connection = open_redis(settings.redis_url, connect_seconds=CONNECT_SECONDS)
        faults = find_faults(connection)
        if faults.scripts is not None:
            yield Check("redis scripts", "fail", f"{settings.safe_redis_url} {faults.scripts}")
        if faults.eviction is not None:
            yield Check("redis memory", "warn", f"{settings.safe_redis_url} {faults.eviction}")
        if connection.exists(RQ_SUSPENDED):
            yield Check("suspended", "warn", "workers are suspended and take no job; `rq resume` ends it")


def _web(settings: Settings) -> Check:
    """Look at the parts of a web service of this host, where there is one."""
    port = settings.port or DEFAULT_PORT
    found = ask_web(port)
    if found is None or found.trouble is None:
        return Check("web service", "ok", f"none answers on port {port} of this host")
    if found.trouble:
        return Check("web service", "warn", f"the web service on port {port} answers, but {found.trouble}")
    return Check("web service", "ok", f"the web service on port {port} answers, and each of its parts runs")


def _workers(settings: Settings) -> Iterator[Check]:
    """Yield a check for each worker of the queue with a failing part; of very many workers only some are looked at."""
    with suppress(RedisError, ValueError, OSError):  # the check of Redis says why
        connection = open_redis(settings.redis_url, connect_seconds=CONNECT_SECONDS)
        names = sorted(map(text, connection.smembers(f"rq:workers:{settings.queue}")))[:MAX_WORKERS]
        pipe = connection.pipeline(transaction=False)
        for name in names:
            pipe.hget(name, FAILING)
        for name, failing in zip(names, pipe.execute(raise_on_error=False), strict=True):
            if isinstance(failing, bytes):
                shown = ascii(text(failing)[:MAX_SHOWN])[1:-1]
                yield Check("worker parts", "warn", f"worker {ascii(name)[1:-1].removeprefix('rq:worker:')}: {shown}")


def _resources() -> Iterator[Check]:
    found = detect()
    quota = "no quota" if found.quota is None else f"quota {found.quota:g}"
    cores = f"{found.cores} {'core' if found.cores == 1 else 'cores'}"
    yield Check("cpu", "ok", f"{cores} ({quota}), from {found.cores_source}")
    yield Check("memory", "ok", f"{found.memory_bytes >> 20} MiB, from {found.memory_source}")
    for warning in (*found.warnings, explain_no_code(), explain_shared_memory()):
        if warning is not None:
            yield Check("resources", "warn", warning)
    yield _temporary()


def _temporary() -> Check:
    try:
        return Check("temporary", "ok", f"{tempfile.gettempdir()} is writable")
    except OSError as error:  # its message names every directory that was tried
        return Check("temporary", "fail", f"{error.strerror}; mount a tmpfs on /tmp or set TMPDIR")


def _directory(name: str, path: Path) -> Check:
    """Write a file: permission bits do not show read-only mounts and full disks."""
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        read_only_is_fine = name == "data_dir" and os.access(path, os.R_OK)
        status: Literal["warn", "fail"] = "warn" if read_only_is_fine else "fail"
        advice = "data sets cannot be downloaded" if read_only_is_fine else f"set PREFLIGHT_{name.upper()}"
        return Check(name, status, f"{path} is not writable ({error.strerror}); {advice}")
    return Check(name, "ok", f"{path} is writable" + ("" if path.exists() else " and will be created"))


def _data(settings: Settings) -> Iterator[Check]:
    present: list[str] = []
    instead: dict[str, list[str]] = {}
    for name in names(DATASETS):
        try:
            why = explain_absence(name, settings.data_dir)
            if why is not None:
                # Files without a data set's name could belong to any data set.
                instead.setdefault(why.removeprefix(name), []).append(name)
            elif available(name, settings.data_dir, settings.cache_dir):
                present.append(name)
        except PreflightError as error:
            yield Check("data", "fail", error.message)
            return
    if not set(present) - {"digits"}:  # else the files belong to the data sets that are present
        for why, those in instead.items():
            absent = why.startswith(" ")
            yield Check("data", "warn" if absent else "fail", f"{' or '.join(those)}{why}" if absent else why)
    if present:
        yield Check("data", "ok", f"present: {', '.join(present)}")
    elif not instead:
        yield Check("data", "warn", f"no data set in {settings.data_dir}; {_download()}")


def _download() -> str:
    if _version("torchvision") is None:
        return "torchvision, which downloads them, is not installed; put the files there"
    return "the first job that needs one downloads it"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
