"""Budget of the fuzzers: FUZZ_SECONDS (60), FUZZ_SEED (random, printed), FUZZ_WITHOUT (steps to leave out)."""

import os
import time
from typing import Final

SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "60"))
"""For all of them together."""
SEED: Final = int(os.environ.get("FUZZ_SEED") or time.time_ns() % 2**31)
WITHOUT: Final = frozenset(os.environ.get("FUZZ_WITHOUT", "").split())
STORMS_S: Final = 0.5 * SECONDS
BOUNDARIES_S: Final = 0.3 * SECONDS
MESSAGES_S: Final = 0.2 * SECONDS
TIMEOUT_S: Final = SECONDS + 300
"""For pytest: the last storm of all may take a minute."""
