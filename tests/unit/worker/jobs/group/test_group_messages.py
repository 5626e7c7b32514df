"""Messages of groups: bounds, signatures, secrets."""

import pytest
from pydantic import SecretStr

from worker.config.settings import Settings
from worker.jobs.group.messages import ORDER, SAID, BadMessage, Call, Leave, Post, Replayed, Said, Versions, new_nonce

SAYS = Said(address="10.0.0.2", versions=Versions(preflight="1", torch="2"), cores=1.5, memory_mb=1024)
KEYED = Settings(signing_key=SecretStr("0123456789abcdef"))


def test_a_message_comes_back() -> None:
    for settings in (Settings(), KEYED):
        post = Post.of(settings, "job", 1)
        assert post.open(SAID, post.seal(SAID, SAYS, "worker"), "worker") == SAYS
        assert post.open(ORDER, post.seal(ORDER, Leave(why="so"), "worker"), "worker") == Leave(why="so")


def test_with_a_key_nothing_of_others_is_read() -> None:
    """A message of no key, another key, another attempt, job or worker, or one that was changed."""
    post, text = Post.of(KEYED, "job", 1), Post.of(KEYED, "job", 1).seal(SAID, SAYS, "worker")
    other = Settings(signing_key=SecretStr("fedcba9876543210"))
    for forged in (
        Post.of(Settings(), "job", 1).seal(SAID, SAYS, "worker"), Post.of(other, "job", 1).seal(SAID, SAYS, "worker"),
        Post.of(KEYED, "job", 2).seal(SAID, SAYS, "worker"), Post.of(KEYED, "other", 1).seal(SAID, SAYS, "worker"),
        post.seal(SAID, SAYS, "else"), text.replace("10.0.0.2", "10.0.0.3"), "- 1 {}",
    ):  # fmt: skip
        with pytest.raises(BadMessage, match="not signed"):
            post.open(SAID, forged, "worker")


@pytest.mark.parametrize("body", ["", "{", "[]", '{"kind": "call"}', '{"kind": "run", "why": ""}', "x" * 5_000])
def test_garbage_is_no_message(body: str) -> None:
    post = Post.of(Settings(), "job", 1)
    with pytest.raises(BadMessage):
        post.open(ORDER, f"- 1 {body}", "worker")
    for unnumbered in (body, f"- {body}", f"- -1 {body}", f"- {'9' * 30} {body}"):
        with pytest.raises(BadMessage):
            post.open(ORDER, unnumbered, "worker")


def test_with_a_key_an_earlier_message_is_not_read_again() -> None:
    """Whoever can write to Redis may put back the last one, which is still in force, and none before it."""
    leader, member = Post.of(KEYED, "job", 1), Post.of(KEYED, "job", 1)
    first, last = (leader.seal(ORDER, Leave(why=why), "worker") for why in ("first", "last"))
    assert member.open(ORDER, first, "worker") == Leave(why="first")
    for _ in range(2):
        assert member.open(ORDER, last, "worker") == Leave(why="last")
    with pytest.raises(Replayed):
        member.open(ORDER, first, "worker")
    again = Post.of(KEYED, "job", 1).seal(ORDER, Leave(why="again"), "worker")  # as of one that sits down once more
    assert member.open(ORDER, again, "worker") == Leave(why="again")


def test_a_message_has_no_deep_json() -> None:
    post = Post.of(Settings(), "job", 1)
    with pytest.raises(BadMessage):
        post.open(ORDER, '- 1 {"kind": "leave", "why": ' + "[" * 4_000, "worker", 8_192)


def test_a_call_has_bounds() -> None:
    post, nonce = Post.of(Settings(), "job", 1), new_nonce()
    call = Call(number=1, host="::1", port=4000, nonce=nonce, measure=True, wire=None)
    text = post.seal(ORDER, call, "worker")
    assert post.open(ORDER, text, "worker") == call
    for wrong in (text.replace("4000", "0"), text.replace("4000", "70000"), text.replace(nonce, "")):
        with pytest.raises(BadMessage, match="wrong"):
            post.open(ORDER, wrong, "worker")


def test_a_key_keeps_the_secret_out_of_messages() -> None:
    nonce = new_nonce()
    assert Post.of(Settings(), "job", 1).secret(nonce) == nonce
    secret = Post.of(KEYED, "job", 1).secret(nonce)
    assert secret != nonce
    assert secret == Post.of(KEYED, "job", 1).secret(nonce) != Post.of(KEYED, "job", 2).secret(nonce)
