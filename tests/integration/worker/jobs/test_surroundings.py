"""Whole trainings where a container or a unit of systemd takes something away: they work, with one warning."""

import json
import shutil
import subprocess
import sys

import pytest

from worker.config.settings import Settings, service_environment

REFUSE_CODE = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: Linux 6.3
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""
TRAIN = (
    "train", "--dataset", "digits", "--batch-size", "500", "--max-steps", "2", "--json", "--set", "calibrate=false",
    "--set", "plan.loader_workers=2", "--set", "plan.prefetch_factor=4",
)  # fmt: skip


def train(settings: Settings, *prefix: str, **variables: str) -> tuple[dict[str, object], list[str]]:
    """Train by the command behind `prefix`; return its result and its warnings."""
    done = subprocess.run(
        [*prefix, sys.executable, "-P", "-m", "worker.cli", *TRAIN], capture_output=True, text=True,
        env={**service_environment(settings), "PREFLIGHT_LOG_FORMAT": "json", "PREFLIGHT_REPORT": "off", **variables},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this kernel cannot refuse executable memory (Linux 6.3)")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return json.loads(done.stdout), [str(one["message"]) for one in records if one["event"] == "warning"]


def may_unshare() -> bool:
    """Whether a mount namespace can be made here, in which /dev/shm is another one."""
    command = ["unshare", "--mount", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_unshare(), reason="no mount namespace can be made here")
@pytest.mark.parametrize("mount", ["size=1m", pytest.param("size=64m,ro", marks=pytest.mark.slow)])
def test_a_small_dev_shm_costs_loader_workers_and_nothing_else(settings: Settings, mount: str) -> None:
    """The job is not killed three times by SIGBUS: the training gathers its batches itself, which changes no result."""
    usual, _ = train(settings)
    script = f'mount -t tmpfs -o {mount} tmpfs /dev/shm && exec "$@"'
    result, warnings = train(settings, "unshare", "--mount", "sh", "-c", script, "sh")
    assert result["test_loss"] == pytest.approx(usual["test_loss"], rel=1e-3)
    (warning,) = [one for one in warnings if "shared memory" in one]
    assert "2 loader workers with 4 batches each need 14 MiB of shared memory, but /dev/shm has" in warning
    assert "docker run --shm-size 1g" in warning


@pytest.mark.slow
def test_without_executable_memory_a_job_trains_and_says_why_it_is_slow(settings: Settings) -> None:
    """As under systemd's MemoryDenyWriteExecute=yes."""
    result, warnings = train(settings, sys.executable, "-c", REFUSE_CODE)
    assert isinstance(result["test_accuracy"], float)
    assert len([one for one in warnings if "memory may not become executable here" in one.lower()]) == 1


@pytest.mark.slow
def test_variables_of_openmp_change_nothing(settings: Settings) -> None:
    """OMP_THREAD_LIMIT=1 would train with one thread, and OMP_PROC_BIND would have two share a core."""
    usual, _ = train(settings)
    bound, _ = train(settings, OMP_PROC_BIND="true", OMP_THREAD_LIMIT="1", GOMP_CPU_AFFINITY="0")
    assert bound["test_loss"] == pytest.approx(usual["test_loss"], rel=1e-3)
