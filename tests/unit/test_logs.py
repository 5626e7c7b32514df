"""Logs: one record is one line, whatever is in it."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from worker import logs

NASTY = "a=b\n\x1b[31mred\r\u2028 \x00 'quote\""


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.basicConfig(handlers=handlers, level=level, force=True)
    structlog.reset_defaults()


def logged(style: Literal["auto", "json", "text"], message: str, **fields: object) -> str:
    stream = io.StringIO()
    logs.configure(style, "info", stream)
    structlog.get_logger("preflight").info(message, **fields)
    return stream.getvalue()


def test_json_has_message_and_level() -> None:
    """As Railway reads it."""
    record = json.loads(logged("json", "epoch_done", epoch=1, loss=0.5, job_id="j"))
    assert (record["message"], record["level"], record["epoch"], record["job_id"]) == ("epoch_done", "info", 1, "j")
    assert record["ts"].endswith("Z")


def test_a_stream_that_is_no_terminal_gets_json() -> None:
    """`auto` decides by the stream."""
    assert logged("auto", "x").startswith("{")


def test_a_terminal_gets_key_value() -> None:
    """Plain values unquoted, the name first."""
    line = logged("text", "epoch_done", epoch=1, loss=0.123456789, note="two words", job_id="j")
    assert 'message=epoch_done job_id=j epoch=1 loss=0.123457 note="two words"' in line


@given(name=st.text(), value=st.text() | st.integers() | st.none() | st.booleans())
def test_one_record_is_one_line(name: str, value: object) -> None:
    """No name and no value can break a line or fake a second pair."""
    styles: tuple[Literal["json", "text"], ...] = ("json", "text")
    for style in styles:
        text = logged(style, "event", **{f"x{name}": value, "nasty": NASTY})
        assert text.count("\n") == 1
        assert text[:-1].isprintable()
        assert text.isascii()


def test_json_survives_what_json_does_not_know() -> None:
    """A path or an exception becomes a string."""
    assert json.loads(logged("json", "x", path=ValueError("no")))["path"] == "no"


def test_other_libraries_take_the_same_way_out() -> None:
    """RQ's records are JSON lines too, tracebacks included."""
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("rq.worker").exception("it %s", "broke")
    record = json.loads(stream.getvalue())
    assert record["message"] == "it broke"
    assert "first\nsecond" in record["exception"]


def test_the_level_is_a_threshold() -> None:
    """What lies below it is not written."""
    stream = io.StringIO()
    logs.configure("json", "warning", stream)
    structlog.get_logger("preflight").info("quiet")
    assert stream.getvalue() == ""
