"""Child processes: their records, how they end, and that no process is left."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue
from safetensors.torch import load_file
from support.files.cgroups import new_cgroup
from support.worker.process_tree import gone
from support.worker.python_path import importing, write_child
from support.worker.records import number

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import (
    ERRORS_BY_REASON,
    ChildFailed,
    ChildKilled,
    DatasetError,
    InvalidConfig,
    OutOfMemory,
    PreflightError,
)
from preflight.files.journal import JournalReader, Record
from training.artifacts.model_dir import MANIFEST, MODEL
from training.artifacts.predictions import PREDICTIONS, read
from training.data import prepare_child
from training.data.batches import normalise
from training.data.dataset_info import DatasetInfo, read_info
from training.data.dataset_store import open_dataset
from training.data.prepare_child import PrepareRequest
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.models.factory import build
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.request import CHILD_REQUEST, ChildRequest
from training.process.runner import iter_records, raise_failure

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=3, batch_size=64)
PLAN = Plan(threads=1, micro_batch=64, memory_format="channels_last")


def nothing() -> None:
    """Do nothing."""


def training(store: DatasetInfo, directory: Path, spec: TrainSpec) -> Child:
    """Start a training child; its artifact goes to `directory/model`."""
    request = TrainingRequest(
        spec=spec, plan=PLAN, store=store.path, artifact=directory / "model", facts={"job_id": "a job"}
    )
    return Child(training_child.MODULE, training_child.REQUEST.dump_json(request), directory, dict(os.environ))


def pid(child: Child) -> int:
    """Return the process id, which a fork server tells after a moment."""
    while child.pid is None:
        child.wait(0.01)
        assert child.running()
    assert child.pid is not None
    return child.pid


def test_a_training_child_reports_and_saves_its_model(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """A fresh model with the saved weights has the reported accuracy."""
    with training(digits_store, tmp_path, SPEC) as child:
        records = list(iter_records(child, nothing))
        assert child.exit_status().returncode == 0
    kinds = [record.kind for record in records]
    assert (kinds[0], kinds[-1]) == ("start", "done")
    assert set(kinds[1:-1]) == {"model", "progress", "epoch"}
    epochs = [record.payload for record in records if record.kind == "epoch"]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert [record.payload["epoch"] for record in records if record.payload.get("step") == 21] == [1, 2, 3]
    done = records[-1].payload

    store = open_dataset(digits_store.path)
    model = build("cnn", digits_store.shape, digits_store.classes)
    model.load_state_dict(load_file(tmp_path / "model" / MODEL))
    model.eval()
    with torch.inference_mode():
        logits = model(normalise(store.test_images, digits_store.mean, digits_store.std, "contiguous"))
    right = int((logits.argmax(1) == store.test_labels).sum())
    assert number(done["test_accuracy"]) == right / digits_store.test_count >= 0.9

    assert done["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    digest = hashlib.sha256((tmp_path / "model" / MODEL).read_bytes()).hexdigest()
    assert (done["artifact"], done["model_sha256"]) == (str(tmp_path / "model"), digest)
    manifest = json.loads((tmp_path / "model" / MANIFEST).read_text())
    assert manifest["sha256"][MODEL] == digest
    probabilities, labels = read(tmp_path / "model" / PREDICTIONS)
    assert labels.tolist() == store.test_labels.tolist()
    confidence = done["confidence"]
    assert isinstance(confidence, dict)
    temperature = number(confidence["temperature"])
    assert torch.allclose(torch.from_numpy(probabilities), (logits / temperature).softmax(1), atol=1e-3)
    told = {"artifact": str(tmp_path / "model"), "model_sha256": digest, "dataset_sha256": done["dataset_sha256"]}
    assert {**manifest["metrics"], **told} == done
    assert (manifest["job_id"], manifest["history"]) == ("a job", epochs)
    assert manifest["spec"] == dataclasses.asdict(SPEC)
    assert manifest["plan"] == dataclasses.asdict(PLAN)


def test_a_training_that_learned_nothing_says_so(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """With both numbers, as a warning before its end; it is no failure."""
    with training(digits_store, tmp_path, dataclasses.replace(SPEC, epochs=1, learning_rate=1e-9)) as child:
        records = list(iter_records(child, nothing))
    assert [record.kind for record in records][-2:] == ["warning", "done"]
    message, accuracy = str(records[-2].payload["message"]), number(records[-1].payload["test_accuracy"])
    assert message.startswith(f"the model recognizes {accuracy:.1%} of the test samples, no better than chance: ")
    share = int(open_dataset(digits_store.path).test_labels.bincount().max()) / digits_store.test_count
    assert f"the most frequent class alone is {share:.1%} of them" in message


def test_an_invalid_request_raises_with_its_field(digits_store: DatasetInfo, tmp_path: Path) -> None:
    with (
        training(digits_store, tmp_path, dataclasses.replace(SPEC, batch_size=1351)) as child,
        pytest.raises(InvalidConfig, match="batch_size is 1351, but digits has 1350 samples") as caught,
    ):
        list(iter_records(child, nothing))
    assert caught.value.field == "batch_size"


def test_a_preparation_child_writes_the_data_set(tmp_path: Path) -> None:

    def prepare(dataset: str) -> list[Record]:
        request = PrepareRequest(dataset=dataset, data_dir=tmp_path, cache_dir=tmp_path, download=False)
        body = prepare_child.REQUEST.dump_json(request)
        with Child(prepare_child.MODULE, body, tmp_path, dict(os.environ)) as child:
            return list(iter_records(child, nothing))

    (done,) = prepare("digits")
    assert read_info(Path(str(done.payload["path"]))).train_count == 1500
    with pytest.raises(DatasetError) as caught:
        prepare("kmnist")
    assert caught.value.field == "kmnist"


# The children below are modules written here, without torch.

Start = Callable[[str], Child]


@pytest.fixture(params=["fresh", "forked"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a child with these statements as its task, in each of the two ways."""
    directory = tmp_path / "child"
    directory.mkdir()
    environment = importing(tmp_path)
    server = ForkServer(environment, ("training.process.child_main",)) if request.param == "forked" else None

    def started(statements: str) -> Child:
        write_child(tmp_path, "a_child", statements)
        return Child("a_child", b'{"is": "asked"}', directory, environment, server=server)

    if server is None:
        yield started
        return
    server.start()
    yield started
    assert server.running()  # it has forked all of them
    server.stop()


SLEEP = """
journal.write("start", {"pid": os.getpid()})
while True:
    time.sleep(60)
"""


def test_standard_output_is_no_journal(start: Start) -> None:
    """Megabytes on stdout and stderr neither block the child nor reach the parent."""
    with start("""
sys.stdout.buffer.write(bytes(range(256)) * 20_000)
sys.stderr.write('{"v":1,"run":"x","seq":1,"kind":"done","t":1.5,"payload":{},"crc":0}\\n' * 1000)
subprocess.run(["echo", "more"])
journal.write("start", {})
print("and more", flush=True)
journal.write("done", {"answer": request["is"]}, durable=True)
""") as child:
        records = list(iter_records(child, nothing))
    assert [(record.kind, record.payload) for record in records] == [("start", {}), ("done", {"answer": "asked"})]


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("raise RuntimeError('the sky fell')", r"exited with code 1: RuntimeError: the sky fell"),
        ("print('x' * 9999, file=sys.stderr); sys.exit('a last word')", r"exited with code 1: a last word"),
        ("os._exit(3)", r"exited with code 3 and no stderr output"),
        ("return", r"exited with code 0 and no stderr output"),
    ],
)
def test_a_crash_is_described_by_exit_code_and_stderr(start: Start, statements: str, message: str) -> None:
    with start(statements) as child, pytest.raises(ChildFailed, match=f"^the a_child process {message}$"):
        list(iter_records(child, nothing))


def test_a_limit_on_processes_is_reported(start: Start) -> None:
    """A thread counts as a process."""
    with new_cgroup("pids") as group:
        (group / "pids.max").write_text("1")
        moves = f"Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))"
        with (
            start(f"{moves}\nthreading.Thread(target=print).start()") as child,
            pytest.raises(ChildFailed, match=r"start new thread; raise the container's limit on processes$"),
        ):
            list(iter_records(child, nothing))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "was killed (SIGKILL), not by the out-of-memory killer"),
        (signal.SIGSEGV, "was ended by a segmentation fault (SIGSEGV)"),
        (signal.SIGILL, "was ended by an illegal instruction (SIGILL): this processor lacks an instruction that the "
                        "installed build of torch uses"),
        (signal.SIGBUS, "was ended by a bus error (SIGBUS): a file that it had mapped was truncated, or its disk "
                        "failed"),
        (signal.SIGTERM, "was terminated (SIGTERM) before it could end by itself"),
        (signal.SIGABRT, "was ended by SIGABRT"),
    ],
)  # fmt: skip
def test_a_signal_is_described_by_its_usual_cause(start: Start, number: int, message: str) -> None:
    with start(f"""
signal.signal({number:d}, signal.SIG_DFL) if {number:d} != signal.SIGKILL else None
os.kill(os.getpid(), {number:d})
""") as child, pytest.raises(ChildKilled) as caught:  # fmt: skip
        list(iter_records(child, nothing))
    assert caught.value.message == f"the a_child process {message}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("raise MemoryError", "memory allocation failed (MemoryError)"),
        ("bytearray(1 << 60)", "memory allocation failed (MemoryError)"),
        ("import torch; torch.empty(1 << 60, dtype=torch.uint8)", "DefaultCPUAllocator: can't allocate memory: "),
    ],
)
def test_a_failed_allocation_raises_out_of_memory(start: Start, statements: str, message: str) -> None:
    """Python's MemoryError and torch's RuntimeError."""
    with start(statements) as child, pytest.raises(OutOfMemory) as caught:
        list(iter_records(child, nothing))
    assert message in caught.value.message
    assert caught.value.message.endswith("; use a smaller batch_size or give the container more memory")


@pytest.mark.parametrize("start", ["forked"], indirect=True)
def test_a_failed_allocation_on_a_gpu_names_the_gpu(start: Start) -> None:
    """As PyTorch raises it, and so that the supervisor halves the micro-batch."""
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"
    statements = f"import torch; raise torch.OutOfMemoryError({message!r})"
    with start(statements) as child, pytest.raises(OutOfMemory) as caught:
        list(iter_records(child, nothing))
    said = f"memory allocation failed ({message}); use a smaller batch_size or a GPU with more memory"
    assert caught.value.message == said


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        pytest.param("request['is']", "asked", id="its request"),
        pytest.param("sys.stdin.read()", "", id="empty input"),
        pytest.param("open('/proc/self/oom_score_adj').read()", "1000\n", id="the highest oom score"),
    ],
)
def test_what_a_child_is_started_with(start: Start, expression: str, value: str) -> None:
    """What is sent to one that does not listen is ignored."""
    with start(f'journal.write("done", {{"found": {expression}}}, durable=True)') as child:
        assert [record.payload for record in iter_records(child, nothing)] == [{"found": value}]
        child.send(b"ignored")


def test_all_records_of_a_killed_child_are_read(start: Start) -> None:
    seen: list[JsonValue] = []
    with start("""
for number in range(100):
    journal.write("progress", {"number": number})
os.kill(os.getpid(), signal.SIGKILL)
""") as child, pytest.raises(ChildFailed):  # fmt: skip
        for record in iter_records(child, nothing):
            seen.append(record.payload["number"])
    assert seen == list(range(100))


def test_wait_returns_for_a_record_and_for_the_end(start: Start) -> None:
    with start("time.sleep(0.5)\njournal.write('start', {})\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)") as child:
        assert not child.wait(0.0)
        assert child.wait(60)
        assert [record.kind for record in child.records()] == ["start"]
        assert child.wait(60)
        assert not child.running()
        assert child.wait(60)


@pytest.mark.sampled(1)
def test_a_full_notify_pipe_does_not_block_the_child(start: Start) -> None:
    """It holds 65,536 bytes, and is not inherited by what the child starts."""
    with start("""
for number in range(70_000):
    journal.write("progress", {})
left_behind = subprocess.Popen(["sleep", "600"], close_fds=False)
journal.write("done", {})
""") as child:  # fmt: skip
        assert child.exit_status().returncode == 0
        assert child.wait(60)
        assert not child.running()
        assert len(child.records()) == 70_001
        assert child.wait(60)


def test_a_recorded_failure_is_raised_as_its_class(start: Start) -> None:
    seen: list[str] = []
    with start("""
journal.write("start", {})
raise DatasetError("it is broken", field="images.gz")
""") as child, pytest.raises(DatasetError, match=r"^it is broken$") as caught:  # fmt: skip
        for record in iter_records(child, nothing):
            seen.append(record.kind)
    assert (seen, caught.value.field) == (["start"], "images.gz")


def test_every_reason_is_raised_as_its_class() -> None:
    for reason, kind in ERRORS_BY_REASON.items():
        with pytest.raises(kind) as caught:
            raise_failure(Record(1, "fail", 1.5, {"reason": reason, "message": "so it is", "field": None}))
        assert (type(caught.value), caught.value.message, caught.value.field) == (kind, "so it is", None)
    with pytest.raises(PreflightError) as caught_base:
        raise_failure(Record(1, "fail", 1.5, {"reason": "news", "message": "so it is", "field": "x"}))
    assert (type(caught_base.value), caught_base.value.field) == (PreflightError, "x")
    with pytest.raises(ChildFailed, match="invalid record"):
        raise_failure(Record(1, "fail", 1.5, {"reason": 3}))


def test_leaving_the_context_ends_the_process_group(start: Start) -> None:
    """Although the child ignores SIGTERM."""
    with start("""
grandchild = subprocess.Popen(["sleep", "600"])
journal.write("start", {"pid": grandchild.pid})
while True:
    time.sleep(60)
""") as child:
        started = next(iter_records(child, nothing))
        assert child.running()
    assert child.exit_status().returncode == -signal.SIGKILL
    assert gone(pid(child))
    assert gone(int(number(started.payload["pid"])))


def test_a_grandchild_ends_with_a_child_that_is_done(start: Start) -> None:
    with start("""
grandchild = subprocess.Popen(["sleep", "600"])
journal.write("done", {"pid": grandchild.pid}, durable=True)
""") as child:
        (done,) = iter_records(child, nothing)
        assert child.exit_status().returncode == 0
    assert gone(int(number(done.payload["pid"])))


def test_an_exception_of_the_check_ends_the_child(start: Start) -> None:
    seen: list[Record] = []

    def tick() -> None:
        if seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), start(SLEEP) as child:
        for record in iter_records(child, tick):
            seen.append(record)
    assert gone(pid(child))


def test_end_sends_sigterm_first(start: Start) -> None:
    with start("""
journal.write("start", {})
while not should_stop():
    time.sleep(0.01)
journal.write("progress", {"finished": "properly"})
""") as child:
        next(iter_records(child, nothing))
        assert child.end(timeout=30).returncode == 0
        assert [record.payload for record in child.records()] == [{"finished": "properly"}]


PARENT = """
import os, sys, time
from pathlib import Path
from training.process.child import Child
from training.process.runner import iter_records
with Child("a_child", b"{}", Path(sys.argv[1]), dict(os.environ)) as child:
    for record in iter_records(child, lambda: None):
        print(record.payload["pid"], flush=True)
"""


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed with SIGKILL."""
    write_child(tmp_path, "a_child", SLEEP)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=importing(tmp_path), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.kill()
    assert gone(child)


def test_a_child_of_a_dead_parent_does_nothing(tmp_path: Path) -> None:
    write_child(tmp_path, "a_child", 'journal.write("done", {})')
    envelope = ChildRequest(task="a task", run="r", journal=tmp_path / "journal", body="{}")
    (tmp_path / "request").write_bytes(CHILD_REQUEST.dump_json(envelope))
    ended = subprocess.run(
        [sys.executable, "-m", "a_child", str(tmp_path / "request"), "1", "1"],
        env=importing(tmp_path), check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert JournalReader(tmp_path / "journal", "r").read() == []


def test_a_second_child_in_the_directory_is_read_alone(start: Start) -> None:
    """The first one left a torn line."""
    with start("""
journal.write("start", {})
os.write(journal._file, b'{"crc":1,"kind":"progre')
os.kill(os.getpid(), signal.SIGKILL)
""") as first, pytest.raises(ChildFailed):  # fmt: skip
        list(iter_records(first, nothing))
    with start('journal.write("done", {"second": True})') as second:
        assert [record.payload for record in iter_records(second, nothing)] == [{"second": True}]


def test_a_late_sigterm_does_not_kill_a_finished_child(start: Start) -> None:
    """At exit Python has restored the default handler."""
    with start("""
class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):
        kill(me, number)
sys.kept_until_modules_are_cleared = Late()
journal.write("done", {})
""") as child:  # fmt: skip
        assert [record.kind for record in iter_records(child, nothing)] == ["done"]
        assert child.exit_status().returncode == 0


ECHO = """
journal.write("start", {})
for line in sys.stdin.buffer:
    if should_stop():
        break
    journal.write("answer", {"line": line.decode()})
journal.write("done", {})
"""


def listening(directory: Path, statements: str = ECHO, name: str | None = None) -> Child:
    """Start a child that reads its standard input."""
    write_child(directory, "a_child", statements)
    return Child("a_child", b"{}", directory, importing(directory), name=name, listens=True)


def answers_of(child: Child, count: int) -> list[JsonValue]:
    """Return the next `count` answers of a child."""
    answers: list[JsonValue] = []
    deadline = time.monotonic() + 60
    while len(answers) < count:
        assert time.monotonic() < deadline
        answers += [record.payload["line"] for record in child.records() if record.kind == "answer"]
        time.sleep(0.01)
    return answers


def test_a_listening_child_reads_line_by_line(tmp_path: Path) -> None:
    """The end of its input ends it."""
    with listening(tmp_path) as child:
        for line in (b"{}", "ünï".encode(), b"x" * 200_000):
            child.send(line)
            assert answers_of(child, 1) == [line.decode() + "\n"]
        assert child.end(timeout=30).returncode == 0
        assert [record.kind for record in child.records()] == ["done"]


def test_sending_to_a_child_that_has_ended_is_no_error(tmp_path: Path) -> None:
    with listening(tmp_path, "os._exit(3)") as child:
        assert child.exit_status().returncode == 3
        for _ in range(3):
            child.send(b"x" * 100_000)
        assert child.end(0).returncode == 3


def test_named_children_share_a_directory(tmp_path: Path) -> None:
    with listening(tmp_path, name="one") as one, listening(tmp_path, name="two") as two:
        one.send(b"1")
        two.send(b"2")
        assert answers_of(two, 1) == ["2\n"]
        assert answers_of(one, 1) == ["1\n"]
    files = {f"{name}.{ending}" for name in ("one", "two") for ending in ("jsonl", "request.json", "stderr")}
    assert {path.name for path in tmp_path.iterdir()} >= files
