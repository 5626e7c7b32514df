"""JSON Schemas of jobs, events, states and results."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic.json_schema import DEFAULT_REF_TEMPLATE

from preflight.contract.plan import Plan
from preflight.contract.spec import Augmentation
from preflight.wire import EVENT, JobState, TrainJob, TrainResult

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, JsonValue]
OBJECT: Final = TypeAdapter(Schema)
OBJECTS: Final = TypeAdapter(dict[str, Schema])
CHOICES: Final = TypeAdapter(list[Schema])


def schemas() -> dict[str, str]:
    """Return file name -> schema as JSON text."""
    contents = {
        "train.v1.json": job_schema(),
        "event.v1.json": EVENT.json_schema(mode="serialization"),
        "record.v1.json": record_schema(),
        "result.v1.json": TrainResult.model_json_schema(mode="serialization"),
        "state.v1.json": JobState.model_json_schema(mode="serialization"),
    }
    return {name: as_text({"$schema": DIALECT, **schema}) for name, schema in contents.items()}


def job_schema(ref_template: str = DEFAULT_REF_TEMPLATE) -> Schema:
    """Return the schema of a job, in which the docstring of a field is its description.

    pydantic's `use_attribute_docstrings` would parse the sources at each import.
    """
    schema = OBJECT.validate_python(TrainJob.model_json_schema(ref_template=ref_template))
    parts = OBJECTS.validate_python(schema["$defs"])
    _describe(schema, TrainJob)
    _describe(parts["Augmentation"], Augmentation)
    _describe(parts["OwnPlan"], Plan)
    return {**schema, "$defs": dict(parts)}


def _describe(schema: Schema, model: type[TrainJob] | type[Augmentation] | type[Plan]) -> None:
    fields = OBJECTS.validate_python(schema["properties"])
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    docs = dict(_docstrings(parsed)) if isinstance(parsed, ast.ClassDef) else {}
    for name in fields.keys() & docs.keys():
        fields[name]["description"] = docs[name].replace("\n", " ").partition(". ")[0].rstrip(".")
    schema["properties"] = dict(fields)


def _docstrings(parsed: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each attribute that has one."""
    for attribute, following in pairwise(parsed.body):
        match attribute, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def record_schema() -> Schema:
    """Return the schema of an event as a Redis stream record: flat, each value a text, nulls left out."""
    schema = OBJECT.validate_python(EVENT.json_schema(mode="serialization"))
    kinds = OBJECTS.validate_python(schema["$defs"])
    for kind in kinds.values():
        fields = OBJECTS.validate_python(kind["properties"])
        kind["properties"] = {name: _flat(field) for name, field in fields.items()}
    return {**schema, "$defs": dict(kinds), "title": "Record"}


def _flat(field: Schema) -> Schema:
    """Return the schema of a field as text: strings unchanged, other values as JSON."""
    if "anyOf" in field:  # a value or null, which is left out
        rest = {name: value for name, value in field.items() if name not in ("anyOf", "default")}
        (field,) = ({**one, **rest} for one in CHOICES.validate_python(field["anyOf"]) if one != {"type": "null"})
    if field["type"] == "string":
        return field
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": field}


def as_text(content: object) -> str:
    """Return a document as it is written: indented JSON."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
