"""Logs: one record is one line, whatever is in it, and no line shows a secret."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from worker.ops import logging as logs

NASTY = "a=b\n\x1b[31mred\r\u2028\u0085\x00\ud800 'quote\""
STYLES: tuple[Literal["json", "text"], ...] = ("json", "text")
HIDDEN = "hunter2 ü/\n"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.basicConfig(handlers=handlers, level=level, force=True)
    structlog.reset_defaults()


def logged(style: Literal["auto", "json", "text"], message: str, **fields: object) -> str:
    stream = io.StringIO()
    logs.configure(style, "info", stream, secrets=[HIDDEN])
    structlog.get_logger("preflight").info(message, **fields)
    return stream.getvalue()


def see_that_it_is_one_line(text: str) -> None:
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert text.isascii()


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


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
surrogates = st.text(st.characters(categories=("Cs", "Cc", "Zl", "Zp", "L")))
values = st.recursive(
    plain | surrogates,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary() | st.integers(), inner) | st.tuples(inner),
    max_leaves=8,
)


@given(name=st.text() | surrogates, value=values)
def test_one_record_is_one_line(name: str, value: object) -> None:
    """No name and no value, however nested, can break a line or fake a second pair; JSON stays JSON."""
    for style in STYLES:
        text = logged(style, "event", **{f"x{name}": value, "nasty": NASTY, NASTY: "nasty"})
        see_that_it_is_one_line(text)
        if style == "json":
            assert json.loads(text, parse_constant=pytest.fail)["nasty"] == NASTY
        else:
            assert text.count(" nasty=") == 1


def test_a_long_value_is_cut() -> None:
    """Its beginning and its end are kept."""
    for style in STYLES:
        text = logged(style, "event", value="begin" + "x" * 1_000_000 + "end", raw=b"\xff" * 1_000_000)
        see_that_it_is_one_line(text)
        assert len(text) < 100_000
        assert "begin" in text
        assert "end" in text


def test_a_value_that_holds_itself_is_written() -> None:
    """As far as it goes."""
    knot: list[object] = []
    knot.append(knot)
    see_that_it_is_one_line(logged("json", "x", knot=knot))


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


@pytest.mark.parametrize("style", STYLES)
def test_no_record_shows_a_secret(style: Literal["json", "text"]) -> None:
    """Not in a name, a value, a nested value, an exception, bytes, or a traceback, whoever writes the record."""
    stream = io.StringIO()
    logs.configure(style, "info", stream, secrets=[HIDDEN])
    log = structlog.get_logger("preflight")
    log.info(HIDDEN, **{HIDDEN: HIDDEN, "nested": {HIDDEN: [HIDDEN, {"x": (HIDDEN,)}]}, "raw": HIDDEN.encode()})
    log.info("quoted", quoted=repr(HIDDEN), error=ValueError(HIDDEN), ascii=ascii([HIDDEN]), path=Path(HIDDEN))
    other = logging.getLogger("redis")
    other.warning("%s and %r", HIDDEN, {"password": HIDDEN})
    try:
        raise ValueError(HIDDEN)
    except ValueError:
        other.exception("no")
        log.exception("no")
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 5


@given(password=st.text("abc%/@:", min_size=1))
def test_no_record_shows_the_password_of_a_url(password: str) -> None:
    """Even one that nobody has named a secret."""
    for style in STYLES:
        text = logged(style, "x", url=f"redis://user:{password.replace('/', '%2F')}@host:1/0 answered")
        assert ":***@host" in text


def test_what_redis_says_of_a_refused_password_does_not_show_it(redis_url: str) -> None:
    """redis-py's exceptions and the records that carry them are scrubbed."""
    stream = io.StringIO()
    logs.configure("json", "debug", stream, secrets=["hunter2"])
    url = redis_url.replace("unix://", "unix://user:hunter2@")
    try:
        Redis.from_url(url).ping()
    except RedisError:
        logging.getLogger("rq.worker").exception("could not connect to %s", url)
    assert "could not connect" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_a_record_that_cannot_be_formatted_is_told() -> None:
    """By where it came from; neither its arguments nor a traceback are printed."""
    stream = io.StringIO()
    logs.configure("json", "info", stream, secrets=["hunter2"])
    logging.getLogger("rq.worker").info("%d", "hunter2")
    structlog.get_logger("preflight").info("x", huge=10**5000)
    first, second = (json.loads(line)["message"] for line in stream.getvalue().splitlines())
    assert "log_record_unreadable" in first
    assert "rq.worker" in first
    assert "log_record_unreadable" in second
    assert "hunter2" not in stream.getvalue()


PROGRAM = """
import sys, structlog
from worker.ops import logging as logs
logs.configure("json", "info", sys.stdout)
log = structlog.get_logger("preflight")
for number in range(10_000):
    log.info("still here", number=number, text="x" * 100)
print("done", file=sys.stderr)
"""


@pytest.mark.parametrize("closed", ["reader", "stream", "descriptor", "before"])
def test_a_worker_goes_on_when_nobody_reads_its_log(closed: str) -> None:
    """Reader gone, stream or descriptor closed while it runs or before: no exception, no traceback, exit code 0."""
    program = PROGRAM
    if closed in ("stream", "descriptor"):
        closing = {"stream": "sys.stdout.close()", "descriptor": "import os; os.close(1)"}[closed]
        program = PROGRAM.replace("for number", f"{closing}\nfor number")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-P", "-c", program]
    if closed == "before":
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(
        command, stdout=write if closed == "reader" else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "done\n")
