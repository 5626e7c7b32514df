"""The plan cache: what it keeps comes back whole, and everything else is a miss and never an error."""

import json
import time
from pathlib import Path

import pytest
from pydantic import JsonValue

from calibration.cache import CLOCK_TOLERANCE, LOW_CONFIDENCE_TTL, SCHEMA, TTL_SECONDS, PlanCache
from calibration.signature import Signature
from training.plan import Plan

HERE = Signature(hardware={"model": "a"}, limits={"cores": 1}, software={}, workload={})
ELSEWHERE = Signature(hardware={"model": "b"}, limits={"cores": 1}, software={}, workload={})
PLAN = Plan(threads=3, micro_batch=48, precision="bfloat16", memory_format="channels_last", allocator="tuned")
OTHERS = Plan(threads=1, micro_batch=32, loader_workers=2, prefetch_factor=4)


def entry(directory: Path, signature: Signature = HERE) -> Path:
    """Return the file of an entry."""
    return directory / "plans" / f"{signature.key}.json"


def edit(path: Path, **fields: JsonValue) -> None:
    """Replace fields of an entry by hand."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def kept(directory: Path) -> PlanCache:
    """Return a cache that holds `PLAN`."""
    cache = PlanCache(directory)
    assert cache.put(HERE, PLAN, 1.25, "high") is None
    return cache


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    """A plan comes back with its figure under its own signature, also through another PlanCache."""
    before = time.time()
    kept(tmp_path).put(ELSEWHERE, OTHERS, 7.5, "high")
    found, warning = PlanCache(tmp_path).get(HERE)
    assert found is not None
    assert (found.plan, found.predicted_epoch_s, warning) == (PLAN, 1.25, None)
    assert (found.schema, found.signature) == (SCHEMA, HERE.key)
    assert before <= found.created <= time.time()
    other, warning = PlanCache(tmp_path).get(ELSEWHERE)
    assert other is not None
    assert (other.plan, other.predicted_epoch_s, warning) == (OTHERS, 7.5, None)


def test_the_last_put_stays(tmp_path: Path) -> None:
    """A second put under the same signature replaces the first."""
    cache = kept(tmp_path)
    cache.put(HERE, OTHERS, 0.5, "high")
    found, _ = cache.get(HERE)
    assert found is not None
    assert found.plan == OTHERS


def test_a_missing_entry_is_a_plain_miss(tmp_path: Path) -> None:
    """Nothing kept, or no directory at all, is a miss without a warning, and looking creates nothing."""
    assert PlanCache(tmp_path / "absent").get(HERE) == (None, None)
    assert kept(tmp_path).get(ELSEWHERE) == (None, None)
    assert not (tmp_path / "absent").exists()


def test_a_truncated_entry_is_a_miss(tmp_path: Path) -> None:
    """However short an entry was cut, it is a miss with a warning that names the file."""
    cache = kept(tmp_path)
    path = entry(tmp_path)
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found, warning = cache.get(HERE)
        assert found is None
        assert warning is not None
        assert str(path) in warning


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
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": "preflight.plan.v2"},
        {"schema": None},
        {"extra": 1},
        {"confidence": "middling"},
        {"created": "yesterday"},
        {"plan": {"threads": 0, "micro_batch": 32}},
        {"plan": {"threads": 1, "micro_batch": 32, "prefetch_factor": 2}},
        {"plan": {"threads": 1, "micro_batch": 32, "gpu": True}},
        {"predicted_epoch_s": None},
    ],
    ids=json.dumps,
)
def test_another_schema_is_a_miss(tmp_path: Path, fields: dict[str, JsonValue]) -> None:
    """An entry of another version, or with a plan that cannot be, is a miss with a warning."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), **fields)
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None


NO_NUMBERS = pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
"""What Python's json reads and writes, and nobody can count with."""


@NO_NUMBERS
def test_a_time_that_is_no_number_is_a_miss(tmp_path: Path, value: float) -> None:
    """An entry made at no time is a miss."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=value)
    assert cache.get(HERE)[0] is None


@NO_NUMBERS
def test_a_figure_that_is_no_number_is_a_miss(tmp_path: Path, value: float) -> None:
    """NaN and infinity never come out of the cache as a prediction."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), predicted_epoch_s=value)
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None


def test_a_foreign_entry_is_a_miss(tmp_path: Path) -> None:
    """A whole entry that was copied under the name of another signature is a miss with a warning."""
    cache = kept(tmp_path)
    entry(tmp_path, ELSEWHERE).write_bytes(entry(tmp_path).read_bytes())
    found, warning = cache.get(ELSEWHERE)
    assert found is None
    assert warning is not None
    assert "signature" in warning


def test_an_entry_from_the_future_is_a_miss(tmp_path: Path) -> None:
    """Beyond the tolerance for clocks that differ, an entry from the future is a miss with a warning."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() + CLOCK_TOLERANCE / 2)
    found, warning = cache.get(HERE)
    assert found is not None
    assert warning is None
    edit(entry(tmp_path), created=time.time() + 10 * CLOCK_TOLERANCE)
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None
    assert "future" in warning


def test_an_expired_entry_is_a_plain_miss(tmp_path: Path) -> None:
    """After a week an entry is a miss without a warning; shortly before it is a hit."""
    cache = kept(tmp_path)
    edit(entry(tmp_path), created=time.time() - TTL_SECONDS + 3600)
    assert cache.get(HERE)[0] is not None
    edit(entry(tmp_path), created=time.time() - TTL_SECONDS - 1)
    assert cache.get(HERE) == (None, None)


def test_a_doubtful_entry_expires_sooner(tmp_path: Path) -> None:
    """A plan from a search that was cut short is a plain miss after an hour already."""
    cache = PlanCache(tmp_path)
    cache.put(HERE, PLAN, 1.0, "low")
    edit(entry(tmp_path), created=time.time() - LOW_CONFIDENCE_TTL + 600)
    found, _ = cache.get(HERE)
    assert found is not None
    assert found.confidence == "low"
    edit(entry(tmp_path), created=time.time() - LOW_CONFIDENCE_TTL - 1)
    assert cache.get(HERE) == (None, None)


def test_a_miss_is_healed_by_the_next_put(tmp_path: Path) -> None:
    """A damaged entry is replaced by the next put."""
    cache = kept(tmp_path)
    entry(tmp_path).write_bytes(b"")
    assert cache.put(HERE, PLAN, 1.0, "high") is None
    assert cache.get(HERE)[0] is not None


def test_an_unwritable_directory_is_a_warning(tmp_path: Path) -> None:
    """Where no directory can be (below a file: root ignores permission bits), put and get only warn."""
    (tmp_path / "file").write_bytes(b"")
    cache = PlanCache(tmp_path / "file" / "cache")
    kept_warning = cache.put(HERE, PLAN, 1.0, "high")
    assert kept_warning is not None
    assert str(tmp_path) in kept_warning
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None


def test_a_directory_in_place_of_an_entry_is_a_warning(tmp_path: Path) -> None:
    """A directory under the entry's name is a miss and a failed put, both with a warning and nothing left over."""
    cache = PlanCache(tmp_path)
    (entry(tmp_path) / "occupied").mkdir(parents=True)
    assert cache.put(HERE, PLAN, 1.0, "high") is not None
    found, warning = cache.get(HERE)
    assert found is None
    assert warning is not None
    assert list((tmp_path / "plans").iterdir()) == [entry(tmp_path)]


def test_put_leaves_one_readable_file(tmp_path: Path) -> None:
    """Puts leave nothing but the entry, readable for the group, and a reader's open file stays whole."""
    cache = kept(tmp_path)
    with entry(tmp_path).open("rb") as reader:
        first = entry(tmp_path).read_bytes()
        cache.put(HERE, OTHERS, 2.0, "high")
        assert reader.read() == first
    assert list((tmp_path / "plans").iterdir()) == [entry(tmp_path)]
    assert entry(tmp_path).stat().st_mode & 0o777 == 0o644
