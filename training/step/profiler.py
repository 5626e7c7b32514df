"""Wall time per phase of a training, and traces of steps.

On a CPU all phases run one after the other in one thread: a clock read between them measures them, and their seconds
add up to the wall time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import JsonValue

Phase = Literal["data", "transfer", "forward", "loss", "backward", "optimizer", "validation", "checkpoint", "other"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""Fetching, augmenting and normalising; moving to the device (nothing on a CPU); forward; cross entropy; backward;
clipping and stepping; validation; keeping checkpoints and the best weights; reports and all else."""
PhaseCallback = Callable[[Phase], None]

UNTRACED: Final = 10
"""Steps before those of a trace: they warm up."""
TRACED: Final = 5
TRACE: Final = "trace.json.gz"
"""Name of the file of a trace next to the model; https://ui.perfetto.dev and chrome://tracing read it."""


def no_timer(phase: Phase) -> None:
    """Measure nothing."""


class PhaseTimer:
    """Adds up the seconds of each phase; call it with a phase where that ends."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def __call__(self, phase: Phase) -> None:
        """End a phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def profile(self, steps: int) -> dict[str, JsonValue]:
        """Return the time that the epochs of a training spent in each phase, `steps` steps of them in this process.

        `<phase>_s` are the seconds of each phase, and `total_s` is their sum. `average_batch_s` is total_epoch_time /
        total_batches: warming up, loading and validation included.
        """
        total = sum(self.seconds.values())
        seconds: dict[str, JsonValue] = {f"{phase}_s": spent for phase, spent in self.seconds.items()}
        return {"steps": steps, "average_batch_s": total / max(1, steps), "total_s": total, **seconds}


@contextmanager
def tracing(path: Path | None, lap: PhaseCallback) -> Iterator[PhaseCallback]:
    """Yield a callback that calls `lap` and, unless `path` is None, traces a few steps after a warm-up into `path`.

    The file has the format of Chrome's trace viewer. A training of fewer steps leaves none.
    """
    if path is None:
        yield lap
        return
    from torch.profiler import ProfilerActivity, profile, schedule

    def write(finished: profile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        finished.export_chrome_trace(str(path))

    with profile(
        activities=[ProfilerActivity.CPU], on_trace_ready=write,
        schedule=schedule(skip_first=UNTRACED - 1, wait=0, warmup=1, active=TRACED, repeat=1),
    ) as profiler:  # fmt: skip

        def lap_and_trace(phase: Phase) -> None:
            lap(phase)
            if phase == "optimizer":
                profiler.step()

        yield lap_and_trace
