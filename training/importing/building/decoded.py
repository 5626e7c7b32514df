"""The decoded rows of an import: of all its tasks together, with the pictures where their children left them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from preflight.pictures.form import Form
from training.importing.rows import ROW, Images, Rows
from training.importing.shards import EXAMPLES, Decoded, Refused, Shard
from training.importing.sources.base import class_name

OPEN: Final = 256
"""Files of pictures that are mapped at once."""


@dataclass(slots=True, eq=False)
class DecodedRows:
    """Rows [N] in the order of the tasks."""

    work: Path
    form: Form
    shards: list[tuple[Shard, str]]
    """Tasks that have rows, and the names of their files."""
    rows: Rows
    starts: npt.NDArray[np.int64]
    """Number of the first row of each task, and N at last."""
    labels: npt.NDArray[np.int64]
    """Number of each row's class in `names`."""
    names: tuple[str, ...]
    refused: tuple[Refused, ...] = field(default=())
    _maps: dict[int, Images] = field(default_factory=dict, init=False)
    items: int = 0
    """Samples that were read, those that are refused included."""
    places: npt.NDArray[np.int64] = field(kw_only=True)
    """Number of each row among those of all tasks, from which some may have been left out."""

    def without(self, gone: npt.NDArray[np.bool_], reason: str) -> DecodedRows:
        """Return the rows that are not `gone`, which count as refused, without names of files."""
        if not gone.any():
            return self
        refused = Refused(reason=reason, count=int(gone.sum()), files=())
        return replace(
            self, rows=self.rows[~gone], labels=self.labels[~gone], places=self.places[~gone],
            refused=(*self.refused, refused),
        )  # fmt: skip

    def name(self, row: int) -> str:
        """Return the name of a row's sample in messages."""
        shard = int(np.searchsorted(self.starts, self.places[row], side="right")) - 1
        return self.shards[shard][0].name(int(self.rows[row]["item"]))

    def pixels(self, wanted: npt.NDArray[np.int64]) -> Images:
        """Return the pictures [n, C, H, W] of these rows."""
        form = self.form
        images = np.empty((len(wanted), form.channels, form.height, form.width), np.uint8)
        wanted = self.places[wanted]
        shards = np.searchsorted(self.starts, wanted, side="right") - 1
        order = np.argsort(shards, kind="stable")
        bounds = np.flatnonzero(np.diff(shards[order], prepend=-1))
        for begin, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
            places = order[begin:end]
            shard = int(shards[places[0]])
            images[places] = self._images(shard).take(wanted[places] - self.starts[shard], 0)
        return images

    def _images(self, shard: int) -> Images:
        found = self._maps.get(shard)
        if found is None:
            while len(self._maps) >= OPEN:
                del self._maps[next(iter(self._maps))]
            path = self.work / f"{self.shards[shard][1]}.images.npy"
            found = self._maps[shard] = np.load(path, mmap_mode="r", allow_pickle=False)
        return found


def gather(work: Path, form: Form, tasks: list[tuple[Shard, str, Decoded]], order: tuple[str, ...]) -> DecodedRows:
    """Return the rows of all tasks; classes are numbered in the order of `order`, others behind them as they come."""
    names: dict[str, int] = {name: number for number, name in enumerate(order)}
    parts, labels, starts, counted = [np.empty(0, ROW)], [np.empty(0, np.int64)], [0], []
    reasons: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    items = 0
    for shard, key, done in tasks:
        items += done.items
        for item, why in done.refused:
            reasons[why] += 1
            if len(examples.setdefault(why, [])) < EXAMPLES:
                examples[why].append(shard.name(item))
        if not done.rows:
            continue
        rows: Rows = np.load(work / f"{key}.rows.npy", allow_pickle=False)
        numbers = np.asarray([names.setdefault(class_name(name), len(names)) for name in done.names], np.int64)
        parts.append(rows)
        labels.append(numbers[rows["label"]])
        starts.append(starts[-1] + len(rows))
        counted.append((shard, key))
    refused = tuple(
        Refused(reason=why, count=count, files=tuple(examples[why])) for why, count in reasons.most_common()
    )
    return DecodedRows(
        work=work, form=form, shards=counted, rows=np.concatenate(parts), starts=np.asarray(starts),
        labels=np.concatenate(labels), names=tuple(names), refused=refused, items=items, places=np.arange(starts[-1]),
    )  # fmt: skip
