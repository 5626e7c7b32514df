"""What is needed beyond the base install, looked for without importing it."""

from collections.abc import Sequence
from importlib.util import find_spec
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
