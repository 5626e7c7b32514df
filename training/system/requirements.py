"""What is needed beyond the base install, and whether it is compiled, looked for without importing it."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from training.errors import MissingPackage

NEEDED: Final = ("torch", "numpy", "safetensors")
NEEDED_FOR_ONNX: Final = ("onnx", "onnxscript", "onnxruntime")


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
        raise MissingPackage(
            f"{', '.join(missing)} is not installed, and {why}; pip install 'preflight-worker[{extra}]'"
        )


def compiled_anew(package: str = "torch") -> str | None:
    """Say why each process compiles what it imports of `package`, and what to do; None: it need not, or is not there.

    pip leaves bytecode behind, uv does only when it is asked. Python writes it at the first import, unless
    PYTHONDONTWRITEBYTECODE is set or the directory cannot be written, as in many containers.
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
        f"there is no bytecode of {package} and {why}, so that each process compiles it anew; "
        f"run 'python -m compileall -q {sysconfig.get_path('purelib')}' where it is installed"
    )
