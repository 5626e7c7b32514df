"""Learning-rate schedules as pure functions of the step."""

import math

from preflight.contract.spec import TrainSpec


def learning_rate(spec: TrainSpec, step: int, steps: int, steps_per_epoch: int) -> float:
    """Return the learning rate of `step` (from 0) of `steps`.

    one-cycle: linear from near 0 to the peak during `warmup`, then linear to 0 (Smith 2018,
    "A disciplined approach to neural network hyper-parameters", with one straight line down).
    cosine: half a cosine from the peak to 0 (Loshchilov & Hutter 2016, "SGDR", one period).
    step: times `step_factor` after every `step_epochs` epochs. constant: the peak throughout.
    """
    return spec.learning_rate * _factor(spec, step, steps, steps_per_epoch)


def _factor(spec: TrainSpec, step: int, steps: int, steps_per_epoch: int) -> float:
    match spec.schedule:
        case "one-cycle":
            rising = spec.warmup * steps
            if step + 1 < rising:
                return (step + 1) / rising
            return min(1.0, (steps - step) / (steps - rising))
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / steps))
        case "step":
            drops = step // (steps_per_epoch * spec.step_epochs)
            return math.pow(spec.step_factor, drops)
        case "constant":
            return 1.0
