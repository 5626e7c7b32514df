"""Settings: the only reader of the environment."""

import os
from pathlib import Path

import pytest

from training.errors import InvalidConfig
from worker.settings import child_environment, load, service_environment, without_password


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name == "PORT" or name.startswith(("REDIS_", "PREFLIGHT_", "RAILWAY_")):
            monkeypatch.delenv(name)


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REDIS_URL, PORT and PREFLIGHT_* arrive; directories become absolute."""
    monkeypatch.setenv("REDIS_URL", "redis://example:1/2")
    monkeypatch.setenv("PREFLIGHT_QUEUE", "other")
    monkeypatch.setenv("PREFLIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PORT", "8080")
    settings = load()
    assert (settings.redis_url, settings.queue, settings.data_dir, settings.port) == (
        "redis://example:1/2", "other", tmp_path, 8080,
    )  # fmt: skip
    assert settings.cache_dir.is_absolute()


def test_our_own_redis_variable_goes_before_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """PREFLIGHT_REDIS_URL wins over REDIS_URL."""
    monkeypatch.setenv("REDIS_URL", "redis://platform")
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", "redis://own")
    assert load().redis_url == "redis://own"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PREFLIGHT_CALIBRATION_SECONDS", "0", "PREFLIGHT_CALIBRATION_SECONDS is '0', but must be more than 0"),
        ("PREFLIGHT_CALIBRATION_SECONDS", "soon", "PREFLIGHT_CALIBRATION_SECONDS is 'soon', but must be a number"),
        ("PREFLIGHT_LOG_FORMAT", "xml", "PREFLIGHT_LOG_FORMAT is 'xml', but must be one of"),
        ("PORT", "99999", "PORT is '99999', but must be at most 65535"),
        ("REDIS_URL", "http://x", "REDIS_URL is 'http://x': must begin with redis://"),
    ],
)
def test_bad_variables_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    """The sentence names the variable, its value and the bound."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert words in caught.value.message


def test_a_bad_redis_url_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the sentence that refuses it."""
    monkeypatch.setenv("REDIS_URL", "http://user:hunter2@x")
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert "hunter2" not in caught.value.message


def test_directories_go_on_the_platforms_volume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Railway's volume holds those that are not set otherwise."""
    monkeypatch.setenv("RAILWAY_VOLUME_MOUNT_PATH", str(tmp_path))
    monkeypatch.setenv("PREFLIGHT_CACHE_DIR", "/elsewhere")
    settings = load()
    assert (settings.data_dir, settings.artifact_dir) == (tmp_path / "data", tmp_path / "artifact")
    assert settings.cache_dir == Path("/elsewhere")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("unix:///tmp/s?password=secret", "unix:///tmp/s?password=***"),
        ("redis://host", "redis://host"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    """Wherever a URL can carry one."""
    assert without_password(url) == shown


def test_children_do_not_see_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training child gets neither the Redis URL nor our own variables; PATH stays."""
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host")
    monkeypatch.setenv("PREFLIGHT_QUEUE", "q")
    environment = child_environment()
    assert not [name for name in environment if name.startswith(("REDIS_", "PREFLIGHT_"))]
    assert "PATH" in environment


def test_a_command_finds_the_same_settings_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What service_environment gives reads back as what it was made from."""
    settings = load(redis_url="redis://h", queue="q", data_dir=tmp_path, log_level="debug", calibration_seconds=3.0)
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load() == settings
