"""JSON Schemas of everything on the wire; `python -m worker.schemas` writes them to `docs/schemas/`."""

import json
import sys
from pathlib import Path
from typing import Final

from worker.wire import EVENT, JobState, TrainJob, TrainResult

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """Return file name -> schema as JSON text."""
    contents = {
        "train.v1.json": TrainJob.model_json_schema(),
        "event.v1.json": EVENT.json_schema(mode="serialization"),
        "result.v1.json": TrainResult.model_json_schema(mode="serialization"),
        "state.v1.json": JobState.model_json_schema(mode="serialization"),
    }
    return {
        name: json.dumps({"$schema": DIALECT, **schema}, indent=2, sort_keys=True) + "\n"
        for name, schema in contents.items()
    }


def write(directory: Path) -> None:
    """Write the schemas into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schemas"))
