"""What OpenAPI says of the service beyond its routes: the job, the events, and how to be let in."""

from typing import Final

from fastapi import FastAPI
from pydantic import JsonValue, TypeAdapter

from worker.wire import EVENT, TrainJob

REFERENCE: Final = "#/components/schemas/{model}"
OBJECT: Final = TypeAdapter(dict[str, JsonValue])
SERVER_SENT_EVENT: Final = {
    "title": "ServerSentEvent", "type": "object", "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "to go on behind it"},
        "event": {"type": "string", "description": "the event's `type`, `end` or `problem`"},
        "data": {
            "type": "string", "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/Event"},
                    {"$ref": "#/components/schemas/Problem"},
                    {"type": "object", "maxProperties": 0},
                ]
            },
        },
    },
}  # fmt: skip
BEARER: Final = {
    "type": "http", "scheme": "bearer", "description": "PREFLIGHT_API_TOKEN, where the service has one"
}  # fmt: skip


class Described(FastAPI):
    """An application whose description, at /openapi.json, has the job and the events in full."""

    def openapi(self) -> dict[str, object]:
        """Return the description; made once."""
        if self.openapi_schema is None:
            found = super().openapi()
            schemas = {
                **_definitions("TrainJob", TrainJob.model_json_schema(ref_template=REFERENCE)),
                **_definitions("Event", EVENT.json_schema(mode="serialization", ref_template=REFERENCE)),
            }
            components = found.setdefault("components", {})
            components["schemas"] = {**schemas, "ServerSentEvent": SERVER_SENT_EVENT, **components.get("schemas", {})}
            components["securitySchemes"] = {"token": BEARER}
            found["security"] = [{"token": []}, {}]
        return dict(self.openapi_schema or {})


def _definitions(name: str, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema under its name, and each of its definitions under theirs."""
    inner = schema.pop("$defs", {})
    return {**OBJECT.validate_python(inner), name: schema}
