"""The two wheels: the client's alone, beside an application with modules of the worker's names, and both."""

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from support.worker.services import Wheels

APPLICATION = {
    "worker.py": "OWN = 'the worker of the application'\n",
    "training/__init__.py": "OWN = 'its training'\n",
    "calibration.py": "OWN = 'its calibration'\n",
    "app.py": """
import calibration, sys, training, worker
from preflight import Client, TrainJob

client = Client(sys.argv[1], queue="wheels")
job = TrainJob(type="preflight.train.v1", dataset="of-the-worker", model="its-model", job_id="by-program")
print(client.enqueue(job).job_id, client.status("by-program").status)
print(worker.OWN, training.OWN, calibration.OWN, sep=", ")
""",
}


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules of an application."""
    folder = tmp_path_factory.mktemp("application")
    for name, text in APPLICATION.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def client_alone(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the client's wheel and what that requires."""
    return new_environment(tmp_path_factory.mktemp("client"), wheels.client)


@pytest.fixture(scope="module")
def both(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with both wheels and what the client's requires."""
    return new_environment(tmp_path_factory.mktemp("both"), wheels.client, wheels.worker)


def new_environment(directory: Path, *wheels: Path) -> Path:
    """Make a virtual environment with these wheels and links to what `preflight-client` requires; no downloads."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-index"]
    subprocess.run([*command, "--python", str(python), *map(str, wheels)], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    link_requirements(site, "preflight-client", set())
    return python.parent


def link_requirements(site: Path, name: str, linked: set[str]) -> None:
    """Link the packages that `name` requires from this environment into the folder `site`, and so on."""
    for requirement in map(Requirement, distribution(name).requires or []):
        if requirement.name in linked or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        linked.add(requirement.name)
        found = distribution(requirement.name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
        link_requirements(site, requirement.name, linked)


def run(folder: Path, *command: str, cwd: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    program, *arguments = command
    return subprocess.run(
        [str(folder / program), *arguments], cwd=cwd, env={**environment}, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def environment(redis_url: str, application: Path, tmp_path: Path) -> dict[str, str]:
    """Variables of a program whose own modules are on its path, as PYTHONPATH=/app of a platform."""
    return {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(application), "REDIS_URL": redis_url,
        "PREFLIGHT_QUEUE": "wheels", "PREFLIGHT_MAX_EPOCHS": "a setting of workers is not read",
    }  # fmt: skip


def test_each_wheel_has_its_packages(wheels: Wheels) -> None:
    """The client's alone has `preflight` and its command; `preflight` is typed for other projects."""
    contents = {wheel: set(ZipFile(wheel).namelist()) for wheel in (wheels.client, wheels.worker)}
    packages = {
        wheel: {name.partition("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
        for wheel, names in contents.items()
    }
    assert packages == {wheels.client: {"preflight"}, wheels.worker: {"worker", "training", "calibration"}}
    assert {"preflight/py.typed", "preflight/redis/scripts/rq/enqueue.lua"} <= contents[wheels.client]
    assert [name for name in contents[wheels.worker] if name.endswith(".data/data/share/preflight/runbook.md")]
    (points,) = (name for name in contents[wheels.worker] if name.endswith("entry_points.txt"))
    assert "[console_scripts]" not in ZipFile(wheels.worker).read(points).decode()


def test_a_program_enqueues(client_alone: Path, application: Path, environment: dict[str, str], redis_url: str) -> None:
    """Its `import worker` is its own; the data set and the model are known to a worker alone."""
    done = run(client_alone, "python", "app.py", redis_url, cwd=application, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "by-program queued", "the worker of the application, its training, its calibration"
    ]  # fmt: skip


def test_its_commands_enqueue_list_cancel_and_watch(
    client_alone: Path, application: Path, environment: dict[str, str]
) -> None:
    """Where the application starts them: neither its modules nor a worker's settings matter."""

    def preflight(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(client_alone, "preflight", *arguments, cwd=application, environment=environment)

    enqueued = preflight("enqueue", "--dataset", "of-the-worker", "--job-id", "by-command")
    assert (enqueued.returncode, enqueued.stdout, enqueued.stderr) == (0, "by-command\n", "")
    listed = preflight("jobs", "--status", "queued").stdout
    assert ["by-command", "queued"] in [line.split()[:2] for line in listed.splitlines()]
    cancelled = preflight("cancel", "by-command")
    assert (cancelled.returncode, cancelled.stdout) == (0, "cancellation of by-command requested\n"), cancelled.stderr
    watched = preflight("watch", "by-command")
    assert (watched.returncode, watched.stdout) == (3, "Cancelled in the queue.\n"), watched.stderr
    refused = preflight("enqueue", "--epochs", "0")
    assert (refused.returncode, refused.stderr) == (2, "preflight: epochs is 0, but must be at least 1\n")


@pytest.mark.parametrize("name", ["train", "worker", "wach"])
def test_a_command_of_the_worker_is_named_as_absent(
    client_alone: Path, application: Path, environment: dict[str, str], name: str
) -> None:
    """One sentence and exit code 2, and a hint at what may have been meant."""
    done = run(client_alone, "preflight", name, cwd=application, environment=environment)
    hint = " (did you mean 'watch'?)" if name == "wach" else ""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: '{name}' is not a command of the client{hint}; preflight-worker is not installed here; "
        "pip install ./client '.[train]' in a checkout of preflight\n"
    )
    listed = run(client_alone, "preflight", "--help", cwd=application, environment=environment).stdout
    assert "  watch " in listed
    assert "  train " not in listed
    assert "preflight-worker is not installed here" in listed


def test_both_have_all_commands(both: Path, tmp_path: Path) -> None:
    listed = run(both, "preflight", "--help", cwd=tmp_path, environment={"HOME": str(tmp_path)})
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {"watch", "train", "serve", "doctor"} <= {line.split()[0] for line in listed.stdout.splitlines() if line}


def test_what_hides_the_worker_is_named(both: Path, application: Path, environment: dict[str, str]) -> None:
    """By the worker's commands; those of the client work."""
    done = run(both, "preflight", "worker", cwd=application, environment=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: {application}/worker.py is in the way: Python imports it as 'worker', which is a package of "
        f"preflight; rename it, or take {application} out of PYTHONPATH\n"
    )
    listed = run(both, "preflight", "jobs", cwd=application, environment=environment)
    assert (listed.returncode, listed.stderr) == (0, "")
