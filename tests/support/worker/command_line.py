"""The command line in this process."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from preflight.cli.app import main


@pytest.fixture
def command_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of commands: empty directories and an absent Redis with a password."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", f"unix://:hunter2@{tmp_path}/no.sock")
    for name in ("DATA", "ARTIFACT", "CACHE", "STATE"):
        monkeypatch.setenv(f"PREFLIGHT_{name}_DIR", str(tmp_path / name.lower()))


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=input)


def named_command(name: str) -> click.Command:
    """Return a command of the client, or one that an entry point adds."""
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def assert_one_sentence(result: Result, *codes: int, stdout: str = "") -> str:
    """Assert that a command failed with one sentence on stderr; return it."""
    assert result.exit_code in codes, result.output
    assert result.stdout == stdout
    assert result.stderr.startswith("preflight: "), result.stderr
    assert result.stderr.count("\n") == 1
    assert result.exit_code == 1 or "--debug" not in result.stderr
    assert len(result.stderr) < 3_000
    return result.stderr
