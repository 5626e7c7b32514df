"""OpenAPI document: adds the job, the events and the token to the routes."""

from typing import Final

from fastapi import FastAPI
from pydantic import JsonValue, TypeAdapter

from preflight.wire import EVENT
from preflight.wire.json_schema import job_schema
from worker.web.datasets.models import RelabelSamples
from worker.web.models import CancelJobs, ChangeAlias, ChangeNotes, PromoteModel

REFERENCE: Final = "#/components/schemas/{model}"
OBJECT: Final = TypeAdapter(dict[str, JsonValue])
SERVER_SENT_EVENT: Final = {
    "title": "ServerSentEvent", "type": "object", "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "continue after it with `Last-Event-ID`"},
        "event": {"type": "string", "description": "the event's `type`, `end` or `problem`"},
        "data": {
            "type": "string", "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/Event"},
                    {"$ref": "#/components/schemas/ImportState"},
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
HEADER: Final = {
    "type": "apiKey", "in": "header", "name": "X-Preflight-Token",
    "description": "the same, where a proxy in front takes `Authorization`",
}  # fmt: skip


class DocumentedApp(FastAPI):
    """An application whose /openapi.json has the schemas of the job and the events."""

    def openapi(self) -> dict[str, object]:
        """Return the document; built once."""
        if self.openapi_schema is None:
            found = super().openapi()
            schemas = {
                **_definitions("TrainJob", job_schema(REFERENCE)),
                **_definitions("CancelJobs", CancelJobs.model_json_schema(ref_template=REFERENCE)),
                **_definitions("ChangeNotes", ChangeNotes.model_json_schema(ref_template=REFERENCE)),
                **_definitions("PromoteModel", PromoteModel.model_json_schema(ref_template=REFERENCE)),
                **_definitions("ChangeAlias", ChangeAlias.model_json_schema(ref_template=REFERENCE)),
                **_definitions("RelabelSamples", RelabelSamples.model_json_schema(ref_template=REFERENCE)),
                **_definitions("Event", EVENT.json_schema(mode="serialization", ref_template=REFERENCE)),
            }
            components = found.setdefault("components", {})
            components["schemas"] = {**schemas, "ServerSentEvent": SERVER_SENT_EVENT, **components.get("schemas", {})}
            components["securitySchemes"] = {"token": BEARER, "header": HEADER}
            found["security"] = [{"token": []}, {"header": []}, {}]
        return dict(self.openapi_schema or {})


def _definitions(name: str, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema and its definitions by name."""
    inner = schema.pop("$defs", {})
    return {**OBJECT.validate_python(inner), name: schema}
