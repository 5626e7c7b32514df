"""Messages of groups: bounds, signatures, secrets."""

import pytest
from pydantic import SecretStr

from worker.config.settings import Settings
from worker.jobs.group.messages import ORDER, SAID, BadMessage, Call, Leave, Post, Said, Versions, new_nonce

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
        post.seal(SAID, SAYS, "else"), text.replace("10.0.0.2", "10.0.0.3"), "", "- {}",
    ):  # fmt: skip
        with pytest.raises(BadMessage, match="not signed"):
            post.open(SAID, forged, "worker")


@pytest.mark.parametrize("body", ["", "{", "[]", '{"kind": "call"}', '{"kind": "run", "why": ""}', "x" * 5_000])
def test_garbage_is_no_message(body: str) -> None:
    post = Post.of(Settings(), "job", 1)
    with pytest.raises(BadMessage):
        post.open(ORDER, f"- {body}", "worker")


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
