"""The contract for other languages: example messages and the published schemas."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, JsonValue, TypeAdapter
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from preflight.contract.removed import forget_removed
from preflight.errors import InvalidConfig
from preflight.queue.untrusted_job import parse
from preflight.wire import EVENT, AnyEvent, JobState, TrainJob, TrainResult, flatten, parse_job, unflatten
from preflight.wire.base import RENAMED
from preflight.wire.json_schema import schemas
from worker.web.documents.schemas import descriptions
from worker.web.models import Problem

ROOT = Path(__file__).parents[4]
SCHEMAS = ROOT / "docs" / "schemas"
EXAMPLES = ROOT / "tests" / "wire"
MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "train": (TrainJob, "train.v1.json"),
    "result": (TrainResult, "result.v1.json"),
    "state": (JobState, "state.v1.json"),
    "problem": (Problem, "openapi.json#/components/schemas/Problem"),
}
"""Prefix of an example's file name -> model, and published schema."""
REFUSED = {"train.workers.json": "average_every"}
"""Examples of jobs that ask for what is gone -> the field by whose name they are refused."""
FOUND = [path for path in sorted(EXAMPLES.glob("*.json")) if path.name.partition(".")[0] in MODELS]
PARTS = [path for path in FOUND if path.name not in REFUSED]
EVENTS = sorted(EXAMPLES.glob("event.*.json"))
RQ_JOBS = sorted(EXAMPLES.glob("rq_job*.json"))
RQ_HASH = "asyncapi.json#/components/messages/job/payload/schema"

OBJECT = TypeAdapter(dict[str, JsonValue])
TEXTS = TypeAdapter(dict[str, str])
PAIR = TypeAdapter(dict[str, dict[str, JsonValue]])
FIELDS = TypeAdapter(dict[str, dict[str, JsonValue]])


@pytest.fixture(scope="module")
def published() -> Registry[JsonValue]:
    """All documents of docs/schemas/."""
    return Registry[JsonValue]().with_resources(
        (path.name, Resource.from_contents(_read(path), default_specification=DRAFT202012))
        for path in SCHEMAS.glob("*.json")
    )


def _read(path: Path) -> dict[str, JsonValue]:
    return OBJECT.validate_json(path.read_text())


def refusals(content: JsonValue, schema: str, published: Registry[JsonValue]) -> list[str]:
    """Return the violations of a published schema in `content`."""
    return [error.message for error in Draft202012Validator({"$ref": schema}, registry=published).iter_errors(content)]


def within(example: JsonValue, written: JsonValue) -> JsonValue:
    """Return `written` without the fields that the example lacks: later versions have more."""
    if isinstance(example, dict) and isinstance(written, dict):
        return {name: within(value, written.get(name)) for name, value in example.items()}
    return written


def current(event: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the fields of an event under their names of today; those that are gone are read, and not written."""
    return renamed(OBJECT.validate_python(forget_removed("plan", event)))


def renamed(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {RENAMED.get(name, name): value for name, value in fields.items()}


def as_text(content: JsonValue) -> str:
    return json.dumps(content, sort_keys=True)  # 1, 1.0 and true are equal in Python, but not as JSON


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_an_example_round_trips(path: Path, published: Registry[JsonValue]) -> None:
    """Jobs, results, states and errors: through the model, and valid by the published schema."""
    model, schema = MODELS[path.name.partition(".")[0]]
    example = _read(path) if model is TrainJob else renamed(_read(path))
    written = model.model_validate_json(path.read_text()).model_dump(mode="json")
    assert as_text(within(example, written)) == as_text(example)
    assert refusals(example, schema, published) == []


@pytest.mark.parametrize(("name", "field"), REFUSED.items())
def test_a_job_that_asks_for_what_is_gone_is_refused_by_name(name: str, field: str) -> None:
    with pytest.raises(InvalidConfig, match=field) as refused:
        parse_job(_read(EXAMPLES / name))
    assert refused.value.field == field


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_an_event_is_the_same_as_record_and_as_json(path: Path, published: Registry[JsonValue]) -> None:
    """Both forms read as the same event, are written unchanged, and are valid by the published schemas."""
    pair = PAIR.validate_json(path.read_text())
    event = unflatten(TEXTS.validate_python(pair["record"]))
    assert EVENT.validate_json(json.dumps(pair["event"])) == event
    pair = {form: current(fields) for form, fields in pair.items()}
    record, said = TEXTS.validate_python(pair["record"]), pair["event"]
    assert TEXTS.validate_python(within(pair["record"], OBJECT.validate_python(flatten(event)))) == record
    assert as_text(within(said, event.model_dump(mode="json", exclude_none=True))) == as_text(said)
    assert refusals(pair["record"], "record.v1.json", published) == []
    assert refusals(said, "event.v1.json", published) == []


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_a_record_is_decoded_by_its_schema_alone(path: Path, published: Registry[JsonValue]) -> None:
    """A program needs only the published schema: each text is a string or JSON."""
    pair = {form: current(fields) for form, fields in PAIR.validate_json(path.read_text()).items()}
    record = TEXTS.validate_python(pair["record"])
    resolver = published.resolver("record.v1.json")
    mapping = TEXTS.validate_python(resolver.lookup("#/discriminator/mapping").contents)
    fields = FIELDS.validate_python(resolver.lookup(f"{mapping[record['type']]}/properties").contents)
    decoded = {name: json.loads(text) if "contentSchema" in fields[name] else text for name, text in record.items()}
    assert as_text(decoded) == as_text(pair["event"])
    for name, value in decoded.items():
        assert list(Draft202012Validator(fields[name].get("contentSchema", fields[name])).iter_errors(value)) == []


def test_every_field_has_an_example() -> None:
    shown: dict[str, set[str]] = {}
    for path in EVENTS:
        record = current(PAIR.validate_json(path.read_text())["record"])
        shown.setdefault(str(record["type"]), set()).update(record)
    for path in PARTS:
        name = path.name.partition(".")[0]
        shown.setdefault(name, set()).update(_read(path) if name == "train" else renamed(_read(path)))
    said = {kind.model_fields["type"].default: set(kind.model_fields) for kind in get_args(get_args(AnyEvent)[0])}
    assert shown == said | {name: set(model.model_fields) for name, (model, _) in MODELS.items()}


@pytest.mark.parametrize("path", RQ_JOBS, ids=lambda path: path.stem)
def test_a_job_written_without_rq_is_parsed(path: Path, published: Registry[JsonValue]) -> None:
    """The hash and its data are valid by the published schema, and the worker parses them."""
    fields = TEXTS.validate_json(path.read_text())
    assert refusals(OBJECT.validate_python(fields), RQ_HASH, published) == []
    assert refusals(json.loads(fields["data"]), f"{RQ_HASH}/properties/data/contentSchema", published) == []
    job = parse("by-hand", {name: text.encode() for name, text in fields.items()})
    assert (parse_job(job.args[0]).dataset, job.timeout, job.options.retries_left) == ("digits", 21_600, 2)


def test_the_published_documents_are_up_to_date() -> None:
    """`make schemas` writes them."""
    assert {**schemas(), **descriptions()} == {path.name: path.read_text() for path in SCHEMAS.glob("*.json")}


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.name)
def test_every_reference_leads_somewhere(path: Path, published: Registry[JsonValue]) -> None:
    resolver = published.resolver(path.name)
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', path.read_text())):
        assert resolver.lookup(reference).contents, reference


def test_every_openapi_schema_is_valid(published: Registry[JsonValue]) -> None:
    """OpenAPI 3.1 uses JSON Schema 2020-12."""
    schemas = published.resolver("openapi.json").lookup("#/components/schemas").contents
    for schema in OBJECT.validate_python(schemas).values():
        Draft202012Validator.check_schema(schema)
