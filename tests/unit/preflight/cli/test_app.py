"""Commands of other packages: one that is broken is named, and does not take the others with it."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import click
import pytest
from click.testing import CliRunner
from support.worker.command_line import assert_one_sentence, run

from preflight.cli.app import GROUP, CommandGroup, main
from preflight.cli.commands import COMMANDS

pytestmark = pytest.mark.usefixtures("command_environment")
BROKEN = {"gone": "no_such_package.commands:gone", "missing": "json:missing", "number": "math:pi"}


@pytest.fixture(autouse=True)
def _others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of packages that nobody has: three are broken, `dump` and `jobs` are commands."""
    found = {**BROKEN, "dump": "preflight.cli.commands:watch", "jobs": "preflight.cli.commands:watch"}
    points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in found.items())
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)
    monkeypatch.setattr(main, "commands", {command.name: command for command in COMMANDS})


@pytest.mark.parametrize(("name", "words"), [
    ("gone", "command 'gone' is registered as no_such_package.commands:gone but cannot be imported (No module named"),
    ("missing", "command 'missing' is registered as json:missing but cannot be imported (module 'json' has no"),
    ("number", "command 'number' is registered as math:pi, which is no command of click"),
])  # fmt: skip
def test_a_broken_command_is_named(name: str, words: str) -> None:
    assert words in assert_one_sentence(run(name), 2)


def test_help_lists_those_that_work() -> None:
    """And a client's own command stays what it is."""
    listed = run("--help")
    assert listed.exit_code == 0
    assert "  dump " in listed.stdout
    assert not any(f"  {name} " in listed.stdout for name in BROKEN)
    assert "List the jobs in Redis" in run("jobs", "--help").stdout


def test_the_shell_gets_no_completions_of_a_broken_command() -> None:
    """A traceback at the prompt would be worse."""
    assert isinstance(main, CommandGroup)
    assert main.get_command(click.Context(main, resilient_parsing=True), "gone") is None


@click.command()
def colourful() -> None:
    click.secho("caf\u00e9 \u2013 99", bold=True)


@pytest.mark.parametrize(("name", "value", "is_plain"), [
    ("NO_COLOR", "1", True), ("NO_COLOR", "", False), ("TERM", "dumb", True), ("TERM", "xterm", False),
])  # fmt: skip
def test_colours_are_left_out_where_nobody_wants_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_plain: bool
) -> None:
    monkeypatch.setattr(main, "commands", {"colourful": colourful})
    for each in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    printed = CliRunner().invoke(main, ["colourful"], color=True).stdout
    assert ("\x1b" not in printed) == is_plain


@pytest.mark.process
def test_a_stdout_without_utf_8_gets_escapes() -> None:
    program = (
        "import click\nfrom preflight.cli.app import main\n"
        "main.add_command(click.Command('x', callback=lambda: click.echo('caf\\u00e9 \\u2013 99')))\nmain(['x'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\xe9 \\u2013 99\n", b"")


@pytest.mark.process
def test_output_that_nobody_reads_any_more_ends_the_command_quietly() -> None:
    """As `preflight completion bash | head -1` may; no traceback, no sentence."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-P", "-c", "from preflight.cli.app import main; main()", "completion", "bash"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
