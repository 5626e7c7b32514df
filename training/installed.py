"""What training needs beyond the base install, looked for without importing it."""

from importlib.util import find_spec
from typing import Final

from training.errors import MissingPackage

NEEDED: Final = ("torch", "numpy", "safetensors")


def require_training_packages() -> None:
    """Raise `MissingPackage` when one of the packages that training needs is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingPackage(
            f"{', '.join(missing)} is not installed, and training needs it; pip install 'preflight-worker[train]'"
        )
