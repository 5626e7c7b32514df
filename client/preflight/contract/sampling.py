"""How the fields about classes that are not equally frequent go together; torch-free."""

from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig


def check_sampling(spec: TrainSpec) -> None:
    """Check that `class_weights`, `sampler` and `metric` do not contradict one another or `validation_samples`.

    Raises:
        InvalidConfig: classes would be balanced twice, or no epoch would be scored by the metric.
    """
    if spec.class_weights == spec.sampler == "balanced":
        raise InvalidConfig(
            "class_weights and sampler are both 'balanced', which would make rare classes count twice as much as they "
            "should; leave out one of them",
            field="class_weights",
        )
    if spec.metric != "accuracy" and spec.validation_samples == 0:
        raise InvalidConfig(
            f"metric is {spec.metric!r}, but validation_samples is 0, so that no epoch is scored; hold samples out, or "
            "leave metric out",
            field="metric",
        )
