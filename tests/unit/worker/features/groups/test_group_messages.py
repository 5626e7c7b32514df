"""Messages of groups: bounds, signatures, secrets."""

import pytest
from pydantic import SecretStr

from worker.config.settings import Settings
from worker.features.groups.messages import (
    MEMBER_STATE,
    ORDER,
    BadMessage,
    Call,
    Leave,
    MemberState,
    Replayed,
    Sealer,
    Versions,
    new_nonce,
)

SAYS = MemberState(address="10.0.0.2", versions=Versions(preflight="1", torch="2"), cores=1.5, memory_mb=1024)
KEYED = Settings(signing_key=SecretStr("0123456789abcdef"))


def test_a_message_comes_back() -> None:
    for settings in (Settings(), KEYED):
        sealer = Sealer.of(settings, "job", 1)
        assert sealer.open(MEMBER_STATE, sealer.seal(MEMBER_STATE, SAYS, "worker"), "worker") == SAYS
        assert sealer.open(ORDER, sealer.seal(ORDER, Leave(why="so"), "worker"), "worker") == Leave(why="so")


def test_with_a_key_nothing_of_others_is_read() -> None:
    """A message of no key, another key, another attempt, job or worker, or one that was changed."""
    sealer, text = Sealer.of(KEYED, "job", 1), Sealer.of(KEYED, "job", 1).seal(MEMBER_STATE, SAYS, "worker")
    other = Settings(signing_key=SecretStr("fedcba9876543210"))
    for forged in (
        Sealer.of(Settings(), "job", 1).seal(MEMBER_STATE, SAYS, "worker"),
        Sealer.of(other, "job", 1).seal(MEMBER_STATE, SAYS, "worker"),
        Sealer.of(KEYED, "job", 2).seal(MEMBER_STATE, SAYS, "worker"),
        Sealer.of(KEYED, "other", 1).seal(MEMBER_STATE, SAYS, "worker"),
        sealer.seal(MEMBER_STATE, SAYS, "else"), text.replace("10.0.0.2", "10.0.0.3"), "- 1 {}",
    ):  # fmt: skip
        with pytest.raises(BadMessage, match="not signed"):
            sealer.open(MEMBER_STATE, forged, "worker")


@pytest.mark.parametrize("body", ["", "{", "[]", '{"kind": "call"}', '{"kind": "run", "why": ""}', "x" * 5_000])
def test_garbage_is_no_message(body: str) -> None:
    sealer = Sealer.of(Settings(), "job", 1)
    with pytest.raises(BadMessage):
        sealer.open(ORDER, f"- 1 {body}", "worker")
    for unnumbered in (body, f"- {body}", f"- -1 {body}", f"- {'9' * 30} {body}"):
        with pytest.raises(BadMessage):
            sealer.open(ORDER, unnumbered, "worker")


def test_with_a_key_an_earlier_message_is_not_read_again() -> None:
    """Whoever can write to Redis may put back the last one, which is still in force, and none before it."""
    leader, member = Sealer.of(KEYED, "job", 1), Sealer.of(KEYED, "job", 1)
    first, last = (leader.seal(ORDER, Leave(why=why), "worker") for why in ("first", "last"))
    assert member.open(ORDER, first, "worker") == Leave(why="first")
    for _ in range(2):
        assert member.open(ORDER, last, "worker") == Leave(why="last")
    with pytest.raises(Replayed):
        member.open(ORDER, first, "worker")
    again = Sealer.of(KEYED, "job", 1).seal(ORDER, Leave(why="again"), "worker")  # as of one that sits down once more
    assert member.open(ORDER, again, "worker") == Leave(why="again")


def test_a_message_has_no_deep_json() -> None:
    sealer = Sealer.of(Settings(), "job", 1)
    with pytest.raises(BadMessage):
        sealer.open(ORDER, '- 1 {"kind": "leave", "why": ' + "[" * 4_000, "worker", 8_192)


def test_a_call_has_bounds() -> None:
    sealer, nonce = Sealer.of(Settings(), "job", 1), new_nonce()
    call = Call(number=1, host="::1", port=4000, nonce=nonce, measure=True, wire=None)
    text = sealer.seal(ORDER, call, "worker")
    assert sealer.open(ORDER, text, "worker") == call
    for wrong in (text.replace("4000", "0"), text.replace("4000", "70000"), text.replace(nonce, "")):
        with pytest.raises(BadMessage, match="wrong"):
            sealer.open(ORDER, wrong, "worker")


def test_a_key_keeps_the_secret_out_of_messages() -> None:
    nonce = new_nonce()
    assert Sealer.of(Settings(), "job", 1).secret(nonce) == nonce
    secret = Sealer.of(KEYED, "job", 1).secret(nonce)
    assert secret != nonce
    assert secret == Sealer.of(KEYED, "job", 1).secret(nonce) != Sealer.of(KEYED, "job", 2).secret(nonce)
