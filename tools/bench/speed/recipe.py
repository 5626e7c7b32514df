"""A process that trains one spec under one plan, as a job does; prints seconds (imports apart) and test accuracy."""

import json
import sys
import tempfile
import time
from pathlib import Path

from pydantic import JsonValue

from preflight.files.journal import JournalWriter
from training.loop.child import REQUEST, train


class Timed(JournalWriter):
    """Notes the end of the imports, and the test accuracy."""

    began = 0.0
    accuracy = 0.0

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Write a record."""
        super().write(kind, payload, durable=durable)
        if kind == "start":
            self.began = time.perf_counter()
        elif kind == "done":
            self.accuracy = float(str(payload["test_accuracy"]))


def main() -> None:
    """Train, and print the figures."""
    asked = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="bench-recipe-") as name:
        directory = Path(name)
        places = {"artifact": str(directory / "artifact"), "checkpoints": str(directory / "checkpoints")}
        request = REQUEST.validate_json(json.dumps({**asked, **places, "facts": {}}))
        journal = Timed(directory / "journal", "bench")
        train(request, journal, lambda: False)
        seconds = time.perf_counter() - journal.began
    print(json.dumps({"seconds": seconds, "accuracy": journal.accuracy}))


if __name__ == "__main__":
    main()
