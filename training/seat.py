"""A seat: the place of one container in a group that trains together. Needs no torch."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT

MODULE: Final = "training.distributed.agent"
"""Child module of a training with a seat; its request is a `TrainingRequest`."""
MAX_RANKS: Final = 64

Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Wire = Literal["float32", "bfloat16"]
"""Precision of gradients between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Seat:
    """The place of one container in a group; the leader's seat has no `endpoint`, each other one has.

    The leader's agent binds a free port of `address` and tells it by the record `listening`.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The worker's name, unique in the group."""
    leader: bool
    address: Annotated[str, Field(min_length=1)]
    """Own address, IPv4 or IPv6, to which everything binds, and to nothing else."""
    endpoint: tuple[str, Port] | None = None
    """Address and port of the leader's store."""
    secret: Annotated[str, Field(min_length=16)]
    """Id of the rendezvous: of this attempt alone, and not to be guessed."""
    least: Ranks = 1
    most: Ranks
    awaited: Ranks = 1
    """Ranks that have a seat when this one is given, its own included: the first round waits a moment for them."""
    gather_seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    """For which `least` ranks are waited for, each time ranks form."""
    measure: bool = False
    """Whether the group is measured against the leader alone before it trains; the same for all seats."""
    wire: Wire | None = None
    """None: what was measured to be quicker, and float32 where nothing is measured."""

    @model_validator(mode="after")
    def _check(self) -> "Seat":
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, but most is {self.most}; least must not exceed most")
        if self.awaited > self.most:
            raise ValueError(f"awaited is {self.awaited}, but most is {self.most}; await at most as many")
        if self.leader != (self.endpoint is None):
            raise ValueError("the leader's seat has no endpoint, and each other seat has the leader's")
        return self
