"""Structured logs: one record is one line, whatever a user put in a name.

key=value at a terminal, JSON with `message` and `level` in a container. RQ's and redis-py's own records take
the same way out.
"""

import json
import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Final, Literal, TextIO

import structlog

PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@+*%()\[\]-]+")
"""A value that can stand unquoted."""
FIRST: Final = ("ts", "level", "message", "job_id", "attempt")

Fields = MutableMapping[str, object]


def configure(style: Literal["auto", "json", "text"], level: str, stream: TextIO) -> None:
    """Send all logs to `stream`; `auto` is key=value at a terminal and JSON elsewhere."""
    text = style == "text" or (style == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                render_text if text else render_json,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def render_json(logger: object, method: str, fields: Fields) -> str:  # noqa: ARG001 - structlog's signature
    """Return the record as one line of ASCII JSON."""
    return json.dumps(_ordered(fields), default=str)


def render_text(logger: object, method: str, fields: Fields) -> str:  # noqa: ARG001 - structlog's signature
    """Return the record as key=value pairs; what could break the line or fake a pair is quoted and escaped."""
    return " ".join(f"{_plain(name)}={_plain(value)}" for name, value in _ordered(fields).items())


def _ordered(fields: Mapping[str, object]) -> dict[str, object]:
    head = {name: fields[name] for name in FIRST if name in fields}
    return {**head, **{name: value for name, value in fields.items() if name not in head}}


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if PLAIN.fullmatch(text) else json.dumps(text)
