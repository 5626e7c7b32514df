"""Exit codes of `preflight`."""

from typing import Final

FAILURE: Final = 1
BAD_INPUT: Final = 2
CANCELLED: Final = 3
"""`watch` and `enqueue --wait`: the job was cancelled."""
INTERRUPTED: Final = 130
"""128 + SIGINT, the shell's convention."""
