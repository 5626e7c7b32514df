"""`preflight models`: aliases by command line."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.worker.command_line import assert_one_sentence, run

from preflight.recognizer.onnx import ONNX
from training.artifacts.model_dir import MODEL, save

pytestmark = pytest.mark.usefixtures("command_environment")
SPEC: dict[str, JsonValue] = {"model": "cnn", "dataset": "mnist"}


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Directory of two models; each has a file in the place of its ONNX export, so that none is made."""
    for job in ("a", "b"):
        saved = save(tmp_path / "artifact" / job, [job.encode()], {"spec": SPEC, "input": {}})
        (saved.directory / ONNX).write_bytes(b"onnx of " + job.encode())
    return tmp_path / "artifact"


def test_models_are_promoted_and_rolled_back(artifacts: Path) -> None:
    for job in ("a", str(artifacts / "b")):
        done = run("models", "promote", job, "--as", "production", "--why", "new\x1b[2J\udcff", "--by", "me", "--json")
        assert done.exit_code == 0, done.output
    promoted = json.loads(done.stdout)
    assert (promoted["alias"], promoted["number"], promoted["job_id"]) == ("production", 2, "b")
    assert (Path(promoted["directory"]) / ONNX).read_bytes() == b"onnx of b"
    assert run("models", "list").stdout.splitlines()[1].split()[:4] == ["production", "b", "cnn", "mnist"]
    shown = run("models", "show", "production").stdout
    assert "\x1b" not in shown
    assert "promotion 2" in shown
    back = run("models", "rollback", "production")
    assert "production is the cnn of job a" in back.stdout
    (listed,) = (json.loads(line) for line in run("models", "list", "--json").stdout.splitlines())
    assert (listed["action"], listed["job_id"]) == ("rollback", "a")
    history = json.loads(run("models", "show", "production", "--json").stdout)["history"]
    assert [entry["number"] for entry in history] == [3, 2, 1]
    assert run("models", "remove", f"production@{promoted['model_sha256']}").stdout.startswith("removed ")
    assert run("models", "remove", "production", "--json").stdout == '{"removed": "production"}\n'
    assert "preflight models promote" in run("models", "list").stdout


def test_mistakes_are_one_sentence(artifacts: Path) -> None:
    assert "has no model of job 'c'" in assert_one_sentence(run("models", "promote", "c", "--as", "x"), 2)
    assert "alias is '../x'" in assert_one_sentence(run("models", "promote", "a", "--as", "../x"), 2)
    assert "promote one first" in assert_one_sentence(run("models", "show", "x"), 2)
    assert run("models", "promote", "a", "--as", "x", "--expect", "0").exit_code == 0
    assert "is at promotion 1" in assert_one_sentence(run("models", "promote", "b", "--as", "x", "--expect", "0"), 2)
    (artifacts / "b" / MODEL).write_bytes(b"damaged")
    assert "no whole model" in assert_one_sentence(run("models", "promote", "b", "--as", "x"), 2)
    (artifacts / "~models" / "y.json").write_text("{")
    listed = run("models", "list")
    assert listed.exit_code == 1
    assert "the file of alias 'y' is damaged" in listed.stderr
    assert run("models", "remove", "x").exit_code == 0
    assert run("models", "list").stdout == ""  # there is one, so that it does not say that there is none
