"""Compression of answers: what is compressed, and that an event of a stream is sent at once."""

import asyncio
import json
import zlib
from collections.abc import Iterator

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message

from worker.web.streams.compression import Compression

LONG = {"text": "a word " * 500}
EVENTS = [b"data: 1\n\n", b"data: 2\n\n"]


def asked(response: Response, accepted: bytes = b"gzip, br") -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the headers and the pieces that a client receives."""
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"accept-encoding", accepted)], "asgi": {"spec_version": "2.4"}}
    asyncio.run(Compression(response)(scope, receive, send))
    return dict(sent[0]["headers"]), [message["body"] for message in sent[1:]]


@pytest.mark.parametrize("accepted", [b"gzip, br", b"br;q=0,gzip;q=0.01", b"GZIP"])
def test_a_long_answer_is_compressed(accepted: bytes) -> None:
    headers, (body,) = asked(JSONResponse(LONG), accepted)
    assert (headers[b"content-encoding"], headers[b"vary"]) == (b"gzip", b"accept-encoding")
    assert b"content-length" not in headers
    assert len(body) < 200
    assert json.loads(zlib.decompress(body, wbits=31)) == LONG


@pytest.mark.parametrize(("response", "accepted"), [
    (JSONResponse({"short": 1}), b"gzip"), (JSONResponse(LONG), b"br"), (JSONResponse(LONG), b"br, gzip;q=0"),
    (JSONResponse(LONG), b"GZIP ; Q = 0.000"), (JSONResponse(LONG), b"xgzip"),
    (JSONResponse(LONG, headers={"etag": '"1"'}), b"gzip"), (Response(b"x" * 5000, media_type="image/png"), b"gzip"),
])  # fmt: skip
def test_other_answers_stay_as_they_are(response: Response, accepted: bytes) -> None:
    """Short ones, for clients that do not take gzip, with an entity tag of their bytes, and other media types."""
    headers, (body,) = asked(response, accepted)
    assert b"content-encoding" not in headers
    assert int(headers[b"content-length"]) == len(body)
    assert body == response.body


def test_no_event_waits_for_the_next() -> None:
    def events() -> Iterator[bytes]:
        yield from EVENTS

    headers, pieces = asked(StreamingResponse(events(), media_type="text/event-stream"))
    assert headers[b"content-encoding"] == b"gzip"
    inflate = zlib.decompressobj(wbits=31)
    assert [inflate.decompress(piece) for piece in pieces] == [*EVENTS, b""]
    assert inflate.eof
