"""Requirements of training, looked up without torch: packages, bytecode, memory, variables.

Each `explain_` function returns one sentence with a remedy, or None where nothing is missing.
"""

import errno
import mmap
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from preflight.errors import MissingPackage
from preflight.packages import how_to_install

NEEDED: Final = ("torch", "numpy", "psutil", "safetensors")
NEEDED_FOR_ONNX: Final = ("onnx", "onnxscript", "onnxruntime")

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where the C library makes shared memory
MORE_SHARED_MEMORY: Final = (
    "give the container more (docker run --shm-size 1g; in Kubernetes an emptyDir with medium Memory on /dev/shm)"
)
LEAST_SHARED_MEMORY: Final = 64 << 20
"""Bytes below which a message says so: the default of Docker and of Kubernetes."""
PLANNED: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_MAX_ACTIVE_LEVELS", "OMP_SCHEDULE",
    "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET",
    "OMP_DYNAMIC", "MKL_DYNAMIC",
)  # fmt: skip
"""Variables of OpenMP and its libraries about the number of threads and their processors, which a plan decides on."""
BINDING: Final = PLANNED[PLANNED.index("OMP_THREAD_LIMIT") :]
"""Those that would make a plan slower; set by images of Intel, by Slurm and by enroot."""


def require_training_packages() -> None:
    """Raise `MissingPackage` when one of the packages that training needs is not installed."""
    require_packages(NEEDED, "training needs it", "train")


def require_onnx_packages() -> None:
    """Raise `MissingPackage` when one of the packages that ONNX needs is not installed."""
    require_packages(NEEDED_FOR_ONNX, "ONNX needs it", "onnx")


def require_packages(packages: Sequence[str], why: str, extra: str) -> None:
    """Raise `MissingPackage` when one of `packages` is not installed; it says why, and which extra brings them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingPackage(f"{', '.join(missing)} is not installed, and {why}; {how_to_install(extra)}")


def explain_missing_bytecode(package: str = "torch") -> str | None:
    """Return why each process compiles `package` at import, with a remedy; None: it does not, or is not installed.

    pip writes bytecode, uv only on request. Python writes it at the first import, unless PYTHONDONTWRITEBYTECODE is
    set or the directory is read-only, as in many containers.
    """
    spec = find_spec(package)
    if spec is None or spec.cached is None or Path(spec.cached).exists():
        return None
    nearest = next(parent for parent in Path(spec.cached).parents if parent.exists())
    if sys.dont_write_bytecode:
        why = "PYTHONDONTWRITEBYTECODE keeps Python from writing it"
    elif not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        why = f"{nearest} cannot be written"
    else:
        return None
    return (
        f"there is no bytecode of {package} and {why}, so each process compiles it; "
        f"run 'python -m compileall -q {sysconfig.get_path('purelib')}' where it is installed"
    )


def without_thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for training processes: threads and where they run are the plan's."""
    return {name: value for name, value in environment.items() if name not in PLANNED}


def explain_thread_variables(environment: Mapping[str, str]) -> str | None:
    """Return which variables of the image or the cluster training processes do not get."""
    found = [f"{name}={environment[name]}" for name in BINDING if environment.get(name)]
    if not found:
        return None
    have = "have" if len(found) > 1 else "has"
    return (
        f"{', '.join(found)} {have} no effect on training, whose plans decide on threads and their processors; "
        "limit the container's processors instead, or set plan.threads of a job"
    )


def may_generate_code() -> bool:
    """Whether this process may write machine code into memory and run it, as oneDNN does."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM)
    return True


def leave_out_onednn() -> None:
    """Have torch compute without oneDNN where that cannot generate code: its convolutions would raise RuntimeError."""
    if not may_generate_code():
        import torch

        torch.backends.mkldnn.set_flags(False)


def explain_no_code() -> str | None:
    """Return why training is slow where no code may be generated."""
    if may_generate_code():
        return None
    return (
        "memory may not become executable here (systemd's MemoryDenyWriteExecute=yes, PR_SET_MDWE, or SELinux's "
        "deny_execmem), so torch computes without oneDNN, several times slower; set MemoryDenyWriteExecute=no"
    )


def shared_memory_bytes() -> int:
    """Return the bytes that loader workers may put into shared memory; 0: they cannot make any."""
    try:
        found = os.statvfs(SHARED_MEMORY)
        usable = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if usable and not found.f_flag & os.ST_RDONLY else 0


def explain_shared_memory() -> str | None:
    """Return what a small /dev/shm costs; None: it is large enough."""
    found = shared_memory_bytes()
    if found >= LEAST_SHARED_MEMORY:
        return None
    return (
        f"{SHARED_MEMORY} has {found >> 20} MiB free, so plans with loader workers are left out where their batches do "
        f"not fit into it; {MORE_SHARED_MEMORY}"
    )
