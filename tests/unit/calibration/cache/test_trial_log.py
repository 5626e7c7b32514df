"""The ledger: what one calibration noted, the next one knows, whatever happened to the file in between."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from support.calibration.findings import FASTEST, OWN, TCMALLOC, TRIALS
from support.files.damage import Harm, a_directory, a_pipe

from calibration.cache.plan_cache import CLOCK_TOLERANCE, TTL_SECONDS
from calibration.cache.trial_log import DECIDED, MAX_BYTES, TrialLog
from calibration.result import Trial
from preflight.contract.plan import Plan
from preflight.contract.verdicts import Verdict
from preflight.files.journal import encode

WON = TRIALS[1]
"""Of tcmalloc against the user's own plan."""


def plan_payload(plan: Plan) -> dict[str, JsonValue]:
    """Return what is noted of an attempt."""
    payload: dict[str, JsonValue] = json.loads(json.dumps({"plan": asdict(plan)}))
    return payload


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a ledger shall lie; its directory does not exist yet."""
    return tmp_path / "trials" / "key.jsonl"


def calibrated(path: Path) -> None:
    """Leave what a calibration does that ends well: one plan that won, one whose process was lost."""
    with TrialLog(path) as ledger:
        ledger.attempt(TCMALLOC)
        ledger.record(WON, OWN)
        ledger.attempt(FASTEST)
        ledger.mark_ok(FASTEST)


def suspects(path: Path) -> set[Plan]:
    """Return the plans that a new ledger suspects."""
    with TrialLog(path) as ledger:
        return {plan for plan in (OWN, TCMALLOC, FASTEST) if ledger.crashed_before(plan)}


def known(path: Path, best: Plan = OWN, plan: Plan = TCMALLOC) -> Trial | None:
    """Return the trial of two plans that a new ledger knows."""
    with TrialLog(path) as ledger:
        return ledger.lookup(best, plan)


def knows(path: Path) -> bool:
    """Whether a new ledger knows the trial of `calibrated`, and suspects nothing of it."""
    assert suspects(path) == set()
    assert known(path) in (None, WON)
    return known(path) is not None


def test_a_trial_comes_back_as_it_was(path: Path) -> None:
    """For the same two plans, in the same roles, and for no others."""
    calibrated(path)
    assert [known(path, *plans) for plans in ((OWN, TCMALLOC), (TCMALLOC, OWN), (OWN, FASTEST))] == [WON, None, None]
    assert knows(path)


def test_without_reuse_nothing_is_adopted_but_suspects_stay(path: Path) -> None:
    """A forced calibration measures everything, but not the plan of the same kill."""
    calibrated(path)
    died(path, FASTEST)
    with TrialLog(path, reuse=False) as ledger:
        assert ledger.lookup(OWN, TCMALLOC) is None
        assert ledger.crashed_before(FASTEST)


@pytest.mark.parametrize("verdict", ["won", "level", "lost", "dropped", "rejected", "failed", "skipped", "own"])
def test_only_decisions_are_kept(path: Path, verdict: Verdict) -> None:
    """A failure may be the moment's, and what was never measured is no measurement."""
    trial = replace(WON, verdict=verdict)
    with TrialLog(path) as ledger:
        ledger.record(trial, OWN)
    assert known(path) == (trial if verdict in DECIDED else None)


@pytest.mark.parametrize(("trial", "best"), [(replace(WON, disturbed=True), OWN), (WON, None)])
def test_what_was_disturbed_or_met_nobody_is_not_kept(path: Path, trial: Trial, best: Plan | None) -> None:
    """The next calibration may be quieter; and a figure alone decides nothing between two plans."""
    with TrialLog(path) as ledger:
        ledger.record(trial, best)
    assert not knows(path)


def test_the_last_meeting_counts(path: Path) -> None:
    """What was measured again replaces what was there."""
    calibrated(path)
    again = replace(WON, verdict="lost", ratio=0.9, low=0.8, high=0.95)
    with TrialLog(path) as ledger:
        ledger.record(again, OWN)
    assert known(path) == again


# --- suspects

DIES = """
import json, os, signal, sys
from pathlib import Path
from pydantic import TypeAdapter
from calibration.cache.trial_log import TrialLog
from preflight.contract.plan import Plan

plan = TypeAdapter(Plan).validate_json(sys.argv[2])
with TrialLog(Path(sys.argv[1])) as ledger:
    ledger.attempt(plan)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def died(path: Path, plan: Plan) -> None:
    """Have a process be killed with SIGKILL between the attempt at a plan and whatever would come of it."""
    command = [sys.executable, "-c", DIES, str(path), json.dumps(asdict(plan))]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9


def test_what_a_calibration_did_not_survive_is_a_suspect(path: Path) -> None:
    """The attempt was on disk before it ran; whatever came before it stays known, and several deaths add up."""
    calibrated(path)
    died(path, FASTEST)
    assert suspects(path) == {FASTEST}
    assert known(path) == WON
    died(path, TCMALLOC)
    assert suspects(path) == {FASTEST, TCMALLOC}


def test_a_suspect_stays_one_until_it_runs_after_all(path: Path) -> None:
    """Calibrations that end well without it do not clear it; one that ran it, as it was certainly small, does."""
    died(path, FASTEST)
    with TrialLog(path) as ledger:
        ledger.attempt(TCMALLOC)
        ledger.record(WON, OWN)
    assert suspects(path) == {FASTEST}
    with TrialLog(path) as ledger:
        ledger.attempt(FASTEST)
        ledger.mark_ok(FASTEST)
    assert suspects(path) == set()


def test_an_end_in_order_leaves_no_suspect(path: Path) -> None:
    """A cancellation amid a plan is an exception in a process that lives: nothing was its death."""
    with pytest.raises(KeyboardInterrupt), TrialLog(path) as ledger:
        ledger.attempt(FASTEST)
        raise KeyboardInterrupt
    assert not knows(path)


# --- what may have happened to the file


def test_torn_lines_are_passed_over(path: Path) -> None:
    """Wherever a kill or a full disk cut the file, what is whole before the cut is known, and writing continues."""
    calibrated(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        TrialLog(path).__exit__(None, None, None)
        calibrated(path)
        assert knows(path)


def test_damaged_lines_are_passed_over(path: Path) -> None:
    """A flipped byte costs its line, those before and after it are known."""
    calibrated(path)
    lines = path.read_bytes().splitlines(keepends=True)
    (trial,) = [number for number, line in enumerate(lines) if b'"kind":"trial"' in line]
    lines.insert(trial, lines[trial].replace(b"1.6", b"9.6"))
    path.write_bytes(b"garbage \xff\x00\n[]\n{}\n\n" + b"".join(lines) + b'{"kind":"trial"}\n')
    assert knows(path)


def record(kind: str, payload: dict[str, JsonValue], *, seq: int = 1, now: float | None = None) -> bytes:
    """Return a line that some calibration may have written."""
    return encode("another", seq, kind, time.time() if now is None else now, payload)


@pytest.mark.parametrize(
    "payload", [{}, {"plan": None}, {"plan": {}}, {"plan": {"threads": "many"}}, {"plan": {"threads": 0}}]
)
@pytest.mark.parametrize("kind", ["attempt", "survived", "trial", "unheard of"])
def test_records_of_other_versions_are_passed_over(path: Path, kind: str, payload: dict[str, JsonValue]) -> None:
    """Whole lines that mean nothing to this version are no error."""
    calibrated(path)
    with path.open("ab") as file:
        file.write(record(kind, payload))
    assert knows(path)


@pytest.mark.parametrize(
    ("age_s", "believed"),
    [(TTL_SECONDS + 60, False), (TTL_SECONDS - 60, True), (60 - CLOCK_TOLERANCE, True), (-60 - CLOCK_TOLERANCE, False)],
)
def test_what_is_too_old_or_from_the_future_is_passed_over(path: Path, age_s: float, believed: bool) -> None:
    """As for plans: a week, and clocks that differ a little."""
    path.parent.mkdir()
    path.write_bytes(record("attempt", plan_payload(TCMALLOC), now=time.time() - age_s))
    assert suspects(path) == ({TCMALLOC} if believed else set())


def test_what_is_said_twice_is_said_once(path: Path) -> None:
    """A file system that repeats what was appended changes nothing that was decided."""
    calibrated(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines for _ in range(2)))
    assert knows(path)
    path.write_bytes(b"".join(lines) * 2)
    assert knows(path)


def test_a_huge_file_is_replaced(path: Path) -> None:
    """Below the bound, what is whole among any garbage is known; beyond it, nothing is read, and nothing appended."""
    calibrated(path)
    with path.open("ab") as file:
        file.write(os.urandom(MAX_BYTES // 2))
    assert knows(path)
    path.write_bytes(b"x" * (10 << 20))
    calibrated(path)
    assert path.stat().st_size < 64 << 10
    assert knows(path)


@pytest.mark.parametrize(("least", "expected"), [(0, WON), (WON.steps, WON), (WON.steps + 1, None)])
def test_trials_of_fewer_steps_than_asked_for_are_not_known(path: Path, least: int, expected: Trial | None) -> None:
    calibrated(path)
    with TrialLog(path, least_steps=least) as ledger:
        assert ledger.lookup(OWN, TCMALLOC) == expected


def in_place_of_the_directory(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_bytes(b"")


def a_full_disk(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("obstacle", [in_place_of_the_directory, a_directory, a_pipe, a_full_disk])
def test_a_ledger_that_cannot_be_is_an_empty_one(path: Path, obstacle: Harm) -> None:
    """It is no condition for anything: nothing is raised, and nothing is known."""
    path.parent.mkdir()
    obstacle(path)
    calibrated(path)
    assert TCMALLOC not in suspects(path)


def test_a_full_disk_does_not_stop_a_calibration(small_disk: tuple[Path, Callable[[], None]]) -> None:
    """What no longer fits is left out; what was written before is known."""
    directory, make_room = small_disk
    path = directory / "trials" / "key.jsonl"
    with TrialLog(path) as ledger:
        ledger.attempt(TCMALLOC)
        ledger.record(WON, OWN)
        for _ in range(100):
            ledger.attempt(FASTEST)
            ledger.mark_ok(FASTEST)
    make_room()
    assert known(path) == WON
    assert TCMALLOC not in suspects(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(content=st.binary(max_size=300), place=st.floats(0, 1))
def test_any_content_is_read(path: Path, content: bytes, place: float) -> None:
    """Whatever is written into the file, anywhere, reading raises nothing, and invents nothing."""
    path.unlink(missing_ok=True)
    calibrated(path)
    whole = path.read_bytes()
    at = int(place * len(whole))
    path.write_bytes(whole[:at] + content + whole[at:])
    assert known(path) in (None, WON)
    assert OWN not in suspects(path)
