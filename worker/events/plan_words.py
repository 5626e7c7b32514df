"""What changed in a plan, and the reasons for it, in a few words."""

from collections.abc import Iterator
from dataclasses import asdict

from calibration.result import CalibrationResult
from calibration.verdicts import confirmed_speed, proof_words
from preflight.contract.plan import Plan
from preflight.contract.verdicts import ADOPTED, DISTURBED, speedup
from preflight.events.plan_words import allocator_words
from preflight.numbers import plural


def changes(before: Plan, after: Plan) -> str:
    """Return the fields of a plan that differ from `before`."""
    old = asdict(before)
    changed = {name: value for name, value in asdict(after).items() if value != old[name]}
    return ", ".join(_change(name, value) for name, value in changed.items()) or "unchanged"


def _change(name: str, value: object) -> str:
    match name, value:
        case "threads" | "loader_workers", int(number):
            return plural(number, name.replace("_", " ")[:-1])
        case "compile", bool(on):
            return "compiled" if on else "not compiled"
        case "allocator", str(allocator):
            return allocator_words(allocator)
        case "weight_gradients", "products":
            return "weight gradients as matrix products"
        case "precision" | "memory_format" | "affinity", str(word):
            return word
    return f"{name.replace('_', '-')} {value}"


def reasons(result: CalibrationResult) -> str:
    """Return what each adopted trial changed and gained, and the confirmation, in one line; empty where none was."""
    return "; ".join(_reasons(result))


def _reasons(result: CalibrationResult) -> Iterator[str]:
    best = result.baseline
    for trial in result.trials:
        if trial.verdict in ADOPTED:
            speed = (
                ""
                if trial.ratio is None
                else f": {speedup(trial.ratio, trial.low, trial.high, DISTURBED if trial.disturbed else '')}"
            )
            note = f", {trial.note}" if trial.note else ""
            yield f"{changes(best, trial.plan)}{speed}{note}"
        if trial.verdict in ("own", *ADOPTED):
            best = trial.plan
    if (found := result.confirmation) is not None:
        pairs = f"{plural(found.pairs, 'pair')} with your own plan"
        yield f"together, {proof_words(found)}, {pairs}: {confirmed_speed(found, result.doubt)}"
