"""How reliable a model's probabilities are, as measured without the test set."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from preflight.contract.spec import Probability


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore", allow_inf_nan=False))
class Confidence:
    """A temperature, and the threshold of answers that are sure."""

    temperature: Annotated[float, Field(gt=0, le=1e3)]
    """Divisor of the logits, so that probabilities say how often an answer is right."""
    uncertain_below: Probability
    """Probability of the answer below which it is uncertain."""
    uncertain_share: Probability
    """Share of the samples whose answers are uncertain."""
    error_above: Probability
    """Share of the other answers that are wrong."""
    samples: Annotated[int, Field(ge=0, le=2**53)]
    measured_on: Literal["validation", "training"]
    """training: no samples are held out, so that training samples, augmented in a new way, stand for them."""
