"""Child processes, real ones: what they answer, how they end, and that nothing of them stays behind."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from groups import new_cgroup
from pydantic import JsonValue
from safetensors.torch import load_file

from training.artifacts.predictions import PREDICTIONS, read
from training.artifacts.publish import MANIFEST, MODEL
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data import prepare_child
from training.data.batches import normalise
from training.data.dataset_store import StoreInfo, open_store, read_info
from training.data.prepare_child import PrepareRequest
from training.errors import (
    NAMED,
    Cancelled,
    ChildFailed,
    ChildKilled,
    DatasetError,
    InvalidConfig,
    OutOfMemory,
    PreflightError,
)
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.models.cnn import build
from training.process.child import ENVELOPE, Child, Envelope, follow, raise_failure
from training.process.journal import JournalReader, Record

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=3, batch_size=64)
PLAN = Plan(threads=1, micro_batch=64, memory_format="channels_last")


def nothing() -> None:
    """Do nothing while waiting."""


def training(store: StoreInfo, directory: Path, spec: TrainSpec) -> Child:
    """Start the real training child; its artifact goes to `directory/model`."""
    request = TrainingRequest(
        spec=spec, plan=PLAN, store=store.path, artifact=directory / "model", facts={"job_id": "a job"}
    )
    return Child(training_child.MODULE, training_child.REQUEST.dump_json(request), directory, dict(os.environ))


def pid(child: Child) -> int:
    """Return the child's process id, which the service itself has no use for."""
    return child._process.pid


def gone(process: int) -> bool:
    """Whether a process has ended within ten seconds; a zombie that nobody has collected counts as ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def number(value: JsonValue) -> float:
    """Return a JSON number as a float."""
    assert isinstance(value, int | float)
    return float(value)


def test_a_training_child_trains_reports_and_leaves_its_model(digits_store: StoreInfo, tmp_path: Path) -> None:
    """start, progress and epoch records, then done; the saved model scores in a fresh model what was reported."""
    with training(digits_store, tmp_path, SPEC) as child:
        records = list(follow(child, nothing))
        assert child.ending().returncode == 0
    kinds = [record.kind for record in records]
    assert (kinds[0], kinds[-1]) == ("start", "done")
    assert set(kinds[1:-1]) == {"progress", "epoch"}
    epochs = [record.payload for record in records if record.kind == "epoch"]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert [record.payload["epoch"] for record in records if record.payload.get("step") == 21] == [1, 2, 3]
    done = records[-1].payload

    store = open_store(digits_store.path)
    model = build("cnn", digits_store.shape, digits_store.classes)
    model.load_state_dict(load_file(tmp_path / "model" / MODEL))
    model.eval()
    with torch.inference_mode():
        logits = model(normalise(store.test_images, digits_store.mean, digits_store.std, "contiguous"))
    right = int((logits.argmax(1) == store.test_labels).sum())
    assert number(done["test_accuracy"]) == right / digits_store.test_count >= 0.9

    digest = hashlib.sha256((tmp_path / "model" / MODEL).read_bytes()).hexdigest()
    assert (done["artifact"], done["model_sha256"]) == (str(tmp_path / "model"), digest)
    manifest = json.loads((tmp_path / "model" / MANIFEST).read_text())
    assert manifest["sha256"][MODEL] == digest
    probabilities, labels = read(tmp_path / "model" / PREDICTIONS)
    assert labels.tolist() == store.test_labels.tolist()
    assert torch.allclose(torch.from_numpy(probabilities), logits.softmax(1), atol=1e-4)
    assert {**manifest["metrics"], "artifact": str(tmp_path / "model"), "model_sha256": digest} == done
    assert (manifest["job_id"], manifest["history"]) == ("a job", epochs)
    assert manifest["spec"] == dataclasses.asdict(SPEC)
    assert manifest["plan"] == dataclasses.asdict(PLAN)


def test_a_killed_training_says_so(digits_store: StoreInfo, tmp_path: Path) -> None:
    """SIGKILL amid training is a ChildKilled that says signal 9; what came before was read."""
    heard: list[Record] = []
    with training(digits_store, tmp_path, dataclasses.replace(SPEC, epochs=10_000)) as child:
        with pytest.raises(ChildKilled, match=r"training\.loop\.child process was killed \(signal 9\)"):
            for record in follow(child, nothing):
                heard.append(record)
                if record.kind == "progress":
                    os.kill(pid(child), signal.SIGKILL)
        assert gone(pid(child))
    assert [record.kind for record in heard[:2]] == ["start", "progress"]
    assert not (tmp_path / "model").exists()


def test_a_request_that_cannot_be_met_arrives_with_its_field(digits_store: StoreInfo, tmp_path: Path) -> None:
    """What the child raises, the parent raises: the same class, message and field."""
    with (
        training(digits_store, tmp_path, dataclasses.replace(SPEC, batch_size=1351)) as child,
        pytest.raises(InvalidConfig, match="batch_size is 1351, but digits has 1350 samples") as caught,
    ):
        list(follow(child, nothing))
    assert caught.value.field == "batch_size"


def test_a_training_that_is_asked_to_stop_stops_after_its_step(digits_store: StoreInfo, tmp_path: Path) -> None:
    """SIGTERM amid a training of 10,000 epochs ends it as Cancelled with the step, and leaves no model."""
    last = 0.0
    with training(digits_store, tmp_path, dataclasses.replace(SPEC, epochs=10_000)) as child:
        with pytest.raises(Cancelled, match=r"stopped after step (\d+) of 210000, as asked") as caught:
            for record in follow(child, nothing):
                if record.kind == "progress" and not last:
                    last = (number(record.payload["epoch"]) - 1) * 21 + number(record.payload["step"])
                    child.ask_to_stop()
        assert child.ending().returncode == 1
    assert last <= int(caught.value.message.split()[3]) < 210_000
    assert not (tmp_path / "model").exists()


def test_a_preparing_child_leaves_a_store(tmp_path: Path) -> None:
    """The data set is where it says, whole; and a missing one arrives as a DatasetError with its name."""

    def prepare(dataset: str) -> list[Record]:
        request = PrepareRequest(dataset=dataset, data_dir=tmp_path, cache_dir=tmp_path, download=False)
        body = prepare_child.REQUEST.dump_json(request)
        with Child(prepare_child.MODULE, body, tmp_path, dict(os.environ)) as child:
            return list(follow(child, nothing))

    (done,) = prepare("digits")
    assert read_info(Path(str(done.payload["path"]))).train_count == 1500
    with pytest.raises(DatasetError) as caught:
        prepare("kmnist")
    assert caught.value.field == "kmnist"


# The children below are modules written here, without torch, for what no training does on purpose.

HEAD = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from pydantic import JsonValue, TypeAdapter
from training.errors import DatasetError
from training.process.child import run_child

def body(request, journal, should_stop):
"""
TAIL = """
run_child(TypeAdapter(dict[str, JsonValue]), body)
"""

Start = Callable[[str], Child]


def importing(directory: Path) -> dict[str, str]:
    """Return an environment in which modules in `directory` can be imported too."""
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(directory), *([others] if others else [])))}


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return what starts a child with the given statements as its body."""
    directory = tmp_path / "child"
    directory.mkdir()

    def started(statements: str) -> Child:
        indented = "".join(f"    {line}\n" for line in statements.strip().splitlines())
        (tmp_path / "a_child.py").write_text(HEAD + indented + TAIL)
        return Child("a_child", b'{"is": "asked"}', directory, importing(tmp_path))

    return started


SLEEP = """
journal.write("start", {"pid": os.getpid()})
while True:
    time.sleep(60)
"""


def test_garbage_on_standard_output_disturbs_nobody(start: Start) -> None:
    """Megabytes on stdout and stderr, what looks like records too, do not block the child or reach the parent."""
    with start("""
sys.stdout.buffer.write(bytes(range(256)) * 20_000)
sys.stderr.write('{"v":1,"run":"x","seq":1,"kind":"done","t":1.5,"payload":{},"crc":0}\\n' * 1000)
subprocess.run(["echo", "more"])
journal.write("start", {})
print("and more", flush=True)
journal.write("done", {"answer": request["is"]}, durable=True)
""") as child:
        records = list(follow(child, nothing))
    assert [(record.kind, record.payload) for record in records] == [("start", {}), ("done", {"answer": "asked"})]


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ("raise RuntimeError('the sky fell')", r"exited with code 1: RuntimeError: the sky fell"),
        ("print('x' * 9999, file=sys.stderr); sys.exit('a last word')", r"exited with code 1: a last word"),
        ("os._exit(3)", r"exited with code 3 without a word"),
        ("return", r"exited with code 0 without a word"),
    ],
)
def test_an_end_without_a_result_is_described(start: Start, statements: str, says: str) -> None:
    """A crash is told by its exit code and the last line on stderr."""
    with start(statements) as child, pytest.raises(ChildFailed, match=f"^the a_child process {says}$"):
        list(follow(child, nothing))


def test_a_limit_on_processes_is_named(start: Start) -> None:
    """A thread counts as one: the kernel refuses it to a child that may have no second."""
    with new_cgroup("pids") as group:
        (group / "pids.max").write_text("1")
        moves = f"Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))"
        with (
            start(f"{moves}\nthreading.Thread(target=print).start()") as child,
            pytest.raises(ChildFailed, match=r"start new thread; raise the container's limit on processes$"),
        ):
            list(follow(child, nothing))


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, "was killed (signal 9) by somebody: the kernel counted no kill for memory"),
        (signal.SIGSEGV, "was ended by a segmentation fault (signal 11)"),
        (signal.SIGILL, "was ended by an illegal instruction (signal 4): this processor lacks an instruction that the "
                        "installed build of torch uses"),
        (signal.SIGBUS, "was ended by a bus error (signal 7): a file that it had mapped was cut short, or its disk "
                        "failed"),
        (signal.SIGTERM, "was terminated (signal 15) before it could end by itself"),
        (signal.SIGABRT, "was ended by Aborted (signal 6)"),
    ],
)  # fmt: skip
def test_a_signal_is_described_by_what_it_means(start: Start, number: int, says: str) -> None:
    """The end by a signal is a ChildKilled that says which, and what that is mostly a sign of."""
    with start(f"""
signal.signal({number:d}, signal.SIG_DFL) if {number:d} != signal.SIGKILL else None
os.kill(os.getpid(), {number:d})
""") as child, pytest.raises(ChildKilled) as caught:  # fmt: skip
        list(follow(child, nothing))
    assert caught.value.message == f"the a_child process {says}"


def test_a_mapped_file_that_is_cut_short_is_a_bus_error(start: Start, tmp_path: Path) -> None:
    """What signal 7 says is what happens."""
    with start(f"""
import mmap
with open({str(tmp_path / "mapped")!r}, "w+b") as file:
    file.truncate(1 << 20)
    mapped = mmap.mmap(file.fileno(), 1 << 20)
    file.truncate(0)
mapped[1 << 19]
""") as child, pytest.raises(ChildKilled, match=r"\(signal 7\): a file that it had mapped was cut short"):  # fmt: skip
        list(follow(child, nothing))


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ("raise MemoryError", "memory could not be had (MemoryError)"),
        ("bytearray(1 << 60)", "memory could not be had (MemoryError)"),
        ("import torch; torch.empty(1 << 60, dtype=torch.uint8)", "DefaultCPUAllocator: can't allocate memory: "),
    ],
)
def test_memory_that_cannot_be_had_is_named(start: Start, statements: str, says: str) -> None:
    """Python's MemoryError and torch's RuntimeError arrive as OutOfMemory, with what to do."""
    with start(statements) as child, pytest.raises(OutOfMemory) as caught:
        list(follow(child, nothing))
    assert says in caught.value.message
    assert caught.value.message.endswith("; use a smaller batch_size or give the container more memory")


def test_a_child_is_the_first_victim(start: Start) -> None:
    """When the machine runs out of memory, the kernel takes a child before anything else."""
    with start('journal.write("done", {"score": open("/proc/self/oom_score_adj").read()}, durable=True)') as child:
        (done,) = follow(child, nothing)
    assert done.payload == {"score": "1000\n"}


def test_a_module_that_does_not_exist_is_described(tmp_path: Path) -> None:
    """An interpreter that finds nothing to run is a ChildFailed like any other."""
    with (
        Child("no_such_module", b"{}", tmp_path, dict(os.environ)) as child,
        pytest.raises(ChildFailed, match=r"exited with code 1: .*No module named no_such_module"),
    ):
        list(follow(child, nothing))


def test_the_last_words_of_a_killed_child_are_read(start: Start) -> None:
    """Every record written whole before the kill is handed out, before the failure is."""
    heard: list[JsonValue] = []
    with start("""
for number in range(100):
    journal.write("progress", {"number": number})
os.kill(os.getpid(), signal.SIGKILL)
""") as child, pytest.raises(ChildFailed):  # fmt: skip
        for record in follow(child, nothing):
            heard.append(record.payload["number"])
    assert heard == list(range(100))


def test_the_bell_rings_for_a_record_and_for_the_end(start: Start) -> None:
    """Whoever waits need not look again and again: once for what was written, once for a death without a word."""
    with start("time.sleep(0.5)\njournal.write('start', {})\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)") as child:
        assert not child.wait(0.0)
        assert child.wait(60)
        assert [record.kind for record in child.records()] == ["start"]
        assert child.wait(60)
        assert not child.running()
        assert child.wait(60)


def test_a_parent_that_does_not_listen_holds_up_no_child(start: Start) -> None:
    """The bell holds 65,536 rings; the child writes on, and what it starts itself rings nothing."""
    with start("""
for number in range(70_000):
    journal.write("progress", {})
left_behind = subprocess.Popen(["sleep", "600"], close_fds=False)
journal.write("done", {})
""") as child:  # fmt: skip
        assert child.ending().returncode == 0
        assert child.wait(60)
        assert not child.running()
        assert len(child.records()) == 70_001
        assert child.wait(60)


def test_a_recorded_failure_is_raised_under_its_name(start: Start) -> None:
    """Records before it are handed out; then the child's own error is raised, field included."""
    heard: list[str] = []
    with start("""
journal.write("start", {})
raise DatasetError("it is broken", field="images.gz")
""") as child, pytest.raises(DatasetError, match=r"^it is broken$") as caught:  # fmt: skip
        for record in follow(child, nothing):
            heard.append(record.kind)
    assert (heard, caught.value.field) == (["start"], "images.gz")


def test_every_reason_is_raised_as_its_class() -> None:
    """Each named failure comes back as itself, an unknown one as the base, an unreadable one as ChildFailed."""
    for reason, kind in NAMED.items():
        with pytest.raises(kind) as caught:
            raise_failure(Record(1, "fail", 1.5, {"reason": reason, "message": "so it is", "field": None}))
        assert (type(caught.value), caught.value.message, caught.value.field) == (kind, "so it is", None)
    with pytest.raises(PreflightError) as caught_base:
        raise_failure(Record(1, "fail", 1.5, {"reason": "news", "message": "so it is", "field": "x"}))
    assert (type(caught_base.value), caught_base.value.field) == (PreflightError, "x")
    with pytest.raises(ChildFailed, match="nobody can read"):
        raise_failure(Record(1, "fail", 1.5, {"reason": 3}))


def test_leaving_the_context_ends_the_whole_group(start: Start) -> None:
    """A child that ignores SIGTERM, and the processes it started, are gone when the context is left."""
    with start("""
grandchild = subprocess.Popen(["sleep", "600"])
journal.write("start", {"pid": grandchild.pid})
while True:
    time.sleep(60)
""") as child:
        started = next(follow(child, nothing))
        assert child.running()
    assert child.ending().returncode == -signal.SIGKILL
    assert gone(pid(child))
    assert gone(int(number(started.payload["pid"])))


def test_a_grandchild_does_not_outlive_a_child_that_is_done(start: Start) -> None:
    """What a child leaves running when it ends by itself is ended too."""
    with start("""
grandchild = subprocess.Popen(["sleep", "600"])
journal.write("done", {"pid": grandchild.pid}, durable=True)
""") as child:
        (done,) = follow(child, nothing)
        assert child.ending().returncode == 0
    assert gone(int(number(done.payload["pid"])))


def test_what_interrupts_the_wait_ends_the_child(start: Start) -> None:
    """An exception from the tick, such as a cancellation, passes through, and the child does not survive it."""
    heard: list[Record] = []

    def tick() -> None:
        if heard:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), start(SLEEP) as child:
        for record in follow(child, tick):
            heard.append(record)
    assert gone(pid(child))


def test_ending_a_child_asks_first(start: Start) -> None:
    """`end` gives a child that heeds SIGTERM the time to finish by itself."""
    with start("""
journal.write("start", {})
while not should_stop():
    time.sleep(0.01)
journal.write("progress", {"finished": "properly"})
""") as child:
        next(follow(child, nothing))
        assert child.end(patience=30).returncode == 0
        assert [record.payload for record in child.records()] == [{"finished": "properly"}]


PARENT = """
import os, sys, time
from pathlib import Path
from training.process.child import Child, follow
with Child("a_child", b"{}", Path(sys.argv[1]), dict(os.environ)) as child:
    for record in follow(child, lambda: None):
        print(record.payload["pid"], flush=True)
"""


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """When the parent is killed with SIGKILL and can do nothing, the kernel kills the child."""
    indented = "".join(f"    {line}\n" for line in SLEEP.strip().splitlines())
    (tmp_path / "a_child.py").write_text(HEAD + indented + TAIL)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=importing(tmp_path), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.kill()
    assert gone(child)


def test_a_child_whose_parent_is_gone_already_does_nothing(tmp_path: Path) -> None:
    """A parent that died before the child could ask to die with it is noticed, and the body never runs."""
    (tmp_path / "a_child.py").write_text(HEAD + '    journal.write("done", {})\n' + TAIL)
    envelope = Envelope(run="r", journal=tmp_path / "journal", parent=1, body="{}")
    (tmp_path / "request").write_bytes(ENVELOPE.dump_json(envelope))
    ended = subprocess.run(
        [sys.executable, "-m", "a_child", str(tmp_path / "request")],
        env=importing(tmp_path), check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert JournalReader(tmp_path / "journal", "r").read() == []


def test_a_second_child_in_the_same_directory_is_heard_alone(start: Start) -> None:
    """The journal of a killed child, torn line and all, does not disturb the next one's."""
    with start("""
journal.write("start", {})
os.write(journal._file, b'{"crc":1,"kind":"progre')
os.kill(os.getpid(), signal.SIGKILL)
""") as first, pytest.raises(ChildFailed):  # fmt: skip
        list(follow(first, nothing))
    with start('journal.write("done", {"second": True})') as second:
        assert [record.payload for record in follow(second, nothing)] == [{"second": True}]


def test_a_child_that_has_finished_is_not_killed_on_its_way_out(start: Start) -> None:
    """SIGTERM arrives when Python, at its own end, has given up its handlers: what was done stays done."""
    with start("""
class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):
        kill(me, number)
sys.kept_until_modules_are_cleared = Late()
journal.write("done", {})
""") as child:  # fmt: skip
        assert [record.kind for record in follow(child, nothing)] == ["done"]
        assert child.ending().returncode == 0


ECHO = """
journal.write("start", {})
for line in sys.stdin.buffer:
    if should_stop():
        break
    journal.write("answer", {"heard": line.decode()})
journal.write("done", {})
"""


def listening(directory: Path, statements: str = ECHO, name: str | None = None) -> Child:
    """Start a child that reads its standard input."""
    indented = "".join(f"    {line}\n" for line in statements.strip().splitlines())
    (directory / "a_child.py").write_text(HEAD + indented + TAIL)
    return Child("a_child", b"{}", directory, importing(directory), name=name, listens=True)


def heard(child: Child, count: int) -> list[JsonValue]:
    """Wait for so many answers of a child, and return what they say."""
    answers: list[JsonValue] = []
    deadline = time.monotonic() + 60
    while len(answers) < count:
        assert time.monotonic() < deadline
        answers += [record.payload["heard"] for record in child.records() if record.kind == "answer"]
        time.sleep(0.01)
    return answers


def test_a_listening_child_hears_line_by_line(tmp_path: Path) -> None:
    """Each line arrives when it is sent, whole, however long, and is answered before the next one comes."""
    with listening(tmp_path) as child:
        for line in (b"{}", "ünï".encode(), b"x" * 200_000):
            child.send(line)
            assert heard(child, 1) == [line.decode() + "\n"]


def test_the_end_of_its_input_ends_a_listening_child(tmp_path: Path) -> None:
    """One that waits for a line, and so does not look at its stop flag, ends by itself when it is asked to."""
    with listening(tmp_path) as child:
        next(follow(child, nothing))
        assert child.end(patience=30).returncode == 0
        assert [record.kind for record in child.records()] == ["done"]


def test_sending_to_a_child_that_has_ended_is_no_error(tmp_path: Path) -> None:
    """Nobody hears it; that it has ended is told where its records are read. Nor does ending it again fail."""
    with listening(tmp_path, "os._exit(3)") as child:
        assert child.ending().returncode == 3
        for _ in range(3):
            child.send(b"x" * 100_000)
        assert child.end(0).returncode == 3


def test_a_child_that_does_not_listen_has_nothing_to_read(start: Start) -> None:
    """Its input ends at once, instead of being that of the service."""
    with start('journal.write("done", {"read": sys.stdin.read()}, durable=True)') as child:
        assert [record.payload for record in follow(child, nothing)] == [{"read": ""}]
        child.send(b"to nobody")


def test_named_children_share_a_directory(tmp_path: Path) -> None:
    """At the same time, each with files of its own."""
    with listening(tmp_path, name="one") as one, listening(tmp_path, name="two") as two:
        one.send(b"1")
        two.send(b"2")
        assert heard(two, 1) == ["2\n"]
        assert heard(one, 1) == ["1\n"]
    assert {path.name for path in tmp_path.iterdir()} >= {
        f"{name}.{ending}" for name in ("one", "two") for ending in ("jsonl", "request.json", "stderr")
    }
