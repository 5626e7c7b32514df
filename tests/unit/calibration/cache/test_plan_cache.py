"""The plan cache: what it keeps comes back whole, and everything else is a miss and never an error."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from findings import FINDING, doubtful
from pydantic import JsonValue

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
    assert found.what == {"dataset": "mnist", "model": "cnn", "batch_size": 128, "cores": 1, "memory_mb": 2048}
    assert before <= found.created <= time.time()
    assert 0 <= found.age_s < 60
    assert not found.expired
    assert hit(PlanCache(tmp_path), ELSEWHERE).finding == OTHER


def test_the_last_put_stays(tmp_path: Path) -> None:
    """A second put under the same signature replaces the first."""
    cache = kept(tmp_path)
    cache.put(HERE, OTHER)
    assert hit(cache).finding == OTHER


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


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 512,
        b"\xff\xfe\x80",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"not json at all",
    ],
    ids=["zeros", "not utf-8", "null", "list", "empty object", "deep", "text"],
)
def test_garbage_is_a_miss(tmp_path: Path, content: bytes) -> None:
    """A file that is no entry is a miss with a warning."""
    cache = kept(tmp_path)
    entry(tmp_path).write_bytes(content)
    assert "damaged" in warned(cache)


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": "preflight.plan.v3"},
        {"schema": None},
        {"extra": 1},
        {"created": "yesterday"},
        {"what": None},
        {"finding": None},
    ],
    ids=json.dumps,
)
def test_another_schema_is_a_miss(tmp_path: Path, fields: dict[str, JsonValue]) -> None:
    """An entry of another version is a miss with a warning."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), **fields)
    warned(cache)


@pytest.mark.parametrize(
    "fields",
    [
        {"confidence": "middling"},
        {"plan": {"threads": 0, "micro_batch": 32}},
        {"plan": {"threads": 1, "micro_batch": 32, "prefetch_factor": 2}},
        {"plan": {"threads": 1, "micro_batch": 32, "gpu": True}},
        {"prediction": None},
        {"trials": [{}]},
        {"gpu": 1},
    ],
    ids=json.dumps,
)
def test_a_finding_that_cannot_be_is_a_miss(tmp_path: Path, fields: dict[str, JsonValue]) -> None:
    """An entry whose finding has other fields, or a plan that cannot be, is a miss with a warning."""
    cache = kept(tmp_path)
    path = entry(tmp_path)
    edit(path, finding={**json.loads(path.read_text())["finding"], **fields})
    warned(cache)


def test_an_entry_of_the_previous_version_is_replaced(tmp_path: Path) -> None:
    """It is a miss with a warning, listed as what cannot serve, and gone with the next put."""
    cache = PlanCache(tmp_path)
    entry(tmp_path).parent.mkdir()
    entry(tmp_path).write_text(json.dumps(VERSION_1))
    assert "another version" in warned(cache)
    (listed,) = cache.entries()
    assert listed.plan is None
    assert cache.put(HERE, FINDING) is None
    assert hit(cache).finding == FINDING


NO_NUMBERS = pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
"""What Python's json reads and writes, and nobody can count with."""


@NO_NUMBERS
def test_a_time_that_is_no_number_is_a_miss(tmp_path: Path, value: float) -> None:
    """An entry made at no time is a miss."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=value)
    warned(cache)


@NO_NUMBERS
def test_a_figure_that_is_no_number_is_a_miss(tmp_path: Path, value: float) -> None:
    """NaN and infinity never come out of the cache as a prediction."""
    cache = kept(tmp_path)
    path = entry(tmp_path)
    finding = json.loads(path.read_text())["finding"]
    edit(path, finding={**finding, "prediction": {**finding["prediction"], "epoch_s": value}})
    warned(cache)


def test_a_foreign_entry_is_a_miss(tmp_path: Path) -> None:
    """A whole entry that was copied under the name of another signature is a miss with a warning."""
    cache = kept(tmp_path)
    entry(tmp_path, ELSEWHERE).write_bytes(entry(tmp_path).read_bytes())
    assert "signature" in warned(cache, ELSEWHERE)


def test_an_entry_from_the_future_is_a_miss(tmp_path: Path) -> None:
    """Beyond the tolerance for clocks that differ, an entry from the future is a miss with a warning."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() + CLOCK_TOLERANCE / 2)
    hit(cache)
    edit(entry(tmp_path), created=time.time() + 10 * CLOCK_TOLERANCE)
    assert "future" in warned(cache)


def test_an_expired_entry_is_a_plain_miss(tmp_path: Path) -> None:
    """After a week an entry is a miss without a warning; shortly before it is a hit."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() - TTL_SECONDS + 3600)
    hit(cache)
    edit(entry(tmp_path), created=time.time() - TTL_SECONDS - 1)
    assert cache.get(HERE) == (None, None)


def test_a_doubtful_entry_expires_sooner(tmp_path: Path) -> None:
    """A plan from a search that was cut short is a plain miss after an hour already."""
    cache = kept(tmp_path, doubtful())
    edit(entry(tmp_path), created=time.time() - LOW_CONFIDENCE_TTL + 600)
    assert hit(cache).finding.confidence == "low"
    edit(entry(tmp_path), created=time.time() - LOW_CONFIDENCE_TTL - 1)
    assert cache.get(HERE) == (None, None)
    (listed,) = cache.entries()
    assert listed.plan is not None
    assert listed.plan.expired


def test_a_miss_is_healed_by_the_next_put(tmp_path: Path) -> None:
    """A damaged entry is replaced by the next put."""
    cache = kept(tmp_path)
    entry(tmp_path).write_bytes(b"")
    assert cache.put(HERE, FINDING) is None
    hit(cache)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A sparse terabyte under an entry's name is a miss that costs no memory."""
    cache = kept(tmp_path)
    os.truncate(entry(tmp_path), 1 << 40)
    assert f"larger than {LARGEST_ENTRY >> 20} MiB" in warned(cache)


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody ever writes to it; it is a miss with a warning, and the next put replaces it."""
    cache = PlanCache(tmp_path)
    entry(tmp_path).parent.mkdir()
    os.mkfifo(entry(tmp_path))
    assert "not a regular file" in warned(cache)
    assert cache.put(HERE, FINDING) is None
    hit(cache)


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


def test_put_leaves_one_readable_file(tmp_path: Path) -> None:
    """Puts leave nothing but the entry, readable for the group, and a reader's open file stays whole."""
    cache = kept(tmp_path)
    with entry(tmp_path).open("rb") as reader:
        first = entry(tmp_path).read_bytes()
        cache.put(HERE, OTHER)
        assert reader.read() == first
    assert list((tmp_path / "plans").iterdir()) == [entry(tmp_path)]
    assert entry(tmp_path).stat().st_mode & 0o777 == 0o644


def test_the_newest_is_listed_first_and_what_cannot_serve_last(tmp_path: Path) -> None:
    """Strange files are listed with what is wrong with them; files that are being written are not."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() - 3600)
    cache.put(ELSEWHERE, OTHER)
    damaged = entry(tmp_path).with_name("0damaged.json")
    damaged.write_text("{")
    damaged.with_name(".writing.json").touch()
    damaged.with_name("note.txt").touch()
    listed = cache.entries()
    assert [one.key for one in listed] == [ELSEWHERE.key, HERE.key, "0damaged"]
    assert [one.path for one in listed] == [entry(tmp_path, ELSEWHERE), entry(tmp_path), damaged]
    assert listed[0].plan is not None
    assert listed[0].plan.finding == OTHER
    assert [one.fault for one in listed] == [None, None, "is damaged or of another version"]


def test_clear_forgets_everything_that_was_measured(tmp_path: Path) -> None:
    """Plans and single measurements, whole or not; and nothing that lies beside them."""
    cache = kept(tmp_path)
    (tmp_path / "mnist.store").touch()
    entry(tmp_path, ELSEWHERE).write_text("damaged")
    ledger(tmp_path)
    ledger(tmp_path).with_name("alone.jsonl").touch()
    assert cache.keys() == sorted([HERE.key, ELSEWHERE.key, "alone"])
    assert cache.clear() == 3
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
