"""What is tried at the starts of a workload, and what of it stays."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.container.resources import Resources
from preflight.launch.findings import Findings, Process
from preflight.launch.history import History, program_of
from preflight.launch.starts import Before, Start, possible
from preflight.tuner.journal import Record

RESOURCES = Resources(
    cores=2, quota=None, memory_bytes=1 << 30, affinity=frozenset({0, 1}), working_set_bytes=None,
    cores_source="affinity", memory_source="MemTotal", warnings=(),
)  # fmt: skip
COMMAND = ["python", "train.py", "--rate", "0.1"]
TWO: Record = {"threads": 2, "malloc": "untouched", "pinned": False}
START: Record = {
    "what": "start", "own": TWO, "reason": None, "torch": "2", "python": "3", "interop": 2, "interop_at_import": 2,
    "workload": {"shapes": "a", "batch": 64, "workers": 0},
}  # fmt: skip


def ran(step_s: float, *, others: float = 0.0, seconds: float = 60.0, shapes: str = "a") -> Findings:
    """Return what a run leaves whose steps take so long."""
    start: Record = {**START, "workload": {"shapes": shapes, "batch": 64, "workers": 0}}
    summary: Record = {
        "steps": 100, "seconds": seconds, "settings": TWO, "others": others,
        "steady": {"step_s": step_s, "low_s": 0.99 * step_s, "high_s": 1.01 * step_s},
    }  # fmt: skip
    return Findings((Process(1, (start,), summary),), loaded_python=True, loaded_torch=True, failures=())


class Starts:
    """Starts one after the other."""

    def __init__(self, folder: Path, resources: Resources = RESOURCES) -> None:
        self.folder = folder
        self.resources = resources

    def choose(self) -> tuple[History, Start]:
        history = History(self.folder, COMMAND, self.resources, (self.folder.parent / "lib",))
        return history, history.choose({})

    def run(self, found: Findings, status: int = 0) -> tuple[str, list[str]]:
        """Return the trial and what was said."""
        history, start = self.choose()
        return start.trial.name if start.trial else "", history.learn(start, found, status)


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Return the starts of a command where jemalloc is installed, and no huge pages are granted."""
    library = tmp_path / "lib/libjemalloc.so.2"
    library.parent.mkdir()
    library.write_bytes(b"")
    monkeypatch.setattr("preflight.launch.starts.TRANSPARENT", tmp_path / "none")
    return Starts(tmp_path / "cache")


def test_one_setting_after_the_other_is_tried_and_the_faster_stays(starts: Starts) -> None:
    assert starts.run(ran(0.1)) == ("", [])
    assert starts.run(ran(0.08)) == (
        "jemalloc", ["this start tried jemalloc: 1.25x (1.23x to 1.28x); kept for the next starts"]
    )  # fmt: skip
    started = "started with jemalloc, which an earlier start found 1.25x (1.23x to 1.28x) as fast"
    trial, said = starts.run(ran(0.085))
    assert (trial, said[0]) == ("active waiting of threads", started)
    assert said[1].endswith("; not kept")
    trial, said = starts.run(ran(0.08))
    assert trial == "1 inter-op thread"
    assert "1.00x" in said[1] and said[1].endswith("; not kept")
    assert starts.run(ran(0.08)) == ("", [started])
    _, start = starts.choose()
    assert start.environment({"A": "b"})["LD_PRELOAD"].endswith("libjemalloc.so.2")
    assert start.environment({"A": "b"})["A"] == "b"


def test_a_trial_beside_others_is_made_again_but_not_for_ever(starts: Starts) -> None:
    starts.run(ran(0.1))
    for _ in range(2):
        trial, said = starts.run(ran(0.3, others=1.0))
        assert trial == "jemalloc"
        assert said[0].endswith("so the next start tries it again")
    assert "not kept, as other processes disturbed" in starts.run(ran(0.3, others=1.0))[1][0]
    assert starts.run(ran(0.1))[0] != "jemalloc"


def test_a_setting_with_which_the_command_fails_is_not_tried_again(starts: Starts) -> None:
    starts.run(ran(0.1))
    nothing = Findings((), loaded_python=False, loaded_torch=False, failures=())
    trial, said = starts.run(nothing, status=134)
    assert (trial, said) == (
        "jemalloc", ["this start tried jemalloc; it is not tried again, as the command failed"]
    )  # fmt: skip
    assert starts.run(ran(0.1))[0] == "active waiting of threads"


def test_nothing_is_tried_in_a_long_training_or_another_container(starts: Starts) -> None:
    starts.run(ran(0.1, seconds=3600))
    assert starts.choose()[1].settings == ()
    starts.run(ran(0.1))
    assert starts.choose()[1].trial is not None
    assert Starts(starts.folder, replace(RESOURCES, quota=1.0)).choose()[1].settings == ()


def test_a_trial_with_another_workload_is_not_judged(starts: Starts) -> None:
    """The same script with another model: it is known from its first step on, after the start."""
    starts.run(ran(0.1))
    assert starts.run(ran(0.01, shapes="b")) == ("jemalloc", [])
    assert starts.run(ran(0.01, shapes="b")) == ("", [])  # a start for this workload, which is measured
    assert starts.run(ran(0.01, shapes="b"))[0] == "jemalloc"
    starts.run(ran(0.1))
    kept = [json.loads(path.read_text())["kept"] for path in starts.folder.glob("*.json")]
    assert kept == [{}, {}]


@pytest.mark.parametrize(
    "broken", ["", "[]", '{"signature": 5}', '{"seconds": "x"}', '{"base": {"step_s": 1}}', '{"kept": []}']
)
def test_a_broken_record_is_learned_anew(starts: Starts, broken: str) -> None:
    """A disk that was full, or an editor: the command runs, and the trials begin again."""
    starts.run(ran(0.1))
    (path,) = starts.folder.glob("*.json")
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, **json.loads(broken)}) if broken.startswith("{") else broken)
    assert starts.run(ran(0.1)) == ("", [])
    assert starts.run(ran(0.1))[0] == "jemalloc"


@pytest.mark.parametrize(
    ("variable", "kinds"),
    [("LD_PRELOAD", {"waiting", "interop"}), ("KMP_BLOCKTIME", {"allocator", "interop"}),
     ("MALLOC_TOP_PAD_", {"waiting", "interop"}), ("OTHER", {"allocator", "waiting", "interop"})],
)  # fmt: skip
@pytest.mark.usefixtures("starts")
def test_what_the_user_has_set_is_left_alone(variable: str, kinds: set[str], tmp_path: Path) -> None:
    before = Before(threads=2, interop=2, interop_at_import=2, is_compiled=False)
    found = possible({variable: "1"}, before, None, (tmp_path / "lib",))
    assert {each.kind for each in found} == kinds
    own = replace(before, interop=4, threads=1)
    assert not {"interop", "waiting"} & {each.kind for each in possible({}, own, None, (tmp_path / "lib",))}


def test_who_waits_under_a_quota_sleeps(tmp_path: Path) -> None:
    before = Before(threads=2, interop=1, interop_at_import=1, is_compiled=False)
    found = [each for each in possible({}, before, 1.0, (tmp_path,)) if each.kind == "waiting"]
    assert [each.variables for each in found] == [{"OMP_WAIT_POLICY": "PASSIVE"}]


def test_the_program_is_the_command_up_to_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert program_of(["python", "-u", str(script), "--rate", "1"]) == ["python", "-u", str(script)]
    assert program_of(["python", "-m", "train", "--rate", "1"]) == ["python", "-m", "train"]
    assert program_of(["python", "-c", 500 * "pass;"]) == ["python", "-c", 500 * "pass;"]
    assert program_of(["lightning", "fit", "--rate", "1"]) == ["lightning", "fit", "--rate", "1"]


def test_a_script_whose_name_is_not_utf_8_is_learned(starts: Starts) -> None:
    command = ["python", os.fsdecode(b"train\xff.py")]

    def opened() -> History:
        return History(starts.folder, command, RESOURCES, (starts.folder.parent / "lib",))

    opened().learn(Start(), ran(0.1), 0)
    assert opened().choose({}).trial is not None
