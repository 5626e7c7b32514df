"""Imports from, and imported data in, an S3 server (moto's), behind a proxy that fails and drops connections."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.files.objects import BUCKET, CREDENTIALS, Objects, objects
from support.files.pictures import imported, save_tree
from support.worker.services import StartWorker

from preflight import Client, TrainJob
from training.catalog.catalog import Catalog
from worker.config.settings import Settings

STORE = f"s3://{BUCKET}/data"


@pytest.fixture(scope="module")
def s3() -> Iterator[Objects]:
    with objects() as server:
        yield server


@pytest.fixture
def environment(s3: Objects, tmp_path: Path) -> Mapping[str, str]:
    """Of commands that reach the server through the proxy; each has a try of boto's, the further ones are s3fs's."""
    s3.reset()
    places = {f"PREFLIGHT_{name}_DIR": str(tmp_path / name.lower()) for name in ("DATA", "STATE", "CACHE", "ARTIFACT")}
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": s3.url, "AWS_MAX_ATTEMPTS": "1", **places}


def add(source: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "worker.cli", "data", "add", "photos", source, "--json"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def put(s3: Objects, bucket: str, tree: Path) -> None:
    """Upload a folder as consoles do, with an empty object for each folder."""
    s3.ask("PUT", f"/{bucket}")
    for path in sorted(tree.rglob("*")):
        name = f"/{bucket}/photos/{path.relative_to(tree)}"
        status, _, body = s3.ask("PUT", *((name, path.read_bytes()) if path.is_file() else (f"{name}/",)))
        assert status == 200, body
    s3.ask("PUT", f"/{bucket}/photos/")


def test_a_folder_in_s3_is_imported(s3: Objects, environment: Mapping[str, str], tmp_path: Path) -> None:
    """Also where connections are lost in the middle of files; where all are, one sentence and nothing is left."""
    tree = save_tree(tmp_path / "photos", 5)
    put(s3, "lab", tree)
    allowed = {**environment, "PREFLIGHT_DATA_SOURCES": "s3://lab/"}
    s3.dropping = 1_000
    lost = add("s3://lab/photos/", allowed)
    assert (lost.returncode, lost.stdout) == (2, ""), lost.stderr
    assert lost.stderr.startswith("preflight: s3://lab/photos/ cannot be read ("), lost.stderr
    assert lost.stderr.count("\n") == 1
    assert "hunter2" not in lost.stderr
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    s3.dropping = 3
    done = add("s3://lab/photos/", allowed)
    assert done.returncode == 0, done.stderr
    assert s3.dropping == 0
    assert json.loads(done.stdout)["sha256"] == imported(tmp_path / "other", tree).sha256
    assert "is not below an allowed prefix" in add(f"s3://{BUCKET}/photos", allowed).stderr
    assert "is not there" in add("s3://lab/gone.zip", allowed).stderr


def test_workers_fetch_from_s3_what_another_machine_added(
    s3: Objects, environment: Mapping[str, str], settings: Settings, client: Client, start_worker: StartWorker,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Uploaded once, fetched once, both through a service that fails and connections that are lost."""
    shared = {**environment, "PREFLIGHT_DATASET_URL": STORE}
    elsewhere = {**shared, "PREFLIGHT_DATA_DIR": str(tmp_path / "elsewhere")}
    s3.failing = 4
    added = add(str(save_tree(tmp_path / "photos", 10)), elsewhere)
    assert added.returncode == 0, added.stderr
    version = json.loads(added.stdout)
    store = f"/{BUCKET}/data/stores/{version['sha256']}.safetensors"
    assert add(str(tmp_path / "photos"), elsewhere).returncode == 0
    assert sum(line == f"PUT {store}" for line in s3.passed_on) == 1
    job = {"type": "preflight.train.v1", "dataset": "photos", "epochs": 1, "batch_size": 8, "calibrate": False}
    for name in ("a", "b"):
        client.enqueue(TrainJob.model_validate({**job, "job_id": name}, strict=True))
    s3.passed_on.clear()
    s3.dropping = 2
    fetching = {name: value for name, value in shared.items() if not name.endswith("_DIR")}
    start_worker("--burst", environment=fetching).wait()
    states = [client.status(name) for name in ("a", "b")]
    assert [(state.status, state.dataset) for state in states] == [("finished", "photos@1")] * 2, states
    assert {state.dataset_sha256 for state in states} == {version["sha256"]}
    assert Catalog(settings.data_dir).find("photos").reference == "photos@1"
    assert s3.dropping == 0
    damaged = bytearray(s3.ask("GET", store)[2])
    damaged[-1] ^= 1
    assert s3.ask("PUT", store, bytes(damaged))[0] == 200
    Catalog(settings.data_dir).store(version["sha256"]).unlink()
    client.enqueue(TrainJob.model_validate({**job, "job_id": "c"}, strict=True))
    start_worker("--burst", environment=fetching).wait()
    assert "has the SHA-256" in (client.status("c").message or "")
