"""Fields about classes that are not equally frequent, held against one another."""

import pytest
from pydantic import JsonValue

from preflight.errors import InvalidConfig
from preflight.queue.signing import Terms, sign, verify
from preflight.wire import JOB_TYPE, parse_job

JOB: dict[str, JsonValue] = {"type": JOB_TYPE, "dataset": "mnist"}
KEY = "sixteen letters!"


def test_macro_f1_needs_samples_that_are_held_out() -> None:
    """Nothing else would decide the best epoch; a recipe holds none out unless the job asks for it."""
    says = r"^metric is 'macro_f1', but validation_samples is 0, so that no epoch is scored; hold samples out, or leave"
    for job in ({**JOB, "validation_samples": 0}, {**JOB, "recipe": "balanced"}):
        with pytest.raises(InvalidConfig, match=says) as caught:
            parse_job({**job, "metric": "macro_f1"})
        assert caught.value.field == "metric"
    wanted = parse_job({**JOB, "recipe": "balanced", "metric": "macro_f1", "validation_samples": 5000, "patience": 1})
    assert (wanted.spec().metric, wanted.spec().patience) == ("macro_f1", 1)


def test_classes_are_balanced_once() -> None:
    """By the loss or by the sampler."""
    with pytest.raises(InvalidConfig, match=r"^class_weights and sampler are both 'balanced', which would") as caught:
        parse_job({**JOB, "class_weights": "balanced", "sampler": "balanced"})
    assert caught.value.field == "class_weights"


@pytest.mark.parametrize("field", ["class_weights", "sampler"])
def test_a_recipe_is_balanced_by_nothing(field: str) -> None:
    """Neither that of one network nor the ensemble of `best`: what they learn is fixed."""
    for recipe in ("fast", "best"):
        with pytest.raises(InvalidConfig, match=rf"^recipe '{recipe}' sets {field} to '.*', but {field} is 'balanced'"):
            parse_job({**JOB, "recipe": recipe, field: "balanced"})


@pytest.mark.parametrize("field", ["class_weights", "sampler", "metric"])
def test_a_signature_covers_the_field(field: str) -> None:
    """Whoever changes it afterwards is found out."""
    terms, asked = Terms(signed_at=1, timeout=60), {**JOB, "job_id": "a", field: "balanced"}
    signature = sign(asked, terms, KEY)
    assert verify(asked, terms, signature, KEY)
    assert not verify({**asked, field: "none"}, terms, signature, KEY)
    assert not verify({**JOB, "job_id": "a"}, terms, signature, KEY)
