"""The sentences at the end of `preflight run`."""

import os
from dataclasses import replace

import pytest

from preflight.launch.block import Ended, block
from preflight.launch.findings import Findings, Process
from preflight.numbers import predicted as foreseen
from preflight.tuner.journal import Record

MIB = 1 << 20
ENDED = Ended(status=0, seconds=200.0, kills=0, memory_limit=1024 * MIB, throttled=0.0, quota=None)
TWO: Record = {"threads": 2, "malloc": "untouched", "pinned": False}
BEST: Record = {"threads": 1, "malloc": "tuned", "pinned": False}
START: Record = {
    "what": "start", "own": TWO, "threads_from": "default", "reason": None, "base_bytes": 300 * MIB,
    "workload": {"batch": 64, "state_bytes": 100 * MIB},
}  # fmt: skip
SUMMARY: Record = {
    "what": "summary", "steps": 1240, "seconds": 182.0, "settings": BEST,
    "gain": {"ratio": 2.1, "low": 1.9, "high": 2.3}, "others": 0.76, "processors": 2, "stolen": 0.0,
    "memory_peak": 612 * MIB, "memory_limit": 1024 * MIB,
}  # fmt: skip
WINNER: Record = {"what": "winner"}


def said(*records: Record, summary: Record = SUMMARY, ended: Ended = ENDED) -> str:
    process = Process(1 << 22, (START, *records), summary)
    return block(Findings((process,), loaded_python=True, loaded_torch=True, failures=()), ended)


def test_what_was_gained_and_who_disturbed() -> None:
    assert said(WINNER) == (
        "preflight: 1,240 steps in 3.03 min with 1 thread and tuned malloc: 2.1x (1.9x to 2.3x) PyTorch's default "
        "here; other processes took 38% of the processors; peak 612 of 1,024 MiB"
    )


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({**SUMMARY, "gain": {"ratio": 1.05, "low": 1.02, "high": 1.08}}, "1.05x (1.02x to 1.08x)"),
        (
            {**SUMMARY, "gain": None, "settings": TWO},
            "2 threads, PyTorch's default: nothing that was tried",
        ),
        (
            {**SUMMARY, "gain": None, "settings": {**TWO, "malloc": "default"}},
            "2 threads, PyTorch's default: nothing that was tried",
        ),
        ({**SUMMARY, "settings": {**TWO, "malloc": "default"}}, "2 threads and fixed malloc thresholds: 2.1x"),
        ({**SUMMARY, "others": 0.02}, "here; peak 612"),
    ],
)
def test_what_is_said_of_other_outcomes(summary: Record, words: str) -> None:
    assert words in said(WINNER, summary=summary)


def test_too_few_steps() -> None:
    assert "too few steps to find something faster" in said(summary={**SUMMARY, "gain": None})


def test_throttling_is_told_by_the_share_of_periods() -> None:
    words = "the quota of 0.5 CPU was used up in 42% of its periods"
    assert words in said(WINNER, ended=replace(ENDED, throttled=0.42, quota=0.5))


def test_a_kill_for_memory_has_limit_peak_and_what_would_fit() -> None:
    last = said(WINNER, ended=replace(ENDED, status=137, kills=1)).splitlines()[-1]
    assert last == (
        "preflight: a process was killed for memory: the limit is 1,024 MiB, after a peak of 612 MiB; batches of 32 "
        "samples instead of 64 take half of the memory beyond 400 MiB for the program, weights and optimizer"
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [(137, "killed (SIGKILL), not by the out-of-memory killer"), (139, "ended by SIGSEGV"), (143, "ended by SIGTERM")],
)
def test_signals_are_named(status: int, words: str) -> None:
    assert words in said(WINNER, ended=replace(ENDED, status=status))


def test_a_prediction_is_compared_with_what_came() -> None:
    predicted: Record = {
        "what": "prediction", "at": 100.0, "done": 50, "total": 1240, "left_s": 170.0, "low_s": 160.0, "high_s": 180.0,
    }  # fmt: skip
    checked: Record = {"what": "checked", "took_s": 172.0}
    line = f"{foreseen(170, 160, 180)} were predicted after 50 steps"
    assert f"{line}; it took 172 s" in said(WINNER, predicted, checked)
    early = said(WINNER, {**predicted, "total": 5000}, checked)
    assert f"{line}; it ended after 1,240 of 5,000 steps" in early


def test_a_training_in_the_background_is_named() -> None:
    process = Process(os.getpid(), (START, WINNER), SUMMARY)
    found = Findings((process,), loaded_python=True, loaded_torch=True, failures=("ValueError: x",))
    text = block(found, ENDED)
    assert f"process {os.getpid()} still trains in the background" in text
    assert "the tuning stopped after an error of its own: ValueError: x" in text
