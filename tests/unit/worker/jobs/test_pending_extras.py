"""What is left of the extras of an attempt, as its directory and its events have it."""

from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue
from support.worker.contexts import ListSink, context_of

from preflight.wire import ArtifactUploaded, ReportReady, TrainResult
from worker.jobs.stages.extras import add_extras, without_told
from worker.jobs.stages.pending_extras import FILE_NAME, Extras, ExtrasFile, pending_attempts, read_pending

RESULT = TrainResult(job_id="j", attempt=1, status="finished")
REPORTED = RESULT.model_copy(update={"report": "/a/report.html"})
REQUEST: dict[str, JsonValue] = {"artifact": "/a", "losses": [[0.5, 2.0]], "group": None}
EXTRAS = Extras(result=RESULT, left=("report", "upload", "mlflow"), requests={"report": REQUEST}, tries=2)
EARLIER = """{
    "extras": {"result": {"job_id": "j", "attempt": 1, "status": "finished"}, "left": ["report", "upload", "mlflow"],
               "onnx": null, "report": {"artifact": "/a", "losses": [[0.5, 2.0]], "group": null}, "tries": 2},
    "rq_id": "r", "owner": "w/1", "request": "0"
}"""
"""The file as 0.25.1 to 0.27.0 wrote it."""


def kept(attempt: Path, extras: Extras) -> bool:
    attempt.mkdir(exist_ok=True)
    return ExtrasFile(attempt, rq_id="r", owner="w/1", request="0").save(extras)


def test_what_is_left_is_found_again(tmp_path: Path) -> None:
    """That of the newest attempt first; nothing where nothing is left."""
    assert kept(tmp_path / "1", EXTRAS)
    assert kept(tmp_path / "2", EXTRAS)
    assert [*pending_attempts(tmp_path)] == [2, 1]
    pending = read_pending(tmp_path, 2)
    assert pending is not None
    assert (pending.extras, pending.owner, pending.rq_id) == (EXTRAS, "w/1", "r")
    assert not kept(tmp_path / "2", Extras(result=RESULT, left=()))
    assert [*pending_attempts(tmp_path)] == [1]


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    assert kept(tmp_path / "1", EXTRAS)
    path = tmp_path / "1" / FILE_NAME
    path.write_bytes(path.read_bytes()[:-2])
    assert read_pending(tmp_path, 1) is None


def test_extras_cannot_be_kept_without_their_directory(tmp_path: Path) -> None:
    """A full or missing disk is no error: this process does them then."""
    assert not ExtrasFile(tmp_path / "gone", rq_id="r", owner="w/1", request="0").save(EXTRAS)


def test_the_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its requests were fields, one for each kind of file."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / FILE_NAME).write_text(EARLIER)
    pending = read_pending(tmp_path, 1)
    assert pending is not None
    assert (pending.extras, pending.owner, pending.rq_id) == (EXTRAS, "w/1", "r")


def test_what_was_told_before_a_kill_is_not_done_again(tmp_path: Path) -> None:
    context = context_of(tmp_path, artifact_url=f"file://{tmp_path}/far", mlflow_uri="http://m")
    header = {"job_id": "j", "attempt": 1, "ts": 1.0}
    report = ReportReady.model_validate({**header, "seq": 5, "report": REPORTED.report})
    run = ArtifactUploaded.model_validate({**header, "seq": 6, "mlflow_uri": "http://m"})
    assert without_told(context, EXTRAS, []) == EXTRAS
    left = without_told(context, EXTRAS, [(report, REPORTED), (run, REPORTED)])
    assert left == replace(EXTRAS, result=REPORTED, left=("upload",), tries=0)


def test_an_extra_that_this_worker_does_not_know_is_left_out(tmp_path: Path) -> None:
    """Its feature was deleted, or its destination is not set any more."""
    sink = ListSink()
    context = context_of(tmp_path, sink)
    extras = Extras(result=RESULT, left=("upload", "of another version"))
    assert add_extras(context, extras) == replace(extras, left=())
    assert sink.events == []
