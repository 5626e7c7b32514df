"""Labels of a data set that look wrong, as a search for them has found them."""

from pydantic import BaseModel, ConfigDict


class Issue(BaseModel):
    """A sample whose label looks wrong."""

    model_config = ConfigDict(frozen=True)

    sample: int
    """Its number in the version, as `preflight data relabel` takes it."""
    given: str
    suggested: str
    own: float
    """Probability of the class that it is given."""
    probability: float
    """Of the suggested one."""


class Issues(BaseModel):
    """Samples of a version whose labels look wrong, the most suspicious first."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    samples: int
    estimated: int
    """Labels that are wrong, roughly."""
    accuracy: float
    """Share of the given labels that the trainings would have given, too."""
    seconds: float
    at: str
    """When it was found, UTC."""
    issues: tuple[Issue, ...]
