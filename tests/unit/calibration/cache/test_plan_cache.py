"""The plan cache: what it keeps comes back whole, and everything else is a miss and never an error."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue
from support.calibration.findings import FINDING, doubtful
from support.files.damage import Harm, a_pipe, huge, replaced_by

from calibration.cache.plan_cache import (
    CLOCK_TOLERANCE,
    LARGEST_ENTRY,
    LOW_CONFIDENCE_TTL,
    SCHEMA,
    TTL_SECONDS,
    CachedPlan,
    PlanCache,
)
from calibration.cache.signature import Signature
from calibration.result import CalibrationResult

HERE = Signature(
    hardware={"model": "a"}, limits={"cores": 1, "memory_bytes": 2 << 30}, software={},
    workload={"dataset": "mnist", "model": "cnn", "batch_size": 128, "classes": 10}, search={},
)  # fmt: skip
ELSEWHERE = Signature(hardware={"model": "b"}, limits={"cores": 1}, software={}, workload={}, search={})
OTHER = replace(FINDING, why="another finding")

VERSION_1: dict[str, JsonValue] = {
    "schema": "preflight.plan.v1", "signature": HERE.key, "created": time.time(), "predicted_epoch_s": 1.5,
    "confidence": "high", "plan": {"threads": 1, "micro_batch": 32},
}  # fmt: skip
"""An entry of the previous version, but for the fields of its plan that have defaults."""

DAMAGED = "is damaged or of another version"


def entry(directory: Path, signature: Signature = HERE) -> Path:
    """Return the file of an entry."""
    return directory / "plans" / f"{signature.key}.json"


def ledger(directory: Path, signature: Signature = HERE) -> Path:
    """Make the file of the single measurements beside an entry."""
    path = directory / "trials" / f"{signature.key}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def edit(path: Path, **fields: JsonValue) -> None:
    """Replace fields of an entry by hand."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edited(**fields: JsonValue) -> Harm:
    return lambda path: edit(path, **fields)


def with_finding(**fields: JsonValue) -> Harm:
    return lambda path: edit(path, finding={**json.loads(path.read_text())["finding"], **fields})


def with_epoch_s(value: float) -> Harm:
    return lambda path: with_finding(
        prediction={**json.loads(path.read_text())["finding"]["prediction"], "epoch_s": value}
    )(path)


def kept(directory: Path, finding: CalibrationResult = FINDING) -> PlanCache:
    """Return a cache that holds `finding`."""
    cache = PlanCache(directory)
    assert cache.put(HERE, finding) is None
    return cache


def hit(cache: PlanCache, signature: Signature = HERE) -> CachedPlan:
    """Return the entry that a cache has without a warning."""
    found, warning = cache.get(signature)
    assert found is not None
    assert warning is None
    return found


def warned(cache: PlanCache, signature: Signature = HERE) -> str:
    """Return the warning that goes with a miss."""
    found, warning = cache.get(signature)
    assert found is None
    assert warning is not None
    return warning


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    """A finding comes back whole under its own signature, also through another PlanCache."""
    before = time.time()
    kept(tmp_path).put(ELSEWHERE, OTHER)
    found = hit(PlanCache(tmp_path))
    assert (found.finding, found.schema, found.signature) == (FINDING, SCHEMA, HERE.key)
    assert found.what == {
        "dataset": "mnist", "model": "cnn", "batch_size": 128, "cores": 1, "memory_mb": 2048, "processor": "a"
    }  # fmt: skip
    assert before <= found.created <= time.time()
    assert 0 <= found.age_s < 60
    assert not found.expired
    assert hit(PlanCache(tmp_path), ELSEWHERE).finding == OTHER


@pytest.mark.parametrize("idle", [False, True])
def test_a_plan_that_was_found_in_idle_time_serves(tmp_path: Path, idle: bool) -> None:
    """0.25.1 noted of each finding whether it was; any other field that is not known is none of this version."""
    cache = kept(tmp_path)
    with_finding(idle=idle)(entry(tmp_path))
    assert hit(cache).finding == FINDING
    with_finding(idler=idle)(entry(tmp_path))
    assert DAMAGED in warned(cache)


def test_an_entry_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Without its trials of a knob that is gone; one whose plan has several processes is a miss."""
    cache = kept(tmp_path)
    path = entry(tmp_path)
    finding = json.loads(path.read_text())["finding"]
    for plan in (finding["plan"], finding["baseline"], *(trial["plan"] for trial in finding["trials"])):
        plan["processes"] = 1
    skipped = {**finding["trials"][0], "knob": "processes", "verdict": "skipped"}
    skipped["plan"] = {**skipped["plan"], "processes": 2}
    edit(path, finding={**finding, "trials": [*finding["trials"], skipped]})
    assert hit(cache).finding == FINDING
    edit(path, finding={**finding, "plan": {**finding["plan"], "processes": 2}})
    assert DAMAGED in warned(cache)


def test_a_missing_entry_is_a_plain_miss(tmp_path: Path) -> None:
    """Nothing kept, or no directory at all, is a miss without a warning, and looking creates nothing."""
    absent = PlanCache(tmp_path / "absent")
    assert absent.get(HERE) == (None, None)
    assert (absent.entries(), absent.keys(), absent.clear()) == ([], [], 0)
    assert kept(tmp_path).get(ELSEWHERE) == (None, None)
    assert not (tmp_path / "absent").exists()


def test_a_truncated_entry_is_a_miss(tmp_path: Path) -> None:
    """However short an entry was cut, empty included, it is a miss with a warning that names the file."""
    cache = kept(tmp_path)
    path = entry(tmp_path)
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert str(path) in warned(cache)
    path.write_bytes(whole[:-1])
    assert str(path) in warned(cache)


NO_ENTRIES: dict[str, tuple[Harm, str]] = {
    "nothing": (replaced_by(b""), DAMAGED),
    "not utf-8": (replaced_by(b"\xff\xfe\x80"), DAMAGED),
    "deep": (replaced_by(b"[" * 100_000), DAMAGED),
    "the next version": (edited(schema="preflight.plan.v3"), "another schema"),
    "another field": (edited(extra=1), DAMAGED),
    "made yesterday": (edited(created="yesterday"), DAMAGED),
    "made at no time": (edited(created=math.nan), DAMAGED),
    "made in the future": (lambda path: edit(path, created=time.time() + 10 * CLOCK_TOLERANCE), "future"),
    "of another signature": (edited(signature=ELSEWHERE.key), "signature"),
    "middling confidence": (with_finding(confidence="middling"), DAMAGED),
    "no threads": (with_finding(plan={"threads": 0, "micro_batch": 32}), DAMAGED),
    "a prediction of NaN": (with_epoch_s(math.nan), DAMAGED),
    "an empty trial": (with_finding(trials=[{}]), DAMAGED),
    "a sparse terabyte": (huge, f"larger than {LARGEST_ENTRY >> 20} MiB"),
    "a pipe": (a_pipe, "not a regular file"),
}


@pytest.mark.parametrize("name", NO_ENTRIES)
def test_what_is_no_entry_is_a_miss(tmp_path: Path, name: str) -> None:
    """The warning says what is wrong with which file, and the next put replaces it."""
    harm, fault = NO_ENTRIES[name]
    cache = kept(tmp_path)
    harm(entry(tmp_path))
    warning = warned(cache)
    assert fault in warning
    assert str(entry(tmp_path)) in warning
    assert cache.put(HERE, FINDING) is None
    assert hit(cache).finding == FINDING


@pytest.mark.parametrize(
    ("finding", "age_s", "expired"),
    [
        pytest.param(FINDING, -CLOCK_TOLERANCE / 2, False, id="made by a clock that is ahead"),
        pytest.param(FINDING, TTL_SECONDS - 3600, False, id="nearly a week old"),
        pytest.param(FINDING, TTL_SECONDS + 1, True, id="a week old"),
        pytest.param(doubtful(), LOW_CONFIDENCE_TTL - 600, False, id="doubtful, nearly an hour old"),
        pytest.param(doubtful(), LOW_CONFIDENCE_TTL + 1, True, id="doubtful, an hour old"),
    ],
)
def test_an_expired_entry_is_a_plain_miss(
    tmp_path: Path, finding: CalibrationResult, age_s: float, expired: bool
) -> None:
    """After a week, or after an hour where the search was cut short, an entry is a miss without a warning."""
    cache = kept(tmp_path, finding)
    edit(entry(tmp_path), created=time.time() - age_s)
    if expired:
        assert cache.get(HERE) == (None, None)
    else:
        assert hit(cache).finding == finding
    (listed,) = cache.entries()
    assert listed.plan is not None
    assert listed.plan.expired is expired


def test_a_link_in_place_of_an_entry_is_not_followed(tmp_path: Path) -> None:
    """Neither read, though it leads to a whole entry, nor written through."""
    cache = kept(tmp_path)
    elsewhere = tmp_path / "elsewhere.json"
    entry(tmp_path).rename(elsewhere)
    before = elsewhere.read_bytes()
    entry(tmp_path).symlink_to(elsewhere)
    warned(cache)
    assert cache.put(HERE, OTHER) is None
    assert hit(cache).finding == OTHER
    assert elsewhere.read_bytes() == before


def test_an_unwritable_directory_is_a_warning(tmp_path: Path) -> None:
    """Where no directory can be (below a file: root ignores permission bits), put and get only warn."""
    (tmp_path / "file").write_bytes(b"")
    cache = PlanCache(tmp_path / "file" / "cache")
    kept_warning = cache.put(HERE, FINDING)
    assert kept_warning is not None
    assert str(tmp_path) in kept_warning
    warned(cache)
    assert cache.entries() == []


def test_a_directory_in_place_of_an_entry_is_a_warning(tmp_path: Path) -> None:
    """A directory under the entry's name is a miss and a failed put, both with a warning and nothing left over."""
    cache = PlanCache(tmp_path)
    (entry(tmp_path) / "occupied").mkdir(parents=True)
    assert cache.put(HERE, FINDING) is not None
    warned(cache)
    assert list((tmp_path / "plans").iterdir()) == [entry(tmp_path)]


def test_the_last_put_stays_as_one_readable_file(tmp_path: Path) -> None:
    """Puts leave nothing but the last entry, readable for the group, and a reader's open file stays whole."""
    cache = kept(tmp_path)
    with entry(tmp_path).open("rb") as reader:
        first = entry(tmp_path).read_bytes()
        cache.put(HERE, OTHER)
        assert reader.read() == first
    assert hit(cache).finding == OTHER
    assert list((tmp_path / "plans").iterdir()) == [entry(tmp_path)]
    assert entry(tmp_path).stat().st_mode & 0o777 == 0o644


def test_the_newest_is_listed_first_and_what_cannot_serve_last(tmp_path: Path) -> None:
    """Strange files are listed with what is wrong with them; files that are being written are not."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() - 3600)
    cache.put(ELSEWHERE, OTHER)
    damaged = entry(tmp_path).with_name("0damaged.json")
    damaged.write_text("{")
    previous = damaged.with_name("1previous.json")
    previous.write_text(json.dumps(VERSION_1))
    damaged.with_name(".writing.json").touch()
    damaged.with_name("note.txt").touch()
    listed = cache.entries()
    assert [one.key for one in listed] == [ELSEWHERE.key, HERE.key, "0damaged", "1previous"]
    assert [one.path for one in listed] == [entry(tmp_path, ELSEWHERE), entry(tmp_path), damaged, previous]
    assert [one.plan and one.plan.finding for one in listed] == [OTHER, FINDING, None, None]
    assert [one.fault for one in listed] == [None, None, DAMAGED, DAMAGED]


def test_clear_forgets_everything_that_was_measured(tmp_path: Path) -> None:
    """Plans and single measurements, whole or not; and nothing that lies beside them."""
    cache = kept(tmp_path)
    (tmp_path / "mnist.store").touch()
    entry(tmp_path, ELSEWHERE).write_text("damaged")
    ledger(tmp_path)
    ledger(tmp_path).with_name("alone.jsonl").touch()
    noted = tmp_path / "unfinished" / "noted.json"  # by 0.25.1, for idle time
    noted.parent.mkdir()
    noted.touch()
    assert cache.keys() == sorted([HERE.key, ELSEWHERE.key, "alone", "noted"])
    assert cache.clear() == 4
    assert cache.keys() == []
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"mnist.store"}


def test_clear_forgets_one_key(tmp_path: Path) -> None:
    """By its beginning, its single measurements too; no pattern is understood, and no path."""
    cache = kept(tmp_path)
    cache.put(ELSEWHERE, OTHER)
    ledger(tmp_path)
    ledger(tmp_path, ELSEWHERE)
    assert [cache.clear(key) for key in ("*", "../plans/", "x")] == [0, 0, 0]
    assert cache.clear(HERE.key[:8]) == 1
    assert cache.keys() == [ELSEWHERE.key]
    hit(cache, ELSEWHERE)
