"""An application with a `worker.py` or a folder `training/` beside ours: one sentence that names what is in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.packages import ROOT, explain_hidden, in_the_way

COMMAND = "import sys; from preflight.command import main; sys.argv = ['preflight', *sys.argv[1:]]; main()"


def python(*arguments: str, cwd: Path, first: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, with another one first in PYTHONPATH."""
    listed = [str(first), str(ROOT)] if first else [str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(listed)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["worker.py", "training/__init__.py", "calibration.py", "training.py"])
def test_the_command_names_what_is_in_the_way(tmp_path: Path, name: str) -> None:
    """Exit code 2 instead of a traceback: PYTHONPATH=/app is how Heroku and others start a command."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('the application was run')\n")
    done = python("-P", "-c", COMMAND, "--version", cwd=Path("/"), first=tmp_path)
    found = path if path.name != "__init__.py" else path.parent
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: {found} is in the way: Python imports it as '{found.stem}', which is a package of preflight; "
        f"rename it, or take {tmp_path} out of PYTHONPATH\n"
    )


def test_an_application_learns_what_is_in_the_way_of_the_client(tmp_path: Path) -> None:
    """Where it has a `training` of its own, the import of the client ends with the same sentence."""
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "app.py").write_text("from preflight.client import Client\n")
    done = python("app.py", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {tmp_path}/training is in the way: Python imports it as 'training', which is a package of "
        f"preflight; rename it, or start the program in another folder than {tmp_path}"
    )


def test_nothing_is_in_the_way_of_an_installation(tmp_path: Path) -> None:
    """Nor is a folder without Python's mark of a package, which Python takes last."""
    (tmp_path / "worker").mkdir()
    assert explain_hidden() is None
    assert in_the_way(tmp_path) is None
    assert in_the_way(ROOT) is None
    done = python("-P", "-c", COMMAND, "--version", cwd=tmp_path, first=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_names_it_before_a_program_does(tmp_path: Path) -> None:
    """`python worker.py` there would run the application's, and `python app.py` could not import the client."""
    (tmp_path / "worker.py").touch()
    done = python("-P", "-c", COMMAND, "doctor", cwd=tmp_path)
    assert f"warn  packages            {tmp_path}/worker.py is in the way" in done.stdout
