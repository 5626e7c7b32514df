"""Fields of the contract that have another name since 0.28."""

from typing import Final

RENAMED: Final = {
    "seconds": "took_s", "train_seconds": "train_s", "calibration_seconds": "calibration_s",
    "import_seconds": "import_s", "bytes": "checkpoint_bytes", "memory_mb": "memory_mib",
    "used_memory_mb": "used_memory_mib",
}  # fmt: skip
"""Name until 0.27 -> name. 0.28 wrote both; records of those versions stay readable."""
