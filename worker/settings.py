"""The settings of the service; the only place that reads environment variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from calibration.choose import DEFAULT_SECONDS
from worker.explain import explain
from worker.wire import EVENTS_KEPT, JOB_TIMEOUT, STATE_TTL

SECRET_PREFIXES: Final = ("REDIS_", "PREFLIGHT_", "RAILWAY_")
"""Variables that a training child has no business to see."""


PLATFORM: Final = (
    "port", "railway_service", "railway_deployment", "railway_replica", "railway_commit", "railway_volume",
)  # fmt: skip
"""Settings that come from the platform, under its own names."""


class Settings(BaseSettings):
    """Every field can be set by the environment variable of its name, in upper case after `PREFLIGHT_`."""

    model_config = SettingsConfigDict(
        env_prefix="PREFLIGHT_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    redis_url: str = Field(
        default="redis://localhost:6379/0", validation_alias=AliasChoices("PREFLIGHT_REDIS_URL", "REDIS_URL")
    )
    """Where Redis is: redis://, rediss:// or unix:// (`REDIS_URL`, or `PREFLIGHT_REDIS_URL` before it)."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "preflight"
    """Name of the RQ queue."""
    data_dir: Path = Path("~/.local/share/preflight/data")
    """Where data sets lie, or are downloaded to."""
    artifact_dir: Path = Path("~/.local/share/preflight/artifacts")
    """Where trained models go, a directory for each job."""
    cache_dir: Path = Path("~/.cache/preflight")
    """Prepared data sets and measured plans; can be deleted at any time."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: key=value at a terminal, one-line JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of the log lines that are written."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] = DEFAULT_SECONDS
    """Longest time spent measuring plans, the import of torch apart; a short training gets less."""
    job_timeout: Annotated[int, Field(ge=1, le=30 * 86_400)] = JOB_TIMEOUT
    """Seconds after which a job that the client enqueued is given up."""
    state_ttl: Annotated[int, Field(ge=60, le=365 * 86_400)] = STATE_TTL
    """Seconds for which events, state and result of a job are kept in Redis after its last sign of life."""
    events_kept: Annotated[int, Field(ge=100, le=1_000_000)] = EVENTS_KEPT
    """Newest records kept in a job's event stream."""
    redis_wait: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds for which a starting worker waits for Redis before it gives up."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = Field(default=None, validation_alias="PORT")
    """Port that the platform assigned (`PORT`)."""
    railway_service: str | None = Field(default=None, validation_alias="RAILWAY_SERVICE_NAME")
    """Railway's name of this service; logged at start."""
    railway_deployment: str | None = Field(default=None, validation_alias="RAILWAY_DEPLOYMENT_ID")
    """Railway's id of this deployment; logged at start."""
    railway_replica: str | None = Field(default=None, validation_alias="RAILWAY_REPLICA_ID")
    """Railway's id of this replica; logged at start."""
    railway_commit: str | None = Field(default=None, validation_alias="RAILWAY_GIT_COMMIT_SHA")
    """Commit that Railway deployed; logged at start."""
    railway_volume: Path | None = Field(default=None, validation_alias="RAILWAY_VOLUME_MOUNT_PATH")
    """Where Railway mounted the volume; the three directories go beneath it unless they are set."""

    @field_validator("data_dir", "artifact_dir", "cache_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("redis_url")
    @classmethod
    def _scheme(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return value

    @property
    def safe_redis_url(self) -> str:
        """The Redis URL without its password."""
        return without_password(self.redis_url)

    def scrubbed(self, text: str) -> str:
        """Return `text` without the Redis password, wherever it came from."""
        password = urlsplit(self.redis_url).password
        return text.replace(password, "***") if password else text

    def platform(self) -> dict[str, str | int]:
        """Return what the platform said of itself, for the log."""
        said = {
            "port": self.port,
            "railway_service": self.railway_service,
            "railway_deployment": self.railway_deployment,
            "railway_replica": self.railway_replica,
            "railway_commit": self.railway_commit,
        }
        return {name: value for name, value in said.items() if value is not None}


def without_password(url: str) -> str:
    """Return `url` with every password in it replaced by `***`."""
    return re.sub(r"(://[^/@:]*:)[^/]*@|([?&]password=)[^&]*", _stars, url)


def _stars(match: re.Match[str]) -> str:
    return f"{match[1]}***@" if match[1] else f"{match[2]}***"


def load(**overrides: object) -> Settings:
    """Return the settings from environment variables, with `overrides` before them.

    Raises:
        InvalidConfig: a variable has a value outside its bounds; the message names it.
    """
    try:
        return _beneath_volume(Settings.model_validate(overrides) if overrides else Settings())
    except ValidationError as error:
        raise explain(error, Settings.model_json_schema(), name=_variable, show=_without_secrets) from None


def _without_secrets(value: object) -> object:
    return without_password(value) if isinstance(value, str) else value


def _variable(field: str) -> str:
    """Return the environment variable that sets `field`; those with names of their own arrive as they are."""
    return field if field.isupper() else f"PREFLIGHT_{field.upper()}"


def _beneath_volume(settings: Settings) -> Settings:
    """Put the directories that were not set on the platform's volume, where there is one."""
    if settings.railway_volume is None:
        return settings
    names = ("data_dir", "artifact_dir", "cache_dir")
    unset = [name for name in names if name not in settings.model_fields_set]
    places = {name: settings.railway_volume / name.removesuffix("_dir") for name in unset}
    return settings.model_copy(update=places)


def child_environment() -> Mapping[str, str]:
    """Return this process's environment without what a training child has no business to see."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIXES)}


def service_environment(settings: Settings) -> Mapping[str, str]:
    """Return an environment in which a `preflight` command finds these settings again."""
    own = {
        f"PREFLIGHT_{name.upper()}": str(value)
        for name, value in settings.model_dump(mode="json", exclude=set(PLATFORM)).items()
    }
    return {**os.environ, **own}
