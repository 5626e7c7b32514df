"""Documents in `docs/schemas/`: `python -m worker.web.documents.schemas` writes JSON Schemas, OpenAPI and AsyncAPI."""

import sys
from pathlib import Path

from preflight.wire.json_schema import as_text, schemas
from worker.config.settings import Settings
from worker.web.application import create_routes
from worker.web.documents.asyncapi import asyncapi


def descriptions() -> dict[str, str]:
    """Return file name -> OpenAPI or AsyncAPI document as JSON text."""
    app, _, _ = create_routes(Settings())
    return {"openapi.json": as_text(app.openapi()), "asyncapi.json": as_text(asyncapi())}


def write(directory: Path) -> None:
    """Write all documents into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {**schemas(), **descriptions()}.items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schemas"))
