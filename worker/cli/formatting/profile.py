"""Profile of training steps as text."""

from typing import Final

from preflight.cli.formatting.text import columns
from preflight.events.plan_words import plan_line
from preflight.numbers import plural
from worker.jobs.local.profile import ProfileReport

NOT_IN_A_STEP: Final = {"validation", "checkpoint"}


def format_profile(found: ProfileReport) -> str:
    """Return the configuration, the phases of its steps next to those of the warm-up, and notes."""
    warm = {phase: batch_s for phase, batch_s, _ in found.warm_up.phases()}
    rows = [
        (phase, f"{1e3 * batch_s:.3f}", f"{share:.1%}", f"{1e3 * warm[phase]:.3f}")
        for phase, batch_s, share in found.measured.phases()
        if phase not in NOT_IN_A_STEP and (phase != "transfer" or batch_s)
    ]
    measured, warm_up = found.measured, found.warm_up
    whole = "all", f"{1e3 * measured.average_batch_s:.3f}", "100.0%", f"{1e3 * warm_up.average_batch_s:.3f}"
    pieces = ("micro_batch",) if found.plan.micro_batch < found.batch_size else ()
    lines = [
        f"{found.model} on {found.dataset}, batch {found.batch_size}: {plan_line(found.plan, *pieces)}",
        "",
        columns([("PHASE", "MS/STEP", "SHARE", "WARM-UP MS/STEP"), *rows, whole]),
        "",
        f"{plural(measured.steps, 'step')} in {measured.total_s:.2f} s, {found.samples_per_s:,.0f} samples/s; "
        f"median {1e3 * found.median_step_s:.3f} ms, slowest {1e3 * found.slowest_step_s:.3f} ms",
        f"an epoch takes about {found.epoch_s:.2f} s: {plural(found.epoch_steps, 'step')}"
        + (f", and {found.validation_s:.2f} s of validation" if found.validation_samples else ""),
        f"before them {plural(warm_up.steps, 'warm-up step')} in {warm_up.total_s:.2f} s, import of torch "
        f"{found.import_s:.2f} s, data set and model {found.build_s:.2f} s",
    ]
    if found.disturbed:
        lines.append(f"the machine was busy meanwhile: {found.disturbed}")
    return "\n".join(lines)
