"""Settings of a client's commands, and how settings are read from environment variables; a worker's add to them."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator

from preflight.client.client import DEFAULT_OUTBOX
from preflight.config.directories import local_path
from preflight.config.secrets import (
    MASK,
    encoded_forms,
    insert_password,
    read_secret,
    redact,
    redact_urls,
    show_invalid_url,
    url_passwords,
)
from preflight.config.values import clean, require_plain
from preflight.errors import InvalidConfig
from preflight.redis.url import parse as parse_redis_url
from preflight.wire import JOB_TIMEOUT
from preflight.wire.validation_errors import to_invalid_config

DEFAULT_REDIS_URL: Final = "redis://localhost:6379/0"
MIN_KEY_LENGTH: Final = 16
"""Fewest characters of a signing key or a token."""
TOO_SHORT: Final = f"must have at least {MIN_KEY_LENGTH} characters"


class ClientSettings(BaseModel):
    """Settings of a command that asks Redis alone; `load` reads them from environment variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    VARIABLES: ClassVar[Mapping[str, Sequence[str]]] = {
        "redis_url": ("PREFLIGHT_REDIS_URL", "REDIS_URL"),
        "redis_password_file": ("REDIS_PASSWORD_FILE",),
    }
    """Environment variables of the settings that are not read from `PREFLIGHT_<NAME>`; the first that is set counts."""
    SECRETS: ClassVar[Sequence[str]] = ("signing_key",)
    """Settings that are a secret; each may be in a file, which the setting `<name>_file` names."""
    URLS: ClassVar[Sequence[str]] = ()
    """Settings that are a URL, whose password no message shows."""

    redis_url: str = DEFAULT_REDIS_URL
    """URL of Redis: redis://, rediss:// or unix:// (`PREFLIGHT_REDIS_URL` overrides `REDIS_URL`). Its parameters are
    described [below](#parameters-of-a-redis-address)."""
    redis_password_file: Path | None = None
    """File with the Redis password (`REDIS_PASSWORD_FILE`); the URL must have none."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "preflight"
    """Name of the RQ queue."""
    signing_key: SecretStr | None = None
    """Secret shared with producers; where it is set, a job without a valid signature is refused."""
    signing_key_file: Path | None = None
    """File with the signing key."""
    job_timeout: Annotated[int, Field(ge=1, le=30 * 86_400)] = JOB_TIMEOUT
    """Limit of the duration of a job that the client enqueues, seconds."""
    outbox_dir: Path = Path(DEFAULT_OUTBOX)
    """Directory of the jobs that a producer enqueued with `--ensure`."""

    @field_validator("outbox_dir", "redis_password_file", "signing_key_file", mode="before")
    @classmethod
    def _expand(cls, value: str | Path | None) -> Path | None:
        return expand(value)

    @field_validator("signing_key")
    @classmethod
    def _check_signing_key(cls, value: SecretStr | None) -> SecretStr | None:
        return check_key_length(value)

    _notes: tuple[str, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on settings that have no effect or an unusual one; for the log of a service."""
        return self._notes

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that no log and no message may show."""
        keys = [secret.get_secret_value() for name in self.SECRETS if (secret := self._secret(name)) is not None]
        urls = [str(url) for name in ("redis_url", *self.URLS) if (url := getattr(self, name))]
        return (*(password for url in urls for password in url_passwords(url)), *keys)

    @property
    def safe_redis_url(self) -> str:
        """The Redis URL without its password."""
        return redact_urls(self.redis_url)

    def redact(self, text: str) -> str:
        """Return `text` without the secrets of these settings."""
        return redact(text, encoded_forms(self.secrets))

    def _secret(self, name: str) -> SecretStr | None:
        found: SecretStr | None = getattr(self, name)
        return found


S = TypeVar("S", bound=ClientSettings)


def expand(value: str | Path | None) -> Path | None:
    """Return the path of a file or directory of this machine; raises `ValueError` where it is a URL."""
    return None if value is None else local_path(value)


def check_key_length(value: SecretStr | None) -> SecretStr | None:
    """Return a signing key or a token; raises `ValueError` where it can be guessed."""
    if value is not None and len(value.get_secret_value()) < MIN_KEY_LENGTH:
        raise ValueError(TOO_SHORT)
    return value


def load() -> ClientSettings:
    """Return the client's settings from environment variables; raises `InvalidConfig`."""
    return load_as(ClientSettings, {})


def load_as(model: type[S], overrides: Mapping[str, object]) -> S:
    """Return the settings of a model from environment variables, with `overrides` before them.

    Raises:
        InvalidConfig: a variable has a value outside its bounds, or a file with a secret cannot be used; the message
            names it.
    """
    values = {**_from_environment(model), **overrides}
    variable = variable_of(model, "redis_url")
    address = parse_redis_url(str(values.get("redis_url", DEFAULT_REDIS_URL)), variable)
    if "redis_url" in values:
        values["redis_url"] = address.url
    try:
        found = model.model_validate(values)
    except ValidationError as error:
        where = str(error.errors()[0]["loc"]).lower()
        secret, url = (any(name in where for name in names) for names in (model.SECRETS, model.URLS))
        show = (lambda _: MASK) if secret else show_invalid_url if url else _show_text
        raise to_invalid_config(error, model.model_json_schema(), name=partial(variable_of, model), show=show) from None
    found._notes = tuple(filter(None, (address.note(variable),)))
    return _with_secrets(found)


def variables(model: type[ClientSettings], field: str) -> Sequence[str]:
    """Return the environment variables that a setting may be read from, the one that counts first."""
    return model.VARIABLES.get(field, (f"PREFLIGHT_{field.upper()}",))


def variable_of(model: type[ClientSettings], field: str) -> str:
    """Return the environment variable that gives a setting its value here, or would do so."""
    names = variables(model, field)
    return next((name for name in names if clean(os.environ.get(name, ""))), names[0])


def _show_text(value: object) -> object:
    return redact_urls(value) if isinstance(value, str) else value


def _from_environment(model: type[ClientSettings]) -> dict[str, str]:
    """Return the settings that a variable of this process has; an empty one counts as unset."""
    found: dict[str, str] = {}
    for field in model.model_fields:
        name = variable_of(model, field)
        if value := clean(os.environ.get(name, "")):
            require_plain(value, name, secret=field in model.SECRETS)
            found[field] = value
    return found


def _with_secrets(settings: S) -> S:
    """Read the secrets in files, as Docker and Kubernetes mount them; the settings do not name the files any more."""
    found: dict[str, str | SecretStr | None] = {"redis_password_file": None}
    if settings.redis_password_file is not None:
        if url_passwords(settings.redis_url):
            raise InvalidConfig(
                "REDIS_URL has a password and REDIS_PASSWORD_FILE is set; leave one of them out",
                field="redis_password_file",
            )
        password = read_secret(settings.redis_password_file, "REDIS_PASSWORD_FILE")
        found["redis_url"] = insert_password(settings.redis_url, password)
    for name in settings.SECRETS:
        file: Path | None = getattr(settings, f"{name}_file")
        found[f"{name}_file"] = None
        if file is None:
            continue
        variable = f"PREFLIGHT_{name.upper()}"
        if settings._secret(name) is not None:
            raise InvalidConfig(f"{variable} and {variable}_FILE are both set; leave one of them out", field=name)
        secret = read_secret(file, f"{variable}_FILE")
        if len(secret) < MIN_KEY_LENGTH:
            raise InvalidConfig(f"{variable}_FILE names {file}: its content {TOO_SHORT}", field=name)
        found[name] = SecretStr(secret)
    return settings.model_copy(update=found)
