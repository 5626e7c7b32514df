"""Words for the findings of a calibration: what a trial changed, and how it ended."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from preflight.contract.plan import KNOBS
from preflight.numbers import rough_interval

Confidence = Literal["high", "low"]
if TYPE_CHECKING:
    TrialKnob = str
else:
    TrialKnob = Literal["own", "default", "earlier", *KNOBS]
"""Knob of a trial: a part of the plan that is decided by itself; `own` is the user's plan, `default` that of the
container, measured first where it is another one; `earlier`, in findings before 0.30.6, the whole of what won on
processors like this one."""
Verdict = Literal["own", "won", "level", "lost", "dropped", "rejected", "failed", "skipped", "kept"]
"""`kept`: adopted though not faster, for its memory or its first steps; `level`: not proven faster;
`dropped`: slower (95 %), stopped early; `rejected`: its gradients differ; `failed`: its process was killed or broke;
`skipped`: never run, the note says why; see `Trial.reached`."""
BatchOutcome = Literal["own", "measured", "refused", "over", "killed", "failed", "skipped"]
"""`own`: the job's batch; `refused`: predicted not to fit, and not run; `over`: ran, but above the memory budget;
`killed`: for memory; `failed`: its process was lost or broke; `skipped`: for time."""
MEANINGS: Final[Mapping[Verdict, str]] = {
    "own": "the job's own plan, measured first",
    "won": "faster (95 %)",
    "kept": "not faster, but better in another way",
    "level": "not proven faster",
    "lost": "slower",
    "dropped": "slower (95 %), stopped early",
    "rejected": "its gradients differ, or it takes too much memory",
    "failed": "its process was killed or failed",
    "skipped": "not worth a measurement",
}
"""Verdict on a trial -> its meaning."""
ADOPTED: Final[tuple[Verdict, ...]] = ("won", "kept")
"""Verdicts after which the plan is the best one so far."""
ProbePhase = Literal["line", "1A", "1B", "1C"]
ProbeOutcome = Literal["fits", "over", "killed", "refused"]
OUTCOMES: Final[Mapping[ProbeOutcome, str]] = {
    "fits": "within the limit",
    "over": "ran, but in more than is safe",
    "killed": "ran out of memory",
    "refused": "predicted not to fit, not run",
}
"""Outcome of a memory probe -> its meaning."""
PHASES: Final[Mapping[ProbePhase, str]] = {
    "line": "for the memory model", "1A": "the whole batch", "1B": "doubling", "1C": "bisection",
}  # fmt: skip
"""Phase of the memory search -> its meaning."""
DISTURBED: Final = "the machine was busy"
"""Doubt about a trial during which something else used the processors."""


def proof(fresh_process: bool) -> str:
    """Return how the gain of a winner was proven, as an adverbial."""
    return "in a fresh process" if fresh_process else "by the races alone"


def speedup(ratio: float, low: float | None, high: float | None, doubt: str = "", other: str = "") -> str:
    """Return how fast a plan is compared with the `other` one: 1.77x as fast as your own plan (1.72x to 1.81x).

    With a `doubt` about the measurement only its 95 % interval is known, which no single figure may hide: "probably
    faster (1.8x to 5.4x; the machine was busy)".
    """
    if low is None or high is None:
        doubt = f" ({doubt})" if doubt else ""
        return f"about {ratio:.2f}x{f' as fast as {other}' if other else ''}{doubt}"
    if not doubt:
        return f"{ratio:.2f}x{f' as fast as {other}' if other else ''} ({low:.2f}x to {high:.2f}x)"
    side = "probably faster" if low > 1 else "probably slower" if high < 1 else "faster or slower"
    return f"{side}{f' than {other}' if other else ''} ({rough_interval(low, high)}; {doubt})"
