"""Words in which a calibration tells its findings: what a trial changed, and how it ended."""

from typing import Final, Literal

Confidence = Literal["high", "low"]
Knob = Literal[
    "own", "default", "earlier", "allocator", "precision", "threads", "micro_batch", "eval_batch", "loader", "prefetch",
    "affinity", "interop", "weight_gradients", "compile",
]  # fmt: skip
"""What a trial turned: a part of the plan that is decided by itself; `own` is the user's plan, `default` that of the
container, measured first where it is another one, `earlier` the whole of what won on processors like this one."""
Verdict = Literal["own", "won", "level", "lost", "dropped", "rejected", "failed", "skipped", "kept"]
"""`kept`: adopted though not faster, for its memory or its first steps; `level`: not proven faster;
`dropped`: slower (95 %), stopped early; `rejected`: its gradients differ; `failed`: its process was killed or broke;
`skipped`: never run, the note says why; see `Trial.reached`."""
BatchOutcome = Literal["own", "measured", "refused", "over", "killed", "failed", "skipped"]
"""`own`: the job's batch; `refused`: predicted not to fit, and not run; `over`: ran, but above the memory budget;
`killed`: for memory; `failed`: its process was lost or broke; `skipped`: for time."""
ADOPTED: Final[tuple[Verdict, ...]] = ("won", "kept")
"""Verdicts after which the plan is the best one so far."""
ProbePhase = Literal["line", "1A", "1B", "1C"]
ProbeOutcome = Literal["fits", "over", "killed", "refused"]
