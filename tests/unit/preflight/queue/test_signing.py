"""Signatures of jobs."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from preflight.errors import InvalidConfig
from preflight.queue.signing import Terms, canonical, sign, verify

KEY = "sixteen letters!"
ROOT = Path(__file__).parents[4]
JOB: dict[str, JsonValue] = {
    "type": "preflight.train.v1", "model": "cnn", "dataset": "mnist", "job_id": "café", "epochs": 3,
    "learning_rate": 0.001, "plan": {"threads": 2, "precision": "bfloat16"},
}  # fmt: skip

TERMS = Terms(signed_at=1_795_000_000, timeout=21_600, result_ttl=604_800, failure_ttl=604_800, retries=2)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def test_the_signed_bytes_are_documented() -> None:
    job: dict[str, JsonValue] = {"type": "preflight.train.v1", "job_id": "a", "dataset": "mnist"}
    text = canonical({"job": job, **asdict(TERMS)}).decode()
    assert text in " ".join((ROOT / "docs" / "reference" / "wire.md").read_text().split())
    assert text in "".join(
        line.strip() for line in (ROOT / "client" / "preflight" / "queue" / "signing.py").read_text().splitlines()
    )


@given(payload=st.dictionaries(st.text(), json_values, max_size=3))
def test_a_signature_is_independent_of_json_formatting(payload: dict[str, JsonValue]) -> None:
    payload = {**payload, "job_id": "a"}
    text = json.dumps(dict(reversed(payload.items())), ensure_ascii=False, indent=2)
    assert verify(json.loads(text), TERMS, sign(payload, TERMS, KEY), KEY)


@pytest.mark.parametrize("key", [KEY, KEY.encode()])
def test_a_key_may_be_text_or_bytes(key: str | bytes) -> None:
    assert sign(JOB, TERMS, key) == sign(JOB, TERMS, KEY)


@pytest.mark.parametrize(("payload", "signature", "key"), [
    ({**JOB, "epochs": 4}, sign(JOB, TERMS, KEY), KEY),
    ({**JOB, "job_id": "b"}, sign(JOB, TERMS, KEY), KEY),
    ({**JOB, "extra": None}, sign(JOB, TERMS, KEY), KEY),
    ({**JOB, "epochs": 3.0}, sign(JOB, TERMS, KEY), KEY),
    (JOB, sign(JOB, TERMS, KEY), KEY + "?"),
    (JOB, sign(JOB, TERMS, KEY).upper(), KEY),
    (JOB, sign(JOB, TERMS, KEY)[:-1], KEY),
    (JOB, "", KEY),
    (JOB, "é\ud800", KEY),
])  # fmt: skip
def test_nothing_else_verifies(payload: dict[str, JsonValue], signature: str, key: str) -> None:
    assert not verify(payload, TERMS, signature, key)


@pytest.mark.parametrize("terms", [
    replace(TERMS, signed_at=TERMS.signed_at + 1), replace(TERMS, timeout=-1), replace(TERMS, result_ttl=None),
    replace(TERMS, failure_ttl=0), replace(TERMS, ttl=1), replace(TERMS, retries=3),
])  # fmt: skip
def test_other_terms_do_not_verify(terms: Terms) -> None:
    assert not verify(JOB, terms, sign(JOB, TERMS, KEY), KEY)


@pytest.mark.parametrize("job_id", [None, 7, [], {}])
def test_a_job_without_an_id_cannot_be_signed(job_id: JsonValue) -> None:
    with pytest.raises(InvalidConfig, match="must name its job_id"):
        sign({**JOB, "job_id": job_id}, TERMS, KEY)
    with pytest.raises(InvalidConfig, match="must name its job_id"):
        sign({name: value for name, value in JOB.items() if name != "job_id"}, TERMS, KEY)


def test_values_beyond_json_cannot_be_signed() -> None:
    with pytest.raises(InvalidConfig, match="not JSON"):
        sign({**JOB, "learning_rate": math.nan}, TERMS, KEY)
