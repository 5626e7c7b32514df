"""Commands that the worker adds: what they take and refuse, without a service."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.files.pictures import imported, save_tree
from support.worker.command_line import assert_one_sentence, run

from preflight.cli.arguments import parse_job_options
from training.catalog.catalog import Catalog
from worker.cli.commands.data import MAX_CHANGES
from worker.cli.context import require_one_worker

pytestmark = pytest.mark.usefixtures("command_environment")


@pytest.mark.parametrize("command", ["train", "profile", "demo"])
def test_a_command_without_a_queue_has_no_group(command: str) -> None:
    """A job that needs several workers is refused by it; one that may have them says that it has none."""
    error = assert_one_sentence(run(command, "--dataset=digits", "--workers=2-3"), 2)
    assert f"workers is at least 2, but `preflight {command}` trains in this container alone" in error


def test_a_job_that_may_have_a_group_trains_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = parse_job_options({"file": None, "dataset": "digits", "workers": "1-4"})
    assert require_one_worker(job, "train") is job
    assert "trains in this container alone, not with up to 4 workers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["\udcff", "x" * 100_000, "\n"])
def test_an_unknown_name_is_quoted_and_truncated(monkeypatch: pytest.MonkeyPatch, redis_url: str, name: str) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    error = assert_one_sentence(run("quarantine", "drop", "--", name), 2)
    assert error.endswith(" is not in quarantine; nothing was dropped\n")
    assert_one_sentence(run("cache", "clear", "--", name), 2)


def test_the_package_runs_as_a_module() -> None:
    """The demo and the tests start workers by `python -m worker.cli`."""
    done = subprocess.run([sys.executable, "-P", "-m", "worker.cli", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("preflight, version ")


def test_a_file_of_changes_is_read_whole_or_refused(tmp_path: Path) -> None:
    """A last line that is cut could name another sample, and without its class that sample would be left out."""
    imported(tmp_path / "data", save_tree(tmp_path / "photos", 4), "photos")
    line = "1,square\n"
    (tmp_path / "changes.csv").write_text((line * (MAX_CHANGES // len(line) + 1))[: MAX_CHANGES - 1] + "12,square\n")
    error = assert_one_sentence(run("data", "relabel", "photos", str(tmp_path / "changes.csv")), 2)
    assert "has more than 16,777,216 characters; list only the samples that change" in error
    assert [version.reference for version in Catalog(tmp_path / "data").versions()] == ["photos@1"]
