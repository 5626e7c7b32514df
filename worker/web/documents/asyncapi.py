"""AsyncAPI 3 document of the queue, the event streams and the server-sent events."""

from typing import Final

from pydantic import JsonValue, TypeAdapter

from preflight.queue.signing import MAX_NUMBER
from preflight.redis import keys
from preflight.wire import CONTRACT_VERSION, EVENT, FUNCTION, JOB_ID_PATTERN, JOB_TIMEOUT, LIFECYCLE_EVENTS, STATE_TTL

Object = dict[str, JsonValue]

VERSION: Final = "3.0.0"
DIALECT: Final = "application/schema+json;version=draft-2020-12"
DEFINITIONS: Final = TypeAdapter(dict[str, str])
JOB_ID: Final[Object] = {"type": "string", "pattern": JOB_ID_PATTERN}
PARAMETERS: Final[dict[str, Object]] = {
    "job_id": {"description": "id of a job"},
    "hash_tag": {"description": "id of a job in braces, which are part of the key", "examples": ["{my-job}"]},
    "queue": {"description": "the worker's `PREFLIGHT_QUEUE`", "default": "preflight"},
}
SERVERS: Final[dict[str, Object]] = {
    "redis": {"host": "localhost:6379", "protocol": "redis", "description": "the worker's `REDIS_URL`"},
    "web": {"host": "localhost:8000", "protocol": "http", "description": "`preflight serve`"},
}
SENT: Final[Object] = {
    "type": "object",
    "description": "the fields `id` and `event` of a server-sent event",
    "properties": {
        "id": {"type": "string", "description": "place in the stream, for the request header Last-Event-ID"},
        "event": {"type": "string", "description": "type of the event, or `end`"},
    },
}


def _digits(description: str, pattern: str = r"^(-1|\d+)$", **more: JsonValue) -> Object:
    return {"type": "string", "pattern": pattern, "description": description, **more}


RQ_JOB: Final[Object] = {
    "type": "object",
    "title": "RqJob",
    "description": "fields that a producer writes before it pushes the id; RQ and the worker add others",
    "properties": {
        "data": {
            "type": "string",
            "description": "JSON, plain or compressed with zlib",
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "array",
                "prefixItems": [
                    {"const": FUNCTION},
                    {"type": "null"},
                    {"type": "array", "prefixItems": [{"$ref": "./train.v1.json"}], "minItems": 1, "items": False},
                    {
                        "type": "object",
                        "properties": {
                            "signature": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                            "signed_at": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
                            "retries": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
                        },
                        "dependentRequired": {"signature": ["signed_at", "retries"]},
                        "additionalProperties": False,
                    },
                ],
                "minItems": 4,
                "items": False,
            },
        },
        "status": {"const": "queued"},
        "created_at": {"type": "string", "description": "UTC, e.g. 2026-01-31T12:00:00.000000Z"},
        "timeout": _digits("limit of the duration, seconds; -1: none", r"^(-1|[1-9]\d*)$", default=str(JOB_TIMEOUT)),
        "result_ttl": _digits(f"seconds for which RQ keeps the finished job; its events are kept for {STATE_TTL}"),
        "failure_ttl": _digits("seconds for which RQ keeps the failed job"),
        "retries_left": _digits("retries left", r"^\d+$"),
    },
    "required": ["data", "status", "created_at"],
}  # fmt: skip


def asyncapi() -> Object:
    """Return the document; its messages refer to the JSON Schemas in the same folder."""
    kinds = DEFINITIONS.validate_python(EVENT.json_schema()["discriminator"]["mapping"])
    messages: Object = {
        "job_id": _message("a job's id, pushed after its hash is written", JOB_ID),
        "job": _message("a job as RQ's hash", RQ_JOB),
        **{f"{kind}.record": _record(kind, definition) for kind, definition in kinds.items()},
        **{kind: _sent(kind, definition) for kind, definition in kinds.items()},
        "end": {**_message("end of the stream: do not reconnect", {"const": {}}, "application/json"),
                "headers": SENT},
    }  # fmt: skip
    records = [f"{kind}.record" for kind in kinds]
    lifecycle_events = [f"{kind}.record" for kind in LIFECYCLE_EVENTS]
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "preflight",
            "version": CONTRACT_VERSION,
            "description": "Jobs in through an RQ queue, events out through Redis streams and server-sent events.",
        },
        "servers": dict(SERVERS),
        "channels": {
            "queue": _channel("rq:queue:{queue}", "list of the ids of queued jobs", ["job_id"]),
            "job": _channel("rq:job:{job_id}", "hash of a job", ["job"]),
            "events": _channel(
                keys.events("hash_tag"), "stream of all events of a job; the oldest may be trimmed", records
            ),
            "lifecycle": _channel(
                keys.lifecycle("hash_tag"), "stream of a job's lifecycle events; never trimmed", lifecycle_events
            ),
            "sent_events": _channel(
                "/v1/jobs/{job_id}/events", "server-sent events of a job until it ends", [*kinds, "end"], "web"
            ),
        },
        "operations": {
            "readJob": _operation("receive", "job", "HGET; before it, HSET by the producer"),
            "takeJob": _operation("receive", "queue", "LMOVE from the left; the producer's is RPUSH"),
            "sayEvent": _operation("send", "events", "XADD; subscribers use XREAD or XRANGE"),
            "sayTurningPoint": _operation("send", "lifecycle", "XADD; subscribers use XREAD or XRANGE"),
            "sendEvents": {
                **_operation("send", "sent_events", "response to a request with `Accept: text/event-stream`"),
                "bindings": {"http": {"method": "GET", "bindingVersion": "0.3.0"}},
            },
        },
        "components": {"messages": messages},
    }


def _record(kind: str, definition: str) -> Object:
    schema: Object = {"$ref": f"./record.v1.json{definition}"}
    return _message(f"`{kind}` as a record of a stream: flat fields, each a text", schema)


def _sent(kind: str, definition: str) -> Object:
    schema: Object = {"$ref": f"./event.v1.json{definition}"}
    return {**_message(f"`{kind}` as the data of a server-sent event", schema, "application/json"), "headers": SENT}


def _message(summary: str, schema: Object, content_type: str | None = None) -> Object:
    stated: Object = {} if content_type is None else {"contentType": content_type}
    return {"summary": summary, **stated, "payload": {"schemaFormat": DIALECT, "schema": schema}}


def _channel(address: str, description: str, messages: list[str], server: str = "redis") -> Object:
    return {
        "address": address,
        "description": description,
        "servers": [{"$ref": f"#/servers/{server}"}],
        "parameters": {name: value for name, value in PARAMETERS.items() if f"{{{name}}}" in address},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
    }


def _operation(action: str, channel: str, summary: str) -> Object:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}
