"""Exit status of a child process that recorded neither a result nor a failure."""

import re
import signal
from dataclasses import dataclass
from typing import Final

from preflight.errors import ChildFailed, ChildKilled, OutOfMemory, PreflightError
from training.system.requirements import MORE_SHARED_MEMORY, SHARED_MEMORY

NO_THREAD: Final = ("can't start new thread", "Thread creation failed", "pthread_create failed")
"""Messages of Python, libgomp and OpenBLAS at a limit on processes, in which threads count."""
NO_SHARED_MEMORY: Final = re.compile(
    r"out of shared memory|shared memory object|unable to (allocate shared memory|write to file </torch|mmap \d+ bytes)"
)
"""Messages of torch where loader workers find no room for their batches, or may make no shared memory."""
SIGNALS: Final[dict[int, str]] = {
    signal.SIGILL: "was ended by an illegal instruction (SIGILL): this processor lacks an instruction that the "
    "installed build of torch uses",
    signal.SIGBUS: "was ended by a bus error (SIGBUS): a file that it had mapped was truncated, or its disk failed",
    signal.SIGKILL: "was killed (SIGKILL), not by the out-of-memory killer",
    signal.SIGSEGV: "was ended by a segmentation fault (SIGSEGV)",
    signal.SIGTERM: "was terminated (SIGTERM) before it could end by itself",
}


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit code or signal of a child, with the reason as far as it is known."""

    returncode: int
    stderr: str
    out_of_memory: bool = False
    """Whether the kernel killed it, or a child of it, for memory."""
    limit_bytes: int | None = None
    peak_bytes: int | None = None

    def describe(self) -> str:
        """Return a clause such as "exited with code 1: ...", without its subject."""
        if self.out_of_memory:
            return f"was killed by the out-of-memory killer{self._memory()}"
        if self.returncode < 0:
            number = signal.Signals(-self.returncode)
            return SIGNALS.get(number, f"was ended by {number.name}")
        last_line = self.stderr.strip().rpartition("\n")[2]
        advice = "; raise the container's limit on processes" if any(text in last_line for text in NO_THREAD) else ""
        reason = f": {last_line}{advice}" if last_line else " and no stderr output"
        return f"exited with code {self.returncode}{reason}"

    def error(self, task: str) -> PreflightError:
        """Return the exception for the child of a task."""
        message = f"the {task} process {self.describe()}"
        if NO_SHARED_MEMORY.search(self.stderr):
            return OutOfMemory(
                f"{message}; {SHARED_MEMORY} is too small for the batches of the loader workers or cannot be written: "
                f"{MORE_SHARED_MEMORY}, or set plan.loader_workers to 0"
            )
        if self.out_of_memory:
            return OutOfMemory(f"{message}; use a smaller batch_size or give the container more memory")
        return ChildKilled(message) if self.returncode < 0 else ChildFailed(message)

    def _memory(self) -> str:
        known = (("limit", self.limit_bytes), ("peak", self.peak_bytes))
        figures = [f"{name} {count / (1 << 20):,.0f} MiB" for name, count in known if count is not None]
        return f" ({', '.join(figures)})" if figures else ""
