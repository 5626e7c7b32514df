"""Content of an alias's file: every promotion, who made it, when and why, and a signature over all of it."""

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.errors import ArtifactError, InvalidConfig
from preflight.queue.signing import canonical
from training.artifacts.model_dir import MODEL

ALIAS_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SHA256_PATTERN: Final = r"^[0-9a-f]{64}$"
MAX_HISTORY: Final = 1000
"""Most promotions that are listed; older ones are dropped."""
FORMAT: Final = 1

Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]


class AliasChanged(InvalidConfig):
    """Somebody else changed the alias after it was read."""

    reason = "alias_changed"


class UnknownAlias(InvalidConfig):
    """No alias has this name, or none of its models has this hash."""

    reason = "unknown_alias"


class WrongSignature(ArtifactError):
    """An alias that is not signed with this service's key."""

    reason = "wrong_signature"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Promotion:
    """One entry of an alias's history: the model that it pointed to from then on."""

    number: Annotated[int, Field(ge=1)]
    """Number of the promotion, from 1, in order."""
    action: Literal["promote", "rollback"]
    at: Annotated[str, Field(max_length=40)]
    """Time of the promotion, UTC, ISO 8601."""
    by: Annotated[str, Field(max_length=200)]
    why: Annotated[str, Field(max_length=1000)] = ""
    job_id: Annotated[str, Field(max_length=255)]
    """The job that trained the model: the name of its directory."""
    model: str
    """Registered name of the network."""
    dataset: str
    test_accuracy: float | None = None
    """Accuracy on the data set's test samples, 0 to 1."""
    files: dict[str, Sha256]
    """Name of each file that is kept -> its sha256."""
    former: Annotated[int, Field(ge=1)] | None = None
    """Number of the promotion that a rollback returns to; None: there is none."""

    @property
    def model_sha256(self) -> str:
        """The sha256 of `model.safetensors`, in hex."""
        return self.files[MODEL]

    @property
    def key(self) -> str:
        """Name of the directory with these files: a hash over the hashes of all of them."""
        return hashlib.sha256(canonical({"files": {**self.files}})).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Alias:
    """A name and the models that it has pointed to, the newest last."""

    alias: Annotated[str, Field(pattern=ALIAS_PATTERN)]
    history: Annotated[tuple[Promotion, ...], Field(min_length=1)]

    @property
    def current(self) -> Promotion:
        """The promotion in effect."""
        return self.history[-1]

    def numbered(self, number: int | None) -> Promotion | None:
        """Return the promotion with this number; None where there is none."""
        return next((each for each in self.history if each.number == number), None)

    def followed_by(self, promotion: Promotion) -> "Alias":
        """Return the alias with one more promotion."""
        return replace(self, history=(*self.history, promotion)[-MAX_HISTORY:])


_ALIAS = TypeAdapter(Alias)
_FILE = TypeAdapter(dict[str, JsonValue])


def encode(alias: Alias, key: str | None) -> bytes:
    """Return the content of an alias's file, signed where there is a key."""
    body: dict[str, JsonValue] = {"v": FORMAT, **_ALIAS.dump_python(alias, mode="json")}
    signed = body if key is None else {**body, "signature": _signature(body, key)}
    return json.dumps(signed, indent=2, sort_keys=True).encode() + b"\n"


def decode(content: bytes, name: str, key: str | None) -> Alias:
    """Return the alias that a file describes. Without a key no signature is checked.

    Raises:
        ArtifactError: it is damaged, or describes another alias.
        WrongSignature: there is a key, and the file was not signed with it.
    """
    try:
        body = _FILE.validate_json(content)
        signature = body.pop("signature", None)
        if key is not None and not _is_signed(body, signature, key):
            raise WrongSignature(
                f"alias {name!r} is not signed with this service's PREFLIGHT_SIGNING_KEY; promote its model again with "
                "the key, after removing the alias",
                field="alias",
            )
        if body.pop("v", None) == FORMAT:
            found = _ALIAS.validate_json(json.dumps(body))
            if found.alias == name:
                return found
    except (ValidationError, RecursionError):
        pass
    raise ArtifactError(f"the file of alias {name!r} is damaged; remove the alias and promote its model", field="alias")


def _signature(body: dict[str, JsonValue], key: str) -> str:
    # Jobs are signed with this key, too: a signed job has other fields, so that neither passes as the other.
    return hmac.new(key.encode(), canonical({"alias": body}), hashlib.sha256).hexdigest()


def _is_signed(body: dict[str, JsonValue], signature: JsonValue, key: str) -> bool:
    return isinstance(signature, str) and hmac.compare_digest(
        signature.encode(errors="replace"), _signature(body, key).encode()
    )
