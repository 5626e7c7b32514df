"""The picture of a calibration: whole, safe and true, whatever was found."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_findings import MIB, OWN, SMALLER, finding, many_trials, memory_fit, nothing_beaten, own_trial, trials
from pages import Page

from calibration.result import Confidence, Confirmation, Finding, Knob, MemoryFit, MemoryProbe, Trial, Verdict
from training.config.plan import Plan
from training.loop.prediction import Prediction
from worker.report import calibration_plots as charts
from worker.report import numbers as figures
from worker.report.calibration import render
from worker.report.calibration_plots import Scale
from worker.report.markup import Markup, tag

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


TYPED = {figures.THIN: " ", "\u2060": "", "\u2013": "-", "\u00d7": "x"}


def plain(words: str) -> str:
    """Return what is read as it is typed: plain spaces, a hyphen in an interval, x for times."""
    return "".join(TYPED.get(character, character) for character in words)


def page_of(found: Finding, title: str = "cnn on mnist") -> str:
    return render(found, title=title, facts=FACTS)


def pictures(page: str) -> list[ElementTree.Element]:
    """Return every SVG of the page, parsed as XML."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314


def points(picture: ElementTree.Element) -> Iterator[tuple[float, float]]:
    """Yield every point that is drawn as shares of the width and of the height; the numbers of axes apart."""
    height = float(picture.get("height") or "nan")

    def share(element: ElementTree.Element, name: str) -> float:
        coordinate = element.attrib[name]
        if coordinate.endswith("%") or coordinate == "0":
            return _across(element, name)
        return float(coordinate) / height

    for element in picture.iter():
        match element.tag:
            case "line":
                yield from ((_across(element, f"x{end}"), share(element, f"y{end}")) for end in (1, 2))
            case "use":
                yield _across(element, "x"), share(element, "y")
            case "rect" if picture.get("class") != "glyph":
                x, y = _across(element, "x"), share(element, "y")
                yield x, y
                yield x + _across(element, "width"), y + share(element, "height")


def _across(element: ElementTree.Element, name: str) -> float:
    coordinate = element.attrib[name]
    assert coordinate.endswith("%") or coordinate == "0"
    return float(coordinate.removesuffix("%")) / 100


def inside(page: str) -> bool:
    """Whether all that is drawn lies within its picture."""
    drawn = [point for picture in pictures(page) for point in points(picture)]
    return all(-1e-4 <= share <= 1.0002 for point in drawn for share in point)


def check(page: str) -> Page:
    """Hold a page against what is true of every page."""
    read = Page(page)
    assert "://" not in page
    assert "img" not in read.tags
    assert not {name for name, _ in read.attributes if name in ("src", "style")}
    assert {value for name, value in read.attributes if name == "href"} <= {f"#{name}" for name in read.ids}
    assert not re.search(r"\b(nan|inf|None)\b", read.text)
    assert inside(page)
    return read


@pytest.mark.parametrize("found", CASES.values(), ids=CASES.keys())
def test_every_page_is_whole_and_self_contained(found: Finding) -> None:
    """Its tags match, nothing comes from outside, and all that is drawn lies within its picture."""
    check(page_of(found))


@pytest.mark.parametrize("found", CASES.values(), ids=CASES.keys())
def test_every_trial_is_there_with_its_note(found: Finding) -> None:
    """No trial is left out, whatever became of it, and each picture of one says in words what it shows."""
    page = page_of(found)
    read = Page(page)
    shown = [picture for picture in pictures(page) if picture.get("class") == "row"]
    assert len(shown) == len(found.trials)
    for trial, picture in zip(found.trials, shown, strict=True):
        assert trial.note in read.text
        assert trial.verdict in read.text
        assert picture.get("role") == "img"
        assert picture.findtext("title")
        assert picture.findtext("desc")


def test_what_a_user_named_stays_text() -> None:
    """Markup in a title, a note, a reason or a fact is shown, not obeyed."""
    found = replace(finding(), why=NASTY, trials=tuple(replace(trial, note=NASTY) for trial in trials()))
    read = check(render(found, title=NASTY, facts={NASTY: NASTY}).replace("//x", "/x"))
    assert read.text.count("<script>alert('x')</script>") > len(found.trials)


def test_characters_that_xml_has_no_place_for_are_replaced() -> None:
    """Control characters and halves of surrogate pairs neither break the page nor its encoding."""
    page = page_of(finding(), title="a\x00b\x1b[31m\ud800")
    page.encode()
    assert "a\ufffdb\ufffd[31m\ufffd" in page


def test_the_figures_are_those_of_the_finding() -> None:
    """What is read is what was found: the gain, the prediction, the trials, memory, and the effort."""
    text = plain(check(page_of(finding())).text)
    for words in (
        "2.09x as fast as your own plan", "4.1 s", "3.9-4.3", "Confidence high.", "from 12 pairs", "2.02-2.15",
        "118 steps of 33.8 ms", "3.98 s", "0.14 s", "0.62 s", "1.54x", "1.51-1.57", "0.67x as fast (0.65-0.70)",
        "cosine 0.982", "known to fit is 768", "2.37 GiB", "331 MiB", "38.7 s of 45.0 s", "2.31 s", "11,082",
        "the processors were not free", "4 cores (quota 2.0)", "3 won",
    ):  # fmt: skip
        assert words in text, words


def test_an_interval_is_drawn_where_its_figures_are() -> None:
    """The line runs from the lower to the upper bound, around the mark at the ratio."""
    picture = next(p for p in pictures(page_of(finding())) if "Trial 6" in (p.findtext("title") or ""))
    ratios = [value for t in trials() for value in (t.ratio, t.low, t.high) if value is not None]
    scale = charts.ratio_scale(ratios)
    line = next(line for line in picture.iter("line") if line.get("class") == "interval won")
    mark = next(picture.iter("use"))
    assert [line.get("x1"), mark.get("x"), line.get("x2")] == [
        charts.percent(scale.share(ratio)) for ratio in (1.188, 1.241, 1.302)
    ]
    assert scale.share(1.188) < scale.share(1.241) < scale.share(1.302)


def test_a_value_beyond_the_scale_is_an_arrow_at_its_end() -> None:
    """A ratio of a milliard neither leaves the picture nor presses the others flat."""
    page = page_of(CASES["extreme ratios"])
    marks = [use.get("href") for picture in pictures(page) for use in picture.iter("use")]
    assert "#m-right" in marks


def test_the_fitted_line_passes_through_the_two_smallest_sizes() -> None:
    """What is drawn as the fit is base + slope * micro-batch, in the coordinates of the probes."""
    picture = next(p for p in pictures(page_of(finding())) if p.findtext("title") == "Memory against micro-batch")
    line = next(line for line in picture.iter("line") if line.get("class") == "fit")
    x1, x2 = (_across(line, f"x{end}") for end in (1, 2))
    y1, y2 = (float(line.attrib[f"y{end}"]) for end in (1, 2))
    for use in [use for use in picture.iter("use") if "fits" in use.attrib["class"]][:2]:
        assert y1 + (_across(use, "x") - x1) * (y2 - y1) / (x2 - x1) == pytest.approx(float(use.attrib["y"]), abs=0.5)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nothing beaten", "Your own plan stays"),
        ("not proven", "The lower bound is not above 1.03x"),
        ("not confirmed", "About 2.09x as fast as your own plan, not confirmed"),
        ("no trial", "No trial was made."),
        ("no figures", "No trial came far enough"),
        ("no memory fit", "Not measured."),
        ("no probes", "No micro-batch is known to fit"),
        ("far budget", "far above the picture"),
        ("nothing beaten", "every trial was measured to its end"),
    ],
)
def test_what_is_missing_is_said(case: str, words: str) -> None:
    """An empty part of the page says why it is empty."""
    assert words in plain(Page(page_of(CASES[case])).text)


def test_differences_from_the_users_plan_are_marked() -> None:
    """Each part of the plan that was changed has a mark, and no other."""
    page = page_of(finding())
    changed = [name for name in ("threads", "micro_batch", "allocator") if getattr(OWN, name) != getattr(SMALLER, name)]
    assert page.count("<strong>● ") == len(changed) == 3


def test_the_same_finding_makes_the_same_page() -> None:
    """Nothing of the moment is on the page."""
    assert page_of(finding()) == page_of(finding())


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (figures.seconds(0.0), "0 s"), (figures.seconds(0.00042), "420 µs"), (figures.seconds(0.0713), "71.3 ms"),
        (figures.seconds(0.99961), "1.00 s"), (figures.seconds(59.94), "59.9 s"), (figures.seconds(600.0), "10.0 min"),
        (figures.seconds(0.14, like=4.12), "0.14 s"), (figures.seconds(40_000.0), "11.1 h"),
        (figures.size(412.4 * MIB), "412 MiB"),
        (figures.size(1010 * MIB), "1,010 MiB"), (figures.size(1659 * MIB), "1.62 GiB"), (figures.size(0.0), "0 MiB"),
        (figures.ratio(1.0), "1.00x"), (figures.ratio(12.34), "12.3x"), (figures.ratio(0.0123), "0.0123x"),
        (figures.number(12_345.6), "12,346"), (figures.number(1e300), "1.0e+300"), (figures.number(0.0), "0"),
        (figures.ratio(math.inf), "∞x"), (figures.number(-math.inf), "-∞"), (figures.seconds(1e308), "2.8e+304 h"),
        (figures.counted(1, "pair"), "1 pair"), (figures.counted(1200, "pair"), "1,200 pairs"),
    ],
)  # fmt: skip
def test_figures_have_three_digits_and_a_unit(shown: str, words: str) -> None:
    """Numbers are rounded to what can be meant, in the unit that fits."""
    assert plain(shown) == words


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (4.123, 3.931, 4.312, ("4.1 s", "3.9-4.3")),
        (4.123, 4.122, 4.124, ("4.12 s", "4.12-4.12")),
        (41.23, 20.0, 60.0, ("41 s", "20-60")),
        (4.1, 4.1, 4.1, ("4.10 s", "4.10-4.10")),
        (0.041, 0.039, 0.043, ("41 ms", "39-43")),
    ],
)
def test_a_duration_is_no_finer_than_its_interval(
    value: float, low: float, high: float, words: tuple[str, str]
) -> None:
    """A wide interval leaves fewer digits."""
    shown, between = figures.seconds_between(value, low, high)
    assert (plain(shown), plain(between)) == words


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.booleans(), st.integers(2, 8))
def test_ticks_lie_on_the_axis(low: float, factor: float, log: bool, most: int) -> None:
    """Ticks are between the ends, in order, and not more than the axis has room for."""
    scale = charts.Scale(low, low * factor, log)
    ticks = scale.ticks(most)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= most + 1
    assert all(0 <= scale.share(tick) <= 1 for tick in ticks)


def test_only_markup_is_left_as_it_is() -> None:
    """Text and attributes are escaped; what is markup already is not escaped twice."""
    assert tag("p", "<b>", Markup("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'


SECONDS = st.floats(0, 1e300)
RATIOS = st.floats(1e-300, 1e300)
SIZES = st.integers(0, 2**60)
COUNTS = st.integers(1, 10**9)
PLANS = st.builds(
    Plan,
    threads=st.integers(1, 1024),
    micro_batch=st.integers(1, 65_536),
    allocator=st.sampled_from(["tuned", "default"]),
)
TRIALS = st.builds(
    Trial, knob=st.sampled_from(get_args(Knob)), plan=PLANS, verdict=st.sampled_from(get_args(Verdict)), note=st.text(),
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
    Finding, baseline=PLANS, plan=PLANS, trials=st.lists(TRIALS, max_size=6).map(tuple),
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


@settings(deadline=None, max_examples=25)
@given(FINDINGS, st.text())
def test_no_finding_is_too_odd_to_be_drawn(found: Finding, title: str) -> None:
    """Whatever the figures, there is a page, and all that is drawn lies within its picture."""
    page = render(found, title=title, facts={})
    Page(page)
    assert inside(page)


def test_values_that_no_float_can_tell_apart_have_one_tick() -> None:
    """Such as the least there is, whose neighbours cannot be a little less."""
    scale = Scale(5e-324, 5e-324, log=True)
    assert scale.ticks() == [5e-324]
    assert scale.share(5e-324) == 0.5
