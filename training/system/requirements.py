"""Required packages and their bytecode, looked up without an import."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from training.errors import MissingPackage

NEEDED: Final = ("torch", "numpy", "psutil", "safetensors")
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
