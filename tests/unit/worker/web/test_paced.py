"""Large answers: sent in pieces, and dropped where nobody reads them and others wait."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from worker.web import middleware
from worker.web.middleware import PIECE_BYTES, PacedSending

SCOPE = {"type": "http"}


def answering(*bodies: bytes) -> PacedSending:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, body in enumerate(bodies, 1):
            await send({"type": "http.response.body", "body": body, "more_body": number < len(bodies)})

    return PacedSending(app)


async def nothing() -> Message:
    return await asyncio.Future()


@pytest.mark.parametrize("bodies", [
    (b"",), (b"x",), (b"x" * PIECE_BYTES,), (bytes(range(256)) * 1000,), (b"a" * 200_000, b"b", b"c" * 100_000, b""),
], ids=lambda bodies: str([len(body) for body in bodies]))  # fmt: skip
def test_an_answer_arrives_whole_in_pieces(bodies: tuple[bytes, ...]) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(answering(*bodies)(SCOPE, nothing, send))
    pieces = sent[1:]
    assert b"".join(message["body"] for message in pieces) == b"".join(bodies)
    assert all(len(message["body"]) <= PIECE_BYTES for message in pieces)
    assert [message["more_body"] for message in pieces] == [True] * (len(pieces) - 1) + [False]


def test_answers_that_are_not_read_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, once they are too many bytes together; one that is read is sent all the same."""
    monkeypatch.setattr(middleware, "MAX_PENDING_BYTES", 3_000_000)
    monkeypatch.setattr(middleware, "PATIENCE_SECONDS", 0.05)
    app = answering(b"x" * 1_000_000)

    async def never_read(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Future()

    async def read(_: Message) -> None:
        await asyncio.sleep(0)

    async def ask() -> None:
        stuck = [asyncio.create_task(app(SCOPE, nothing, never_read)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(app(SCOPE, nothing, read), 20)
        done, pending = await asyncio.wait(stuck, timeout=0.1)
        assert done == {stuck[0]} and len(pending) == 2
        for task in pending:
            task.cancel()
        assert len(await asyncio.gather(*pending, return_exceptions=True)) == 2
        assert app._pending == []

    asyncio.run(ask())
