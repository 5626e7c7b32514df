"""Messages between the leader of a group and its members, through Redis; signed where a key is set."""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from importlib.metadata import version
from typing import Annotated, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.redis.untrusted.values import Refused, as_json, as_whole
from training.group import Port, Ranks, Wire
from worker.config.settings import Settings

MAX_REQUEST_BYTES: Final = 16_384
"""Most bytes of a request: a spec and a plan take some 2 KiB."""
MAX_SAID_BYTES: Final = 4_096
"""Most bytes of a member's state, and of an order."""
UNSIGNED: Final = "-"

Name = Annotated[str, Field(min_length=1, max_length=200)]
Address = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=1_000)]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GroupRequest:
    """What a member needs to know to train with the group; it stays the same for the attempt."""

    leader: Name
    spec: TrainSpec
    plan: Plan
    least: Ranks
    most: Ranks
    gather_seconds: Annotated[float, Field(gt=0, le=3600)]
    normalization: tuple[float, Annotated[float, Field(gt=0)]]
    """Mean and standard deviation of the pixels that the network expects."""
    fine_tuning: bool = False
    """Whether the leader starts from a model."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Versions:
    """The versions of packages that all members must have alike."""

    preflight: Annotated[str, Field(max_length=64)]
    torch: Annotated[str, Field(max_length=64)]


def own_versions() -> Versions:
    """Return the versions that are installed here."""
    return Versions(preflight=version("preflight-worker"), torch=version("torch"))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MemberState:
    """State that a member reports with each beat."""

    address: Address
    versions: Versions
    cores: Annotated[float, Field(gt=0, le=1e6)]
    memory_mb: Annotated[int, Field(ge=0, le=2**40)]
    state: Literal["preparing", "ready", "starting", "training", "lost", "failed"] = "preparing"
    """`starting`: the training process imports; `training`: it connects or trains; `lost`: it has ended; `failed`: the
    member cannot take part at all."""
    call: Annotated[int, Field(ge=0)] = 0
    """Number of the call that it follows, or followed when it was lost."""
    data: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of its data set; empty: not prepared yet."""
    why: Text = ""
    """Why it failed, or was lost."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Call:
    """The leader's order to train with its process."""

    kind: Literal["call"] = "call"
    number: Annotated[int, Field(ge=1)]
    """Number of the leader's training process: each process has another port."""
    host: Address
    port: Port
    nonce: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    measure: bool
    wire: Wire | None
    awaited: Ranks = 1
    """Ranks for which the first round waits a moment, the leader's included."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Leave:
    """The leader's order to leave."""

    kind: Literal["leave"] = "leave"
    why: Text


Order = Call | Leave

REQUEST = TypeAdapter(GroupRequest)
MEMBER_STATE = TypeAdapter(MemberState)
ORDER: TypeAdapter[Order] = TypeAdapter(
    Annotated[Order, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)
Body = TypeVar("Body")


class BadMessage(Exception):
    """An invalid message, or one that is not signed with the key of this worker."""


class Replayed(BadMessage):
    """A message older than the last one that was opened: somebody has put it back."""


@plain_dataclass(frozen=True, slots=True)
class Sealer:
    """Seals and opens the messages of one attempt; with a key, nobody who lacks it can forge one.

    Each sender numbers its messages by its clock, as a worker may sit down twice: somebody who can write to Redis may
    repeat the last message, but no earlier one.
    """

    key: bytes | None
    scope: str
    """Job and attempt; they are signed, too, so that a message of another attempt is refused."""
    _sent: dict[str, int] = field(default_factory=dict)
    """Sender, of an order its receiver -> number of the last message that was sealed."""
    _opened: dict[str, int] = field(default_factory=dict)
    """The same for messages that were opened: an older one that comes again is a copy."""

    @classmethod
    def of(cls, settings: Settings, job_id: str, attempt: int) -> "Sealer":
        """Return the sealer of an attempt, with the signing key of the service."""
        key = settings.signing_key
        return cls(None if key is None else key.get_secret_value().encode(), f"{job_id} {attempt}")

    def seal(self, kind: TypeAdapter[Body], message: Body, sender: str) -> str:
        """Return a message as text, from a sender or, where it is an order, to one."""
        body = kind.dump_json(message).decode()
        number = self._sent[sender] = max(self._sent.get(sender, 0) + 1, time.time_ns() // 1_000)
        return f"{self._signature(sender, number, body)} {number} {body}"

    def open(self, kind: TypeAdapter[Body], text: str, sender: str, most: int = MAX_SAID_BYTES) -> Body:
        """Return the message in a text of at most `most` bytes; raises `BadMessage`."""
        if len(text) > most:
            raise BadMessage(f"a message of {len(text)} characters, at most {most} are read")
        signature, _, rest = text.partition(" ")
        digits, _, body = rest.partition(" ")
        try:
            number = as_whole(digits, 1)
        except Refused:
            raise BadMessage("a message without a number") from None
        if not hmac.compare_digest(signature.encode(), self._signature(sender, number, body).encode()):
            raise BadMessage("a message that is not signed with the key of this worker (PREFLIGHT_SIGNING_KEY)")
        if self.key is not None and number < self._opened.get(sender, 0):
            raise Replayed(f"message {number} after {self._opened[sender]}, a copy of an earlier one")
        try:
            as_json(body, most)
            found = kind.validate_json(body)
        except (Refused, ValidationError):
            raise BadMessage("a message of which fields are wrong") from None
        self._opened[sender] = number
        return found

    def secret(self, nonce: str) -> str:
        """Return the id of the rendezvous for the nonce of a call; with a key, the id is nowhere in Redis."""
        return nonce if self.key is None else self._digest(f"rendezvous {nonce}")

    def _signature(self, sender: str, number: int, body: str) -> str:
        return UNSIGNED if self.key is None else self._digest(f"{sender} {number} {body}")

    def _digest(self, text: str) -> str:
        return hmac.new(self.key or b"", f"group {self.scope} {text}".encode(), hashlib.sha256).hexdigest()


def new_nonce() -> str:
    """Return a nonce that nobody can guess."""
    return secrets.token_hex(32)
