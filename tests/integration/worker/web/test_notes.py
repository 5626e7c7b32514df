"""Notes and tags over HTTP and on the command line: bounded, searched, refused by a read-only service."""

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from redis import Redis
from support.web.service import Service, serving
from support.worker.services import digits_job, wait_until

from preflight import Client
from preflight.cli.app import main
from preflight.errors import InvalidConfig
from preflight.redis import keys
from worker.config.settings import Settings

SCRIPT = "<script>alert(1)</script>"


def found(service: Service, q: str) -> list[object]:
    jobs = service.ask("GET", f"/v1/search?{urlencode({'q': q})}")["jobs"]
    assert isinstance(jobs, list)
    return [job["job_id"] for job in jobs]


def test_notes_and_tags_are_kept_and_searched(service: Service, client: Client, raw: Redis) -> None:
    for job_id in ("one", "two"):
        client.enqueue(digits_job(job_id=job_id))
    changed = service.ask("POST", "/v1/jobs/one/notes", {"tags": ["base", "lr-sweep", "base"], "note": SCRIPT})
    assert (changed.status, changed["tags"], changed["note"]) == (200, ["base", "lr-sweep"], SCRIPT)
    service.ask("POST", "/v1/jobs/two/notes", {"tags": ["base-2"]})
    shown = service.ask("GET", "/v1/jobs/one")
    assert (shown["tags"], shown["note"]) == (["base", "lr-sweep"], SCRIPT)
    wait_until(lambda: found(service, "tag=base") == ["one"])
    assert {*found(service, "tag:base")} == {"one", "two"}
    assert found(service, "tag!=base") == ["two"]
    assert found(service, "note:script") == found(service, "lr-sweep") == ["one"]
    assert service.ask("GET", f"/v1/search?{urlencode({'q': 'tag>1'})}")["field"] == "q"
    assert service.ask("POST", "/v1/jobs/one/notes", {"tags": []})["note"] == SCRIPT
    assert 0 < raw.ttl(keys.notes("one")) <= 30 * 86_400
    assert service.ask("POST", "/v1/jobs/nobodys/notes", {"note": "x"}).status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tags": [f"t{number}" for number in range(21)]}, "tags"), ({"tags": ["two words"]}, "tags"),
        ({"tags": ["x" * 41]}, "tags"), ({"tags": [""]}, "tags"), ({"tags": ["a\x00b"]}, "tags"),
        ({"note": "x" * 4001}, "note"), ({"note": 5}, "note"), ({"name": "x"}, "name"), ({"tags": "base"}, "tags"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_in_one_sentence(body: dict[str, object], field: str) -> None:
    from pydantic import ValidationError

    from preflight.wire.validation_errors import to_invalid_config
    from worker.web.models import ChangeNotes

    with pytest.raises(ValidationError) as refused:
        ChangeNotes.model_validate(body)
    error = to_invalid_config(refused.value, ChangeNotes.model_json_schema())
    assert (error.field or "").startswith(field)
    assert "\n" not in error.message


def test_floods_are_refused_and_garbage_is_left_out(
    service: Service, client: Client, raw: Redis, settings: Settings, tmp_path: Path
) -> None:
    """10,000 tags, a note of a megabyte, and whatever is in the key."""
    client.enqueue(digits_job(job_id="one"))
    many = service.ask("POST", "/v1/jobs/one/notes", {"tags": [f"t{number}" for number in range(10_000)]})
    assert many.status in (413, 422)
    long = service.ask("POST", "/v1/jobs/one/notes", {"note": "x" * 70_000})
    assert (long.status, long["reason"]) == (413, "too_large")
    with suppress(ConnectionError):  # it is refused before all of it is sent
        assert service.ask("POST", "/v1/jobs/one/notes", {"note": "x" * (1 << 20)}).status == 413
    with pytest.raises(InvalidConfig, match=r"tags is .* at most 20 entries"):
        client.annotate("one", tags=[f"t{number}" for number in range(10_000)])
    with pytest.raises(InvalidConfig, match=r"note is .* at most 4000 characters"):
        client.annotate("one", note="x" * (1 << 20))
    for fields in (["tags", "[[["], ["tags", '["' + "x" * 100 + '"]'], ["note", b"\xff", "tags", "{}"]):
        raw.delete(keys.notes("one"))
        raw.hset(keys.notes("one"), items=[*fields])
        assert service.ask("GET", "/v1/jobs/one").status == 200
        assert service.ask("GET", "/v1/search").status == 200
    raw.delete(keys.notes("one"))
    raw.rpush(keys.notes("one"), "x")
    assert service.ask("GET", "/v1/jobs/one")["status"] == "queued"
    raw.delete(keys.notes("one"))
    with serving(settings, tmp_path, PREFLIGHT_WEB_READONLY="on") as closed:
        refused = closed.ask("POST", "/v1/jobs/one/notes", {"note": "x"})
        assert (refused.status, refused["reason"]) == (403, "read_only")
    assert not raw.exists(keys.notes("one"))


def test_the_command_line_writes_and_filters(client: Client, settings: Settings) -> None:
    for job_id in ("one", "two"):
        client.enqueue(digits_job(job_id=job_id))
    run = CliRunner(env={"REDIS_URL": settings.redis_url})

    def told(*arguments: str) -> str:
        done = run.invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert told("note", "one", f"with {SCRIPT}\x1b[31m", "--tag", "base") == f"tags: base\nwith {SCRIPT}\\x1b[31m\n"
    assert told("note", "one", "--tag", "v2", "--untag", "base").startswith("tags: v2\n")
    assert "TAGS" in told("jobs")
    assert "two" not in told("jobs", "--tag", "v2")
    assert '"tags": ["v2"]' in told("jobs", "--tag", "v2", "--json")
    assert told("note", "one", "") == "tags: v2\n"
    assert told("note", "two") == ""
