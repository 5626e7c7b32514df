"""Calibration section of a report: whole, safe and true for any result."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calibration.odd_findings import (
    MIB,
    OWN,
    finding,
    many_trials,
    memory_fit,
    nothing_beaten,
    own_trial,
    trials,
)
from support.web.pages import Page, plain

from calibration.result import CalibrationResult, Confirmation, MemoryFit, MemoryProbe, Trial
from preflight.contract.plan import Plan
from preflight.contract.verdicts import Confidence, TrialKnob, Verdict
from training.prediction import Prediction
from worker.features.report.calibration import calibration_page, winner
from worker.features.report.calibration_plots import MAX_RATIO, clip
from worker.features.report.request import CalibrationReportRequest

FACTS = {"processors": "4 cores (quota 2.0)", "memory": "1.50 GiB"}
NASTY = "</title><script>alert('x')</script>\"&amp;<img src=//x>"

CASES = {
    "usual": finding(),
    "nothing beaten": nothing_beaten(),
    "one trial": replace(nothing_beaten(), trials=(own_trial(),)),
    "no trial": replace(nothing_beaten(), trials=()),
    "no figures": replace(
        finding(),
        trials=(Trial(knob="own", plan=OWN, verdict="failed", note="killed for memory", at=0.0, seconds=2.0),),
    ),
    "not confirmed": replace(finding(), confirmation=None, confidence="low"),
    "not proven": replace(
        finding(), plan=OWN, confirmation=Confirmation(ratio=1.01, low=0.98, high=1.04, pairs=8, proven=False)
    ),
    "no memory fit": replace(finding(), memory=None),
    "no probes": replace(finding(), memory=replace(memory_fit(), probes=(), max_feasible=0)),
    "far budget": replace(finding(), memory=replace(memory_fit(), budget_bytes=96 * 1024 * MIB)),
    "sixty trials": many_trials(60),
    "long names": replace(finding(), why="w" * 500, trials=tuple(replace(t, note="n" * 500) for t in trials())),
    "extreme ratios": replace(
        finding(), trials=(own_trial(), replace(trials()[1], ratio=1e9, low=1e-9, high=1e12), trials()[4])
    ),
}


def page_of(result: CalibrationResult, subject: str = "cnn on mnist", facts: dict[str, str] | None = None) -> str:
    request = CalibrationReportRequest(
        target=Path("unused"), subject=subject, facts=FACTS if facts is None else facts, result=result
    )
    return calibration_page(request)


def check(page: str) -> Page:
    """Check what holds for every page: self-contained, without scripts, every plot whole, no missing number."""
    read = Page(page)
    assert "://" not in page
    assert "img" not in read.tags
    assert {value for name, value in read.attributes if name == "href"} <= {f"#{name}" for name in read.ids}
    assert not re.search(r"\b(nan|inf|None)\b", read.text)
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        picture = ElementTree.fromstring(svg)  # noqa: S314
        assert picture.get("role") == "img"
        assert picture.findtext("title")
        assert picture.findtext("desc")
    return read


@pytest.mark.sampled(4)
@pytest.mark.parametrize("result", CASES.values(), ids=CASES.keys())
def test_every_trial_is_on_a_self_contained_page(result: CalibrationResult) -> None:
    """Each trial has a row with its verdict and its note; those that were run are numbered."""
    read = check(page_of(result))
    number = 0
    for trial in result.trials:
        number += trial.ran
        place = f"{number} " if trial.ran else ""
        assert trial.note in read.text
        knob = "your own plan" if trial.verdict == "own" else trial.knob.replace("_", " ")
        assert re.search(rf"\b{place}{knob}[^→]* .*\b{trial.verdict}\b", read.text)
    trials = read.text.partition("interop ")[0]  # the comparison of both plans, field by field, comes after them
    assert not re.search(rf"\b{number + 1} (allocator|compile)", trials)


def test_plans_that_were_not_run_are_counted_apart() -> None:
    """No trial counts them, and one whose turn did not come is told from one that was not worth it."""
    late = tuple(replace(one, reached=one.knob != "compile") for one in trials())
    text = plain(check(page_of(replace(finding(), trials=late))).text)
    assert "Trials 9 (" in text
    assert "Plans not worth a measurement 1" in text
    assert "Plans not reached before the search ended 1" in text
    assert re.search(r" compile: \S+ → \S+ not reached ", text)


def test_names_stay_text() -> None:
    """Markup in a title, a note, a reason or a fact is shown, not interpreted."""
    result = replace(finding(), why=NASTY, trials=tuple(replace(trial, note=NASTY) for trial in trials()))
    read = check(page_of(result, NASTY, {NASTY: NASTY}).replace("//x", "/x"))
    assert read.text.count("<script>alert('x')</script>") > len(result.trials)


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    """Control characters and halves of surrogate pairs break neither the page nor its encoding."""
    page = page_of(finding(), "a\x00b\x1b[31m\ufffe")
    page.encode()
    assert "a\ufffdb\ufffd[31m\ufffd" in page


def test_the_page_shows_the_numbers_of_the_result() -> None:
    text = plain(check(page_of(finding())).text)
    for words in (
        "2.09x as fast as your own plan", "4.1 s", "3.9-4.3", "Confidence high.", "from 12 pairs", "2.02-2.15",
        "118 steps of 33.8 ms", "3.98 s", "0.14 s", "0.62 s", "1.54x", "1.51-1.57", "0.67x", "0.65-0.70",
        "slower (95 %), stopped early", "cosine 0.982", "known to fit is 768", "2.37 GiB", "331 MiB",
        "Wall time 38.7 s", "importing torch 2.31 s", "measuring, starts apart 45.0 s", "11,082",
        "the machine was busy", "4 cores (quota 2.0)", "3 won",
        "predicted not to fit, not run (the whole batch)", "● tcmalloc",
    ):  # fmt: skip
        assert words in text, words


def test_a_plan_that_stays_is_named_as_such() -> None:
    """Winner, confirmation and plan say that nothing was faster; a gain below the least one is not proven."""
    text = check(page_of(nothing_beaten())).text
    assert "Your own plan stays: no other was proven faster" in text
    assert "no other plan had won" in text
    assert "●" not in text
    unproven = Confirmation(ratio=1.02, low=1.0, high=1.04, pairs=8, proven=False)
    assert winner(replace(finding(), plan=OWN, confirmation=unproven)) == (
        "Your own plan stays: no other was proven faster"
    )
    cut = replace(finding(), plan=replace(OWN, micro_batch=64), confirmation=None)
    assert winner(cut).startswith("Your own plan stays, with smaller batches, as memory demands")


def test_a_doubtful_gain_is_an_interval() -> None:
    """At low confidence no sentence has a single figure; the headline, the plot and the own plan's time agree."""
    sure = replace(finding(), confirmation=Confirmation(ratio=2.0, low=1.9, high=2.1, pairs=8, proven=True))
    text = plain(check(page_of(sure)).text)
    assert "2.00x as fast as your own plan" in text
    assert f"Your own plan {2 * sure.prediction.epoch_s:.2f} s an epoch, by the confirmation" in text
    assert "confirmed" in text
    busy = replace(
        sure, confidence="low", doubt="the machine was busy",
        confirmation=Confirmation(ratio=9.16, low=2, high=6, pairs=3, proven=True),
    )  # fmt: skip
    assert plain(winner(busy)) == "Probably faster than your own plan (2x to 6x; the machine was busy)"
    busy_page = plain(check(page_of(busy)).text)
    assert "9.16" not in busy_page
    assert f"{2 * busy.prediction.epoch_s:.2f} s to {6 * busy.prediction.epoch_s:.2f} s" in busy_page


def test_an_interval_stands_beside_its_trial() -> None:
    text = plain(check(page_of(finding())).text)
    assert re.search(r"5 threads: 4 → 2 won unsure 1\.19-1\.30", text)


def test_a_ratio_beyond_the_plot_is_at_its_edge() -> None:
    """One extreme trial does not press the others flat."""
    assert (clip(1e9), clip(1e-9), clip(1.5)) == (MAX_RATIO, 1 / MAX_RATIO, 1.5)


def test_the_same_result_is_the_same_page() -> None:
    """Nothing of the moment is on the page."""
    assert page_of(finding()) == page_of(finding())


SECONDS = st.floats(0, 1e300)
RATIOS = st.floats(1e-300, 1e300)
SIZES = st.integers(0, 2**60)
COUNTS = st.integers(1, 10**9)
PLANS = st.builds(
    Plan, threads=st.integers(1, 1024), micro_batch=st.integers(1, 65_536),
    allocator=st.sampled_from(["tcmalloc", "default"]),
)  # fmt: skip
TRIALS = st.builds(
    Trial, knob=st.sampled_from(get_args(TrialKnob)), plan=PLANS, verdict=st.sampled_from(get_args(Verdict)),
    note=st.text(),
    at=SECONDS, seconds=SECONDS, steps=COUNTS, step_s=st.none() | SECONDS, predicted_epoch_s=st.none() | SECONDS,
    ratio=st.none() | RATIOS, low=st.none() | RATIOS, high=st.none() | RATIOS,
    fetch_share=st.none() | st.floats(0, 1), peak_bytes=st.none() | SIZES, disturbed=st.booleans(), kept=st.booleans(),
)  # fmt: skip
PROBES = st.builds(
    MemoryProbe, phase=st.sampled_from(["line", "1A", "1B", "1C"]), micro_batch=COUNTS,
    predicted_bytes=st.none() | SIZES, peak_bytes=st.none() | SIZES,
    outcome=st.sampled_from(["fits", "over", "killed", "refused"]),
)  # fmt: skip
FINDINGS = st.builds(
    CalibrationResult, baseline=PLANS, plan=PLANS, trials=st.lists(TRIALS, max_size=6).map(tuple),
    prediction=st.builds(
        Prediction, epoch_s=SECONDS, low_s=SECONDS, high_s=SECONDS, step_s=SECONDS, validation_s=SECONDS, warm_s=SECONDS
    ),
    memory=st.none() | st.builds(
        MemoryFit, probes=st.lists(PROBES, max_size=5).map(tuple), base_bytes=st.floats(-1e18, 1e18),
        sample_bytes=st.floats(-1e18, 1e18), budget_bytes=SIZES, max_feasible=st.integers(0, 10**9),
        capped=st.booleans(),
    ),
    confirmation=st.none() | st.builds(
        Confirmation, ratio=RATIOS, low=RATIOS, high=RATIOS, pairs=COUNTS, proven=st.booleans()
    ),
    confidence=st.sampled_from(get_args(Confidence)), why=st.text(), samples=COUNTS, batch_size=COUNTS,
    steps_per_epoch=COUNTS, budget_s=SECONDS, calibration_seconds=SECONDS, import_seconds=SECONDS,
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(FINDINGS, st.text())
def test_no_result_is_too_odd_for_a_page(result: CalibrationResult, subject: str) -> None:
    check(page_of(result, subject.replace("://", ""), {}))
