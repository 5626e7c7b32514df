"""A knob is one field of the plan: everything that shows or tries it takes it from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.files.trees import ROOT, copy_packages

BEFORE = "    device: Annotated[Device"
FIELD = '''    huge_pages: Annotated[
        Literal["off", "on"], Words(texts={"on": "huge pages", "off": "small pages"}), Knob(tries=("on",), gain=1.4)
    ] = "off"
    """Whether the heap asks for pages of 2 MiB."""
'''
PROGRAM = """
import json
from dataclasses import asdict
from preflight.cli.formatting.fields import field_table
from preflight.wire import EVENT, parse_job
from preflight.wire.events import flatten
from preflight.wire.json_schema import job_schema
from calibration.choose import PlanChoice
from calibration.search.search import search
from calibration.space import Space
from calibration.task import Task
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated, usual
from worker.cli.formatting.explanation import _explain
from worker.events.plan_words import reasons
from worker.web.streams.stream_record import parse_records

job = parse_job({"type": "preflight.train.v1", "dataset": "mnist", "plan": {"huge_pages": "on"},
                 "calibration_knobs": ["huge_pages"]})
space = Space(threads=(2, 1), processors=2, bfloat16=False, tcmalloc=False, compiler=False)
task = Task(own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=5, space=space,
            memory_bytes=4096 * MIB, samples=16, exact=False, seconds=45.0)
finding = search(task, Simulated(lambda plan: usual(plan) / (1.5 if plan.huge_pages == "on" else 1.0)), Memoryless(),
                 lambda _: None)
choice = PlanChoice(plan=finding.plan, source="measured", why=finding.why, finding=finding)
event = EVENT.validate_python({"type": "training_config", "seq": 1, "job_id": "a", "attempt": 1, "ts": 1.0,
                               "batch_size": 128, **asdict(finding.plan)})
fields = {name.encode(): value.encode() for name, value in flatten(event).items()}
(record,) = parse_records([(b"1-0", fields)])
print(json.dumps({
    "request": job.plan.model_dump(exclude_none=True), "knobs": job.calibration_knobs,
    "schema": job_schema()["$defs"]["OwnPlan"]["properties"]["huge_pages"], "help": field_table(),
    "plan": finding.plan.huge_pages, "explanation": _explain(choice, finding), "reasons": reasons(finding),
    "page": record.text.decode(),
}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages in which one file has one more field."""
    tree = copy_packages(tmp_path_factory.mktemp("tree"))
    plan = tree / "preflight/contract/plan.py"
    text = plan.read_text()
    assert BEFORE in text
    plan.write_text(text.replace(BEFORE, FIELD + BEFORE))
    return tree


@pytest.fixture(scope="module")
def shown(tree: Path) -> dict[str, object]:
    """Return what a process with those packages says of the field."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{ROOT / 'tests'}"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found


def test_the_wire_format_has_it(shown: dict[str, object]) -> None:
    """A request may set it, its calibration may be told to try it, and the schema has its values and description."""
    assert shown["request"] == {"huge_pages": "on"}
    assert shown["knobs"] == ["huge_pages"]
    assert shown["schema"] == {
        "anyOf": [{"enum": ["off", "on"], "type": "string"}, {"type": "null"}], "default": None, "title": "Huge Pages",
        "description": "Whether the heap asks for pages of 2 MiB",
    }  # fmt: skip


def test_the_help_lists_it(shown: dict[str, object]) -> None:
    row = next(line for line in str(shown["help"]).splitlines() if line.startswith("plan.huge_pages"))
    assert "off" in row
    assert "pages of 2 MiB" in row


def test_the_search_tries_it_and_explains_it(shown: dict[str, object]) -> None:
    assert shown["plan"] == "on"
    assert "huge pages: about 1.50x" in str(shown["reasons"])
    rows = [line for line in str(shown["explanation"]).splitlines() if line.startswith("huge_pages")]
    assert "huge pages" in rows[0]


def test_the_page_shows_its_words(shown: dict[str, object]) -> None:
    """In the sentence of the event, and in the words from which the page makes its own."""
    lines = dict(line.split(": ", 1) for line in str(shown["page"]).strip().splitlines())
    words = json.loads(lines["plan"])
    assert words["words"]["huge_pages"] == "huge pages"
    assert "huge_pages" in words["mentioned"]
    assert "huge pages" in lines["text"]
