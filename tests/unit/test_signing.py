"""Signatures of jobs."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from training.errors import InvalidConfig
from worker.signing import sign, verify

KEY = "sixteen letters!"
JOB: dict[str, JsonValue] = {
    "type": "preflight.train.v1", "model": "cnn", "dataset": "mnist", "job_id": "café", "epochs": 3,
    "learning_rate": 0.001, "plan": {"threads": 2, "precision": "bfloat16"},
}  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_the_canonical_form_is_what_it_is_said_to_be() -> None:
    """`printf %s CANONICAL | openssl dgst -sha256 -hmac KEY` gives the same signature."""
    assert sign(JOB, KEY) == "a8325449c5b687a0517f4ea48a446e51aa5ec4187775de6cdf9b06e1e3a7983d"


@given(payload=st.dictionaries(st.text(), json_values))
def test_a_signature_survives_the_way_through_json(payload: dict[str, JsonValue]) -> None:
    """Whatever order, spacing and escapes the sender prints in, the worker comes to the same signature."""
    payload = {**payload, "job_id": "a"}
    text = json.dumps(dict(reversed(payload.items())), ensure_ascii=False, indent=2)
    assert verify(json.loads(text), sign(payload, KEY), KEY)


@pytest.mark.parametrize("key", [KEY, KEY.encode()])
def test_a_key_may_be_text_or_bytes(key: str | bytes) -> None:
    """Text stands for its UTF-8."""
    assert sign(JOB, key) == sign(JOB, KEY)


@pytest.mark.parametrize(
    ("payload", "signature", "key"),
    [
        ({**JOB, "epochs": 4}, sign(JOB, KEY), KEY),
        ({**JOB, "job_id": "b"}, sign(JOB, KEY), KEY),
        ({**JOB, "extra": None}, sign(JOB, KEY), KEY),
        ({**JOB, "epochs": 3.0}, sign(JOB, KEY), KEY),
        (JOB, sign(JOB, KEY), KEY + "?"),
        (JOB, sign(JOB, KEY).upper(), KEY),
        (JOB, sign(JOB, KEY)[:-1], KEY),
        (JOB, "", KEY),
        (JOB, "é\ud800", KEY),
    ],
)
def test_nothing_else_verifies(payload: dict[str, JsonValue], signature: str, key: str) -> None:
    """Another field, id, number, key, case or length does not; nor does what is no ASCII."""
    assert not verify(payload, signature, key)


@pytest.mark.parametrize("job_id", [None, 7, [], {}])
def test_a_job_without_an_id_cannot_be_signed(job_id: JsonValue) -> None:
    """Its signature would serve for any number of jobs."""
    with pytest.raises(InvalidConfig, match="must name its job_id"):
        sign({**JOB, "job_id": job_id}, KEY)
    with pytest.raises(InvalidConfig, match="must name its job_id"):
        sign({name: value for name, value in JOB.items() if name != "job_id"}, KEY)


def test_what_is_not_json_cannot_be_signed() -> None:
    """NaN has no form that two languages agree on."""
    with pytest.raises(InvalidConfig, match="not JSON"):
        sign({**JOB, "learning_rate": math.nan}, KEY)
