"""Settings: the only reader of the environment."""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from preflight.cli.settings import variables
from preflight.config.secrets import redact_urls
from preflight.errors import InvalidConfig
from worker.cli.diagnosis.doctor import run_checks
from worker.config.settings import (
    Settings,
    child_environment,
    export_environment,
    load,
    service_environment,
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name == "PORT" or name.startswith(("REDIS_", "PREFLIGHT_", "RAILWAY_")):
            monkeypatch.delenv(name)


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REDIS_URL, unless PREFLIGHT_REDIS_URL overrides it, PORT and PREFLIGHT_*; directories become absolute."""
    monkeypatch.setenv("REDIS_URL", "redis://example:1/2")
    monkeypatch.setenv("PREFLIGHT_QUEUE", "other")
    monkeypatch.setenv("PREFLIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PORT", "8080")
    settings = load()
    assert (settings.redis_url, settings.queue, settings.data_dir, settings.port) == (
        "redis://example:1/2", "other", tmp_path, 8080,
    )  # fmt: skip
    assert settings.cache_dir.is_absolute()
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", "redis://own")
    assert load().redis_url == "redis://own"


@pytest.mark.parametrize(("variable", "value", "words"), [
    ("PREFLIGHT_CALIBRATION_SECONDS", "0", "PREFLIGHT_CALIBRATION_SECONDS is '0', but must be more than 0"),
    ("PREFLIGHT_CALIBRATION_SECONDS", "soon", "PREFLIGHT_CALIBRATION_SECONDS is 'soon', but must be a number"),
    ("PREFLIGHT_LOG_FORMAT", "xml", "PREFLIGHT_LOG_FORMAT is 'xml', but must be one of"),
    ("PORT", "99999", "PORT is '99999', but must be at most 65535"),
    ("REDIS_URL", "http://x", "REDIS_URL is 'http://x': must begin with redis://"),
    ("REDIS_URL", "redis://[::1", "REDIS_URL is '***': is no URL; write redis://"),
    ("REDIS_URL", "localhost:6379", "REDIS_URL is 'localhost:6379': must begin with redis://"),
    ("PREFLIGHT_MAX_EPOCHS", "0", "PREFLIGHT_MAX_EPOCHS is '0', but must be"),
    ("PREFLIGHT_MAX_SAMPLES", "many", "PREFLIGHT_MAX_SAMPLES is 'many', but must be"),
    ("PREFLIGHT_ARTIFACT_URL", "models", "PREFLIGHT_ARTIFACT_URL is 'models': must be a URL such as s3://bucket"),
    ("PREFLIGHT_ARTIFACT_URL", "s3://b/p?key=x", "PREFLIGHT_ARTIFACT_URL is '***': must be a URL such as s3://"),
    ("PREFLIGHT_MLFLOW_URI", "http://[::1", "PREFLIGHT_MLFLOW_URI is '***': must be a URL such as s3://"),
    ("PREFLIGHT_SIGNING_KEY", "hunter2", "PREFLIGHT_SIGNING_KEY is '***': must have at least 16 characters"),
])  # fmt: skip
def test_bad_variables_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert words in caught.value.message


@pytest.mark.parametrize(("variable", "value"), [
    *(("REDIS_URL", url) for url in (
        "http://user:hunter2@x", "redis://:hunter2", "redis://:hunter2/x@host", "redis://:x#hunter2@host",
        "redis://:hunter2?@host", "hunter2@host", "user:hunter2@host", "http://x?password=hunter2",
    )),
    ("PREFLIGHT_SIGNING_KEY", "hunter2"),
])  # fmt: skip
def test_no_secret_is_in_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """Wherever the password is in the URL; a key that is too short may be a part of the real one."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_directories_go_on_the_platforms_volume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Railway's volume has the directories that are not set."""
    monkeypatch.setenv("RAILWAY_VOLUME_MOUNT_PATH", str(tmp_path))
    monkeypatch.setenv("PREFLIGHT_CACHE_DIR", "/elsewhere")
    settings = load()
    assert (settings.data_dir, settings.artifact_dir) == (tmp_path / "data", tmp_path / "artifact")
    assert settings.state_dir == tmp_path / "state"
    assert settings.cache_dir == Path("/elsewhere")


@pytest.mark.parametrize(("url", "shown"), [
    ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
    ("redis://:secret@host", "redis://:***@host"),
    ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
    ("unix:///tmp/s?password=secret", "unix:///tmp/s?password=***"),
    ("redis://host", "redis://host"),
    ("rediss://u:a@b@host:1 and redis://:c@host", "rediss://u:***@host:1 and redis://:***@host"),
    ("redis://host:1/0 asked by a@b", "redis://host:1/0 asked by a@b"),
    ("redis://host:1 asked by a@b", "redis://host:1 asked by a@b"),
])  # fmt: skip
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert redact_urls(url) == shown


@pytest.mark.parametrize("url", [
    "redis://user:p%40ss%2Fwd@host/0", "rediss://host/0?db=1&password=p%40ss%2Fwd", "unix:///tmp/s?password=p@ss/wd",
])  # fmt: skip
def test_every_secret_is_redacted(url: str) -> None:
    """Passwords, decoded and encoded, and the signing key, also as Python and JSON literals."""
    key = 'a "key" of\nsixteen, ü'
    places = {"artifact_url": "ftp://u:models-pwd@h/p", "mlflow_uri": "http://u:runs-pwd@h"}
    settings = load(redis_url=url, signing_key=key, **places)
    said = f"{url} p@ss/wd p%40ss%2Fwd {key} {key!r} {key!a} {json.dumps(key)} {key.encode()!r} models-pwd runs-pwd"
    text = settings.redact(said)
    assert "wd" not in text
    assert "sixteen" not in text


def test_the_doctor_checks_every_directory_and_shows_no_secret(tmp_path: Path) -> None:
    key = "sixteen letters!"
    settings = load(
        redis_url=f"unix://user:hunter2@{tmp_path}/none.sock", signing_key=key, data_dir=tmp_path / "hunter2",
        state_dir=tmp_path / key,
    )  # fmt: skip
    checks = list(run_checks(settings))
    assert {"data_dir", "artifact_dir", "cache_dir", "state_dir"} <= {check.name for check in checks}
    said = " ".join(check.detail for check in checks)
    assert "only signed jobs are accepted" in said
    assert "hunter2" not in said
    assert key not in said


def test_settings_do_not_show_the_key() -> None:
    settings = load(signing_key="sixteen letters!")
    assert "sixteen" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"


def test_children_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training child gets neither the Redis URL nor PREFLIGHT_*; PATH stays."""
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host")
    monkeypatch.setenv("PREFLIGHT_QUEUE", "q")
    monkeypatch.setenv("PREFLIGHT_SIGNING_KEY", "sixteen letters!")
    monkeypatch.setenv("PREFLIGHT_ARTIFACT_URL", "s3://other")
    environment = child_environment()
    assert not [name for name in environment if name.startswith(("REDIS_", "PREFLIGHT_"))]
    assert "PATH" in environment
    sending = export_environment(load(artifact_url="s3://bucket"), "artifact_url")
    assert {**environment, "PREFLIGHT_ARTIFACT_URL": "s3://bucket"} == sending


def test_service_environment_round_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREFLIGHT_MAX_EPOCHS", "3")  # of this process, and not of the settings
    settings = load(
        redis_url="redis://h", queue="q", data_dir=tmp_path, log_level="debug", calibration_seconds=3.0,
        signing_key="sixteen letters!", max_samples=7, max_epochs=None,
    )  # fmt: skip
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load() == settings
    assert settings.max_epochs is None


def test_secrets_come_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The password goes into the URL, escaped; no secret is shown."""
    secrets = {"password": "p@ss/w:rd word", "key": "sixteen letters!", "token": "a token that is long"}
    for name, secret in secrets.items():
        (tmp_path / name).write_text(f"{secret}\n")
    monkeypatch.setenv("REDIS_URL", "redis://worker@redis:6379/0")
    monkeypatch.setenv("REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("PREFLIGHT_SIGNING_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("PREFLIGHT_API_TOKEN_FILE", str(tmp_path / "token"))
    settings = load()
    with Redis.from_url(settings.redis_url) as connection:
        options = connection.connection_pool.connection_kwargs
    assert (options["username"], options["password"], options["host"]) == ("worker", secrets["password"], "redis")
    assert settings.signing_key is not None
    assert settings.api_token is not None
    assert settings.signing_key.get_secret_value() == secrets["key"]
    assert settings.api_token.get_secret_value() == secrets["token"]
    assert settings.safe_redis_url == "redis://worker:***@redis:6379/0"
    assert settings.redact(" ".join(secrets.values())) == "*** *** ***"
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load() == settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [("unix:///run/redis.sock", "unix://:***@/run/redis.sock"), ("rediss://:@host/1", "rediss://:***@host/1")],
)
def test_a_password_file_fits_every_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, shown: str) -> None:
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    assert load().safe_redis_url == shown


@pytest.mark.parametrize(("content", "words"), [
    (None, "cannot be read (No such file or directory)"),
    (b"", "must hold one line"),
    (b"two\nlines of a secret", "must hold one line"),
    (b"x" * 5000, "must hold one line"),
    (b"\xff\xfe", "cannot be read (it is not UTF-8 text)"),
    (b"too short", "must have at least 16 characters"),
], ids=["missing", "empty", "two lines", "too large", "not UTF-8", "short"])  # fmt: skip
def test_a_bad_secret_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, words: str
) -> None:
    """One sentence with the variable and the file, without its content."""
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    monkeypatch.setenv("PREFLIGHT_API_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert caught.value.message.startswith(f"PREFLIGHT_API_TOKEN_FILE names {tmp_path / 'token'}")
    assert words in caught.value.message
    assert "too short" not in caught.value.message


@pytest.mark.parametrize(("variable", "value", "file"), [
    ("REDIS_URL", "redis://:hunter2@host", "REDIS_PASSWORD_FILE"),
    ("PREFLIGHT_API_TOKEN", "a token that is long", "PREFLIGHT_API_TOKEN_FILE"),
    ("PREFLIGHT_SIGNING_KEY", "sixteen letters!", "PREFLIGHT_SIGNING_KEY_FILE"),
])  # fmt: skip
def test_a_secret_and_its_file_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, file: str
) -> None:
    """One of them would be ignored."""
    (tmp_path / "secret").write_text("another that is long")
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv(file, str(tmp_path / "secret"))
    with pytest.raises(InvalidConfig, match=f"{variable}.*{file}.*leave one of them out") as caught:
        load()
    assert "hunter2" not in caught.value.message


AROUND = (
    "{}\n", "{}\r\n", "{}\r", " {}\t", '"{}"', "'{}'", '" {}"\n', "\ufeff{}",
    "\N{LEFT DOUBLE QUOTATION MARK}{}\N{RIGHT DOUBLE QUOTATION MARK}",
)  # fmt: skip
VALUES = {
    "redis_url": "redis://h:1/0", "queue": "q", "dependent_queues": "a,b",
    "data_dir": "/d", "artifact_dir": "/a", "cache_dir": "/c", "state_dir": "/s", "outbox_dir": "/o",
    "tensorboard_dir": "/t", "signing_key": "sixteen letters!", "api_token": "a token that is long",
    "web_readonly": "on", "max_epochs": "3", "log_level": "debug", "calibration_seconds": "2.5", "port": "8080",
    "artifact_url": "s3://b/p", "mlflow_uri": "http://h:5000", "mlflow_experiment": "digits", "railway_volume": "/v",
    "advertise_host": "10.0.0.1",
}  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
def test_what_stands_around_a_value_does_not_count(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    """As secrets, .env files and word processors deliver it, for every variable alike."""
    for name, value in VALUES.items():
        monkeypatch.setenv(variables(Settings, name)[0], value)
    plain = load()
    for name, value in VALUES.items():
        monkeypatch.setenv(variables(Settings, name)[0], around.format(value))
    assert load() == plain
    assert plain.data_dir == Path("/d")


def test_a_secret_in_a_file_of_windows_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbfa token that is long\r\n")
    monkeypatch.setenv("PREFLIGHT_API_TOKEN_FILE", f"{tmp_path / 'token'}\r\n")
    token = load().api_token
    assert token is not None
    assert token.get_secret_value() == "a token that is long"


@pytest.mark.parametrize("field", ["queue", "state_dir", "port", "api_token"])
@pytest.mark.parametrize(("value", "words"), [
    ("${{Redis.REDIS_URL}}", "holds the placeholder ${{Redis.REDIS_URL}}, which nothing has replaced"),
    ("x$(REDIS_URL)x", "holds the placeholder $(REDIS_URL)"),
    ("a/${VARIABLE:-b}/c", "holds the placeholder ${VARIABLE:-b}"),
    ("{{ .Values.url }}", "holds the placeholder {{ .Values.url }}"),
    ("$VARIABLE", "holds the placeholder $VARIABLE"),
    ("a long value\r\nand another", "has a control character in it (\\r)"),
])  # fmt: skip
def test_no_value_that_nobody_can_have_meant(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str, words: str
) -> None:
    """The sentence names the variable, and shows nothing of a secret."""
    variable = variables(Settings, field)[0]
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert caught.value.message.startswith(f"{variable} h")
    secret = field in ("signing_key", "api_token") and "placeholder" in words
    assert ("holds a placeholder, which" if secret else words) in caught.value.message


def test_half_a_pair_of_quotation_marks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a secret may end with one."""
    monkeypatch.setenv("PREFLIGHT_API_TOKEN", 'a token that is long"')
    token = load().api_token
    assert token is not None
    assert token.get_secret_value() == 'a token that is long"'
    monkeypatch.setenv("PREFLIGHT_DATA_DIR", '"/data')
    with pytest.raises(InvalidConfig, match=r"^PREFLIGHT_DATA_DIR has a quotation mark on one side only"):
        load()


@pytest.mark.parametrize("field", ["data_dir", "artifact_dir", "cache_dir", "state_dir", "tensorboard_dir"])
def test_a_bucket_is_no_directory(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """`Path` would make ./s3:/bucket of it."""
    monkeypatch.setenv(f"PREFLIGHT_{field.upper()}", "s3://bucket/models")
    with pytest.raises(
        InvalidConfig, match=r"is 's3://bucket/models': must be a path.*PREFLIGHT_ARTIFACT_URL"
    ) as caught:
        load()
    assert caught.value.message.startswith(f"PREFLIGHT_{field.upper()} ")


@pytest.mark.parametrize("value", ["on", "off", "of"])
def test_a_removed_variable_is_a_note(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Whatever it says: a deployment that sets it starts as before."""
    assert not any("IDLE" in note for note in load().notes)
    monkeypatch.setenv("PREFLIGHT_IDLE_CALIBRATION", value)
    assert [note for note in load().notes if "IDLE" in note] == [
        "PREFLIGHT_IDLE_CALIBRATION has no effect any more and can be left out: "
        "a worker does not calibrate while the queue is empty"
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_a_home_directory_has_directories() -> None:
    """One that /etc/passwd does not know, and no HOME; explicit settings win, and a note says where things are."""
    script = (
        "import os, sys\nfrom worker.config.settings import load\nos.setgid(54321); os.setuid(54321)\n"
        "found = load()\nprint(found.state_dir, found.cache_dir, *found.notes, sep='\\n')\n"
    )
    command = [sys.executable, "-P", "-c", script]
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        environment = {"TMPDIR": name, "PREFLIGHT_CACHE_DIR": "/c", "PYTHONPATH": os.pathsep.join(sys.path)}
        run = partial(subprocess.run, command, env=environment, capture_output=True, text=True, cwd="/")
        first = run()
        substitute = Path(name) / "preflight-54321"
        private = substitute.stat().st_mode & 0o777 == 0o700
        os.chown(substitute, 1, 1)
        second = run()
    state, cache, note = first.stdout.splitlines()
    assert (state, cache, private) == (f"{substitute}/.local/share/preflight/state", "/c", True)
    assert note.startswith("HOME names no directory and user 54321 has no home directory")
    assert "belongs to somebody else; set HOME" in second.stderr


def test_the_variables_of_stores_are_cleaned_and_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something is exported; a value that holds a key is not shown."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", '"http://minio:9000"\r\n')
    settings = load(artifact_url="s3://models")
    assert export_environment(settings, "artifact_url")["AWS_ENDPOINT_URL"] == "http://minio:9000"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "$(HUNTER2)")
    assert load().artifact_url is None
    with pytest.raises(InvalidConfig) as caught:
        load(artifact_url="s3://models")
    assert caught.value.message.startswith("AWS_SECRET_ACCESS_KEY holds a placeholder, which nothing has replaced")
