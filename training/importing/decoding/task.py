"""Task: the message of the pool to a decoding child."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from preflight.pictures.form import Form
from training.importing.shards import Shard


@dataclass(slots=True)
class Task:
    """A shard that is to be decoded; `form` None: to be probed."""

    name: str
    """Name of its files."""
    shard: Shard
    form: Form | None
    earlier: tuple[str, str] | None = None
    """Rows and store of the version before, of the same source and form."""
    skip: dict[int, str] = field(default_factory=dict)
    """Samples that ended a child, and how."""

    def line(self) -> bytes:
        """Return the task as a child reads it."""
        form = None if self.form is None else asdict(self.form)
        asked: dict[str, object] = {
            "name": self.name, "shard": self.shard.as_json(), "form": form, "earlier": self.earlier, "skip": self.skip,
        }  # fmt: skip
        return json.dumps(asked).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Task:
        """Return the task in a line that `line` made."""
        said = json.loads(line)
        part = said["shard"]
        shard = Shard(
            kind=part["kind"], path=part["path"], first=part["first"], count=part["count"], files=tuple(part["files"]),
            labels=tuple(part["labels"]), sides=tuple(part["sides"]), groups=tuple(part["groups"]),
            names=tuple(part["names"]), extra=part["extra"],
        )  # fmt: skip
        form = None if said["form"] is None else Form(**said["form"])
        earlier = None if said["earlier"] is None else (said["earlier"][0], said["earlier"][1])
        return cls(said["name"], shard, form, earlier, {int(item): why for item, why in said["skip"].items()})
