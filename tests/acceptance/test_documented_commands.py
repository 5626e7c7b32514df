"""Every command in README and docs/ is run here on small data, or by another test."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result
from redis import Redis
from support.web.service import TOKEN, serving
from support.worker.command_line import named_command
from support.worker.services import ROOT, digits_job, wait_until
from support.worker.shown_output import normalized, shown_output

from preflight import Client
from preflight.cli.app import main
from worker.admission import quarantine
from worker.config.settings import Settings, service_environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent
COMMAND = re.compile(r'(?:eval "\$\()?((?:[A-Z_]+=\S+ )*(?:preflight|make) [^")]+)(?:\)")?')
WORKER = ("preflight worker", "REDIS_URL=redis://localhost:6379/0 preflight worker")
ENQUEUE = "preflight enqueue --dataset digits --epochs 3 --no-calibrate --wait"
"""Trains the job `first` for the other commands."""
SMALL = ["--dataset", "digits", "--no-calibrate", "--set", "plan.threads=1"]
"""Options for a training of about a second."""

TRAINED_TEST = "tests/integration/training/artifacts/test_trained.py"
CALIBRATE_TEST = "tests/unit/worker/cli/commands/test_calibrate_command.py"
PROFILE_TEST = "tests/unit/worker/cli/commands/test_profile_command.py"
DELETIONS_TEST = "tests/integration/worker/queue/maintenance/test_deletions.py"
COMMANDS_TEST = "tests/acceptance/test_commands.py"
PROCESSES_TEST = "tests/integration/worker/queue/test_worker_processes.py"
PACKING_TEST = "tests/integration/worker/queue/test_packing.py"
MODELS_TEST = "tests/unit/worker/cli/commands/test_models_command.py"
RUN_TEST = "tests/integration/preflight/launch/test_command.py"
ISSUES_TEST = "tests/integration/worker/jobs/test_label_issues.py"
DATA_TEST = "tests/acceptance/test_data_sources.py"
S3_TEST = "tests/integration/worker/jobs/test_data_in_s3.py"
EXPORTED = (
    "tests/integration/worker/features/exporters/test_exports.py",
    "test_a_model_is_exported_by_the_next_worker",
    "needs services",
)
PROVEN = {
    "make demo": (COMMANDS_TEST, "test_the_demo_trains_mnist", "makes .venv and then runs `preflight demo`"),
    "make test": ("tests/acceptance/test_documented_commands.py", "test_a_documented_command_works", "runs all tests"),
    "preflight demo": (COMMANDS_TEST, "test_the_demo_trains_mnist", "trains MNIST"),
    "preflight worker --processes 2":
        (PROCESSES_TEST, "test_two_processes_run_two_jobs_at_the_same_time", "runs until a signal"),
    "preflight worker --max-jobs 2":
        (PACKING_TEST, "test_a_waiting_job_begins_where_two_do_more_and_gives_back_what_it_had", "runs until a signal"),
    "preflight serve":
        ("tests/integration/worker/web/test_server.py", "test_a_job_from_http_to_its_result", "on a free port"),
    "preflight upload JOB": EXPORTED,
    "preflight delete JOB":
        (DELETIONS_TEST, "test_a_trained_job_is_deleted_and_its_id_is_trained_no_more", "asks first"),
    "PREFLIGHT_ARTIFACT_URL=s3://models/digits AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... preflight worker":
        EXPORTED,
    "PREFLIGHT_MLFLOW_URI=http://mlflow:5000 PREFLIGHT_MLFLOW_EXPERIMENT=digits preflight worker": EXPORTED,
    "PREFLIGHT_TENSORBOARD_DIR=/runs preflight worker": EXPORTED,
    "preflight train --json": (COMMANDS_TEST, "test_train_reaches_98_9_percent_on_mnist", "trains MNIST"),
    "preflight train --profile": (COMMANDS_TEST, "test_a_profile_has_the_time_of_each_phase", "a training more"),
    "preflight train --max-steps 50":
        (PROFILE_TEST, "test_a_short_training_says_how_many_steps_it_took", "trains MNIST"),
    "preflight profile --steps 100":
        (PROFILE_TEST, "test_the_table_has_a_row_for_each_phase_of_a_step", "trains MNIST"),
    "preflight train --dataset digits --epochs 3":
        (COMMANDS_TEST, "test_a_profile_has_the_time_of_each_phase", "a training more"),
    "preflight train --dataset photos":
        (COMMANDS_TEST, "test_a_profile_has_the_time_of_each_phase", "a training more, and needs pictures"),
    **{
        f"preflight models {words}": (MODELS_TEST, "test_models_are_promoted_and_rolled_back", "needs promoted models")
        for words in (
            "promote JOB --as production --why retrained", "promote JOB --as production", "show production",
            "rollback production", "remove production",
        )
    },
    "preflight predict MODEL IMAGE...":
        (TRAINED_TEST, "test_digits_are_recognized_in_pictures", "needs a model and pictures"),
    "preflight export ARTIFACT":
        (TRAINED_TEST, "test_an_export_that_says_something_else_is_refused", "takes seconds"),
    "preflight retry JOB":
        ("tests/integration/preflight/client/test_retried_jobs.py", "test_ten_retries_at_once_are_one",
         "needs a job that failed or was cancelled"),
    "preflight run -- python train.py":
        (RUN_TEST, "test_output_input_and_exit_code_are_those_of_the_command", "needs a training of the user"),
    "preflight data add NAME FOLDER": (DATA_TEST, "test_a_row_of_the_table", "needs pictures"),
    "preflight data add photos ./photos": (DATA_TEST, "test_a_row_of_the_table", "needs pictures"),
    "preflight predict production picture.png":
        (TRAINED_TEST, "test_digits_are_recognized_in_pictures", "needs a model and pictures"),
    "preflight data diff photos@1 photos@2": (DATA_TEST, "test_the_commands_about_versions", "needs two versions"),
    "preflight data alias production photos@1": (DATA_TEST, "test_the_commands_about_versions", "needs a version"),
    "preflight data issues photos@2":
        (ISSUES_TEST, "test_wrong_labels_are_found_and_mended", "a training more"),
    "preflight data relabel photos@2 changes.csv":
        (DATA_TEST, "test_the_commands_about_versions", "needs two versions"),
    "preflight data erase photos@2 12": (DATA_TEST, "test_the_commands_about_versions", "needs two versions"),
    "preflight data remove photos@2": (DATA_TEST, "test_the_commands_about_versions", "needs two versions"),
    "PREFLIGHT_DATA_SOURCES=s3://lab/ preflight data add photos s3://lab/photos/":
        (S3_TEST, "test_a_folder_in_s3_is_imported", "needs a bucket"),
    "preflight calibrate --explain":
        (CALIBRATE_TEST, "test_explain_prints_everything", "a calibration more"),
}  # fmt: skip
"""Command -> file and name of the test that runs it, and the reason why it is not run here."""


def documented() -> list[str]:
    """Return the commands in fenced or indented blocks without repetitions."""
    return list(dict.fromkeys(command for page in PAGES for command in commands(page.read_text())))


def commands(text: str) -> Iterator[str]:
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        found = COMMAND.fullmatch(re.split(r"  +", line.strip())[0])
        if found and (fenced or line.startswith("    ")):
            yield found[1]


@dataclass(frozen=True, slots=True)
class Service:
    """A Redis with a worker, a finished job `first`, and an entry in quarantine."""

    settings: Settings
    client: Client
    environment: dict[str, str]
    worker: "subprocess.Popen[bytes]"
    waited: Result
    """Result of `enqueue --wait`."""
    log: Path
    """Of the worker."""


@pytest.fixture(scope="module")
def service(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("documented")
    places = {f"{name}_dir": directory / name for name in ("data", "artifact", "cache", "state", "outbox")}
    settings = Settings.model_validate({"redis_url": redis_url, **places})
    connection = Redis.from_url(redis_url)
    connection.flushall()
    client = Client(redis_url)
    connection.rpush("rq:queue:preflight", "no job")
    environment = {**service_environment(settings), "REDIS_URL": redis_url, "PREFLIGHT_REDIS_URL": ""}
    with (directory / "worker.log").open("wb") as log:
        worker = subprocess.Popen([str(BIN / "preflight"), "worker"], env=environment, stdout=log, stderr=log)
    try:
        enqueue = [*shlex.split(ENQUEUE)[1:], "--job-id", "first", *SMALL]
        waited = CliRunner().invoke(main, enqueue, env=environment)
        wait_until(lambda: bool(quarantine.entries(connection)))
        yield Service(settings, client, environment, worker, waited, directory / "worker.log")
    finally:
        worker.terminate()
        worker.wait(30)


@pytest.mark.parametrize("command", documented())
def test_a_documented_command_works(command: str, service: Service) -> None:
    """Exit code 0; JOB is replaced by `first`, MNIST by scikit-learn's digits."""
    if command in PROVEN:
        file, test, _ = PROVEN[command]
        assert f"def {test}(" in (ROOT / file).read_text()
        assert_parses([word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)])
    elif command in WORKER:
        assert service.worker.poll() is None
    elif command == ENQUEUE:
        assert service.waited.exit_code == 0, service.waited.output
        id_, *lines = normalized(service.waited.stdout)
        assert id_ == "first"
        assert lines == shown_output(ROOT / "README.md", "Attempt 1 started")[1:]
    else:
        run(shlex.split(command)[1:], service)


def run(arguments: list[str], service: Service) -> None:
    """Run `preflight`, in this process where torch is not needed."""
    arguments = ["digits" if word == "mnist" else word for word in arguments]
    environment = service.environment
    match arguments:
        case ["train", *_]:
            command = [str(BIN / "preflight"), *arguments, *SMALL]
            environment = {**environment, "PREFLIGHT_LOG_FORMAT": "text"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            if "--fields" not in arguments:
                assert_tells_the_story(done.stderr.splitlines(), '{}="?{}"?')
            return
        case ["cancel", _]:
            environment = {**environment, "PREFLIGHT_QUEUE": "nobody-listens"}
            unwanted = Client(service.settings.redis_url, queue="nobody-listens").enqueue(digits_job())
            arguments = ["cancel", unwanted.job_id]
        case ["enqueue", *_]:
            arguments = [*arguments, *SMALL]
        case ["quarantine", "drop", "ID"]:
            arguments = ["quarantine", "drop", "no%20job"]
    arguments = ["first" if word == "JOB" else word for word in arguments]
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exit_code == 0, result.output


STORY: Final = {
    "job_started": ("preflight_version", "torch_version", "python_version", "worker", "epochs"),
    "training_config": ("learning_rate", "optimizer", "seed", "batch_size", "threads", "precision"),
    "training_done": ("dataset_sha256", "model_sha256", "artifact", "train_s", "total_s"),
}
"""Record -> what it tells a stranger."""


def assert_tells_the_story(lines: list[str], pair: str) -> None:
    """At most 15 lines of 2 KiB each, 1 KiB on average, have what a stranger asks of a job; `pair` is a field."""
    assert 3 < len(lines) <= 15, lines
    assert max(map(len, lines)) <= 2048
    assert sum(map(len, lines)) <= 1024 * len(lines)
    for name, fields in STORY.items():
        (line,) = [line for line in lines if re.search(pair.format("event", name), line)]
        assert [field for field in fields if not re.search(pair.format(field, r"[^\s\"]"), line)] == []


def test_the_log_of_a_job_is_short_and_tells_its_story(service: Service) -> None:
    """That of a worker, as JSON; `preflight train` above as key=value. It says which accuracy it means."""
    assert service.waited.exit_code == 0
    lines = [line for line in service.log.read_text().splitlines() if '"job_id": "first"' in line]
    assert_tells_the_story(lines, '"{}": "?{}')
    said = " ".join(json.loads(line)["message"] for line in lines)
    assert said.count("accuracy") == len(re.findall("(?:training|validation|test) accuracy", said)) > 0
    assert not {"memory_probe", "dataloader_config", "calibration_trial"} & {
        json.loads(line)["event"] for line in lines
    }


def assert_parses(words: list[str]) -> None:
    """Assert that the options of the command, or the target of make, exist."""
    if words[0] == "make":
        dry = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)  # noqa: S607 - as documented
        assert dry.returncode == 0, dry.stderr
        return
    named, rest = named_command(words[1]), words[2:]
    while isinstance(named, click.Group):
        named, rest = named.commands[rest[0]], rest[1:]
    with named.make_context(words[1], rest):
        pass


def test_the_table_has_documented_commands_only() -> None:
    assert set(PROVEN) <= set(documented())
    assert set(WORKER) <= set(documented())


def test_documented_python_enqueues(service: Service) -> None:
    done = python("docs/tutorial/your-service.md", 'job_id="second"', 'dataset="digits", calibrate=False', service)
    assert done == "second\n"
    state = service.client.status("second")
    assert state.status in ("queued", "running", "finished"), state


def test_documented_python_watches(service: Service) -> None:
    done = python("README.md", "client.events", 'dataset="digits", job_id="first"', service)
    assert done.startswith("job_started\n")
    assert "test_accuracy" in done


def python(page: str, marker: str, fields: str, service: Service) -> str:
    """Run a page's Python block with `marker`, on the test's Redis and with `fields`; return its output."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if marker in block]
    source = lines.replace("redis://localhost:6379/0", service.settings.redis_url)
    source = source.replace('dataset="mnist"', fields)
    done = subprocess.run([sys.executable, "-P", "-c", source], env=service.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_documented_requests_are_answered(service: Service, tmp_path: Path) -> None:
    """The lines for curl, at another port and for the existing job."""
    (lines,) = re.findall(r"```sh\n(curl.*?)```", (ROOT / "docs/tutorial/your-service.md").read_text(), re.DOTALL)
    environment = {**service.environment, "PREFLIGHT_API_TOKEN": TOKEN}
    with serving(service.settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN) as server:
        program = lines.replace(":8000/", f":{server.port}/").replace("mnist", "digits").replace("third", "first")
        done = subprocess.run(["bash", "-ec", program], env=environment, capture_output=True, text=True)  # noqa: S607 - as documented
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"first"') > 2
    assert "training_done" in done.stdout
