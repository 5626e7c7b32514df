"""An application with a `worker.py` or a folder `training/` beside ours: one sentence that names what is in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.packages import explain_hidden, in_the_way

ROOT = Path(__file__).parents[3]

COMMAND = "import sys; from preflight.cli.app import main; sys.argv = ['preflight', *sys.argv[1:]]; main()"


def python(*arguments: str, cwd: Path, first: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, with another one first in PYTHONPATH."""
    own = [str(ROOT), str(ROOT / "client")]
    listed = [str(first), *own] if first else own
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(listed)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["worker.py", "training/__init__.py", "calibration.py", "training.py"])
def test_a_command_of_the_worker_names_what_is_in_the_way(tmp_path: Path, name: str) -> None:
    """Exit code 2 instead of a traceback: PYTHONPATH=/app is how Heroku and others start a command."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('the application was run')\n")
    done = python("-P", "-c", COMMAND, "health", cwd=Path("/"), first=tmp_path)
    found = path if path.name != "__init__.py" else path.parent
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: {found} is in the way: Python imports it as '{found.stem}', which is a package of preflight; "
        f"rename it, or take {tmp_path} out of PYTHONPATH\n"
    )


def test_a_clients_commands_do_not_care(tmp_path: Path) -> None:
    """Neither what they do nor `--help`, which lists them alone and says what is in the way of the others."""
    (tmp_path / "worker.py").write_text("raise SystemExit('the application was run')\n")
    for arguments in (["--version"], ["jobs", "--help"], ["completion", "bash"]):
        done = python("-P", "-c", COMMAND, *arguments, cwd=Path("/"), first=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    listed = python("-P", "-c", COMMAND, "--help", cwd=Path("/"), first=tmp_path).stdout
    assert "  watch " in listed
    assert "  train " not in listed
    assert f"not here: {tmp_path}/worker.py is in the way: " in listed


APPLICATION = """
import calibration, training, worker
from preflight import Client, TrainJob

job = TrainJob(type="preflight.train.v1", dataset="mnist", model="cnn")
print(calibration.OWN, training.OWN, worker.OWN, job.dataset, Client("redis://localhost:1/0") is not None)
"""


def test_an_application_with_packages_of_our_names_uses_the_client(tmp_path: Path) -> None:
    """The client imports `preflight` alone, so an application's `worker.py` beside RQ stays the application's."""
    (tmp_path / "training").mkdir()
    for name in ("training/__init__.py", "worker.py", "calibration.py"):
        (tmp_path / name).write_text(f"OWN = {name!r}\n")
    (tmp_path / "app.py").write_text(APPLICATION)
    done = python("app.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["calibration.py", "training/__init__.py", "worker.py", "mnist", "True"]


def test_nothing_is_in_the_way_of_an_installation(tmp_path: Path) -> None:
    """Nor is a folder without Python's mark of a package, which Python takes last."""
    (tmp_path / "worker").mkdir()
    assert explain_hidden() is None
    assert in_the_way(tmp_path) is None
    assert in_the_way(ROOT) is None
    assert in_the_way(ROOT / "client") is None
    done = python("-P", "-c", COMMAND, "health", "--help", cwd=tmp_path, first=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_names_it_before_a_program_does(tmp_path: Path) -> None:
    """`python worker.py` there would run the application's, and `python app.py` could not import the client."""
    (tmp_path / "worker.py").touch()
    done = python("-P", "-c", COMMAND, "doctor", cwd=tmp_path)
    assert f"warn  packages            {tmp_path}/worker.py is in the way" in done.stdout
