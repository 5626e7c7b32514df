"""One import, from a source to a version in the catalog."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from preflight.errors import DatasetError, PreflightError
from preflight.pictures.form import Form
from training.catalog.catalog import Catalog
from training.catalog.version import ClassCount, Version
from training.importing.decoding.pool import Pool
from training.importing.decoding.task import Task
from training.importing.form import Options
from training.importing.pairs import write_pairs
from training.importing.revision import STAGED, put_in_place
from training.importing.shards import TEST, TRAIN, VALIDATION, Decoded, Shard
from training.importing.sources.base import Source, check_classes, check_samples, class_name, in_order, refuse

if TYPE_CHECKING:
    from training.importing.building.decoded import DecodedRows

FORM: Final = "form.json"
"""File in the working directory with the form, which a continued import keeps."""
LEAST_REFUSED: Final = 1
"""Refused samples that never end an import."""
PROBES: Final = TypeAdapter(list[tuple[int, int, bool, int]])
NAMED: Final = 3
"""Reasons that the error of a refused import names."""
ERASED: Final = "deleted before from this data set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of an import: source, name and options."""

    name: str
    source: str
    """Source as the user wrote it."""
    options: Options
    processes: int
    environment: Mapping[str, str]
    """Environment variables of the decoding children."""
    upload: str = ""
    """Id of an uploaded source: rows that were decoded of another upload do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of an import."""

    stage: str
    read: int = 0
    refused: int = 0
    total: int = 0
    """Number of samples; 0: not known."""
    rate: float = 0.0
    """Samples per second."""
    seconds_left: float | None = None


Tell = Callable[[Progress], None]
Find = Callable[[Path, Callable[[], None]], Source]
"""Function that returns the samples of the source; it takes the working directory and a check to call."""


def run_import(
    request: Request, catalog: Catalog, find: Find, tell: Tell, check: Callable[[], None] = lambda: None
) -> tuple[Version, bool]:
    """Import a source as the next version of a name; return it, and whether it is new.

    After a kill the same request continues with the tasks that were decoded. A content that the newest version already
    has makes no new one. A refused import leaves nothing behind.

    Raises:
        PreflightError: the source cannot be imported.
    """
    with catalog.importing(request.name) as directory:
        work = directory / _key(request)
        try:
            for other in directory.iterdir():
                if other != work:
                    shutil.rmtree(other, ignore_errors=True)
            work.mkdir(exist_ok=True)
            with Pool(work, request.processes, request.environment) as pool:  # they start while the source is read
                source = find(work, check)
                check_samples(source.samples)
                tell(Progress(stage="looking at some of the pictures"))
                form = _form(source, request.options, work, pool, check)
                earlier = _earlier(request, catalog, form)
                tasks = _decode(source, form, work, pool, request.options, earlier, tell, check)
            tell(Progress(stage="checking", read=sum(done.items for _, _, done in tasks)))
            version = _build(request, catalog, source, form, work, tasks, tell, check)
        except OSError as error:
            _discard(directory)
            raise DatasetError(
                f"{error.filename or work} cannot be written or read ({error.strerror or error}); make room in "
                f"{catalog.root.parent} or set PREFLIGHT_DATA_DIR",
                field=request.name,
            ) from error
        except PreflightError:
            _discard(directory)
            raise
        _discard(directory)
        return version


def _discard(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _key(request: Request) -> str:
    asked = json.dumps([request.source, request.upload, asdict(request.options)], sort_keys=True)
    return hashlib.blake2b(asked.encode(), digest_size=8).hexdigest()


def _form(source: Source, options: Options, work: Path, pool: Pool, check: Callable[[], None]) -> Form:
    """Return the form of an earlier try of this import that looked at the same pictures, else choose one."""
    from training.importing.building.choosing import choose_form, sample

    some = sample(source.shards)
    of = hashlib.blake2b(json.dumps([[shard.as_json(), shard.state()] for shard in some]).encode()).hexdigest()
    with suppress(OSError, ValueError, TypeError, KeyError):
        said = json.loads((work / FORM).read_bytes())
        if said["of"] == of:
            return Form(**said["form"])
    found: list[tuple[int, int, bool, int]] = []
    refused = Counter[str]()
    asked = [Task(f"probe-{number}", shard, None) for number, shard in enumerate(some)]
    for answer in pool.run(asked, check):
        match answer:
            case {"probes": list(probes), "refused": list(left)}:
                found += PROBES.validate_python(probes)
                refused.update(str(one[1]) for one in left if isinstance(one, list))
            case {"failed": str(why)}:
                refused[why] += 1
    if not found:
        why = "; ".join(reason for reason, _ in refused.most_common(NAMED))
        raise refuse(f"none of the first pictures can be read: each {why}" if why else "there are no pictures")
    form = choose_form(found, options)
    staged = work / f".{FORM}"
    staged.write_text(json.dumps({"form": asdict(form), "of": of}))
    staged.rename(work / FORM)
    return form


def _earlier(request: Request, catalog: Catalog, form: Form) -> tuple[str, str] | None:
    """Return rows and store of the newest version, where it is of the same source and form."""
    numbers = catalog.numbers(request.name)
    newest = catalog.find(f"{request.name}@{numbers[-1]}") if numbers else None
    if newest is None or newest.source != request.source or newest.asked.get("inverted") != form.invert:
        return None
    if newest.shape != (form.channels, form.height, form.width):
        return None
    return str(catalog.rows(newest.sha256)), str(catalog.store(newest.sha256))


def _decode(
    source: Source, form: Form, work: Path, pool: Pool, options: Options, earlier: tuple[str, str] | None, tell: Tell,
    check: Callable[[], None],
) -> list[tuple[Shard, str, Decoded]]:  # fmt: skip
    """Decode every task that is not done; return all in their order."""
    keys = [shard.key(form) for shard in source.shards]
    done = {
        key: found for shard, key in zip(source.shards, keys, strict=True)
        if (found := Decoded.read(work / f"{key}.json")) is not None and found.state == shard.state()
    }  # fmt: skip
    before, began = sum(each.items for each in done.values()), time.monotonic()
    read, refused = before, sum(len(each.refused) for each in done.values())
    waiting = [
        Task(key, shard, form, earlier) for shard, key in zip(source.shards, keys, strict=True) if key not in done
    ]
    for answer in pool.run(waiting, check):
        match answer:
            case {"name": str(name), "failed": str(why)}:
                _end(answer, name, why, dict(zip(keys, source.shards, strict=True)))
            case {"name": str(name)}:
                found = Decoded.read(work / f"{name}.json")
                if found is None:
                    raise DatasetError(f"{work} has lost a file of the import; begin again")
                done[name] = found
                read, refused = read + found.items, refused + len(found.refused)
                seconds = time.monotonic() - began
                rate = (read - before) / seconds if seconds else 0.0
                left = (source.samples - read) / rate if source.samples and rate else None
                tell(Progress(stage="reading", read=read, refused=refused, total=source.samples, rate=rate,
                              seconds_left=left))  # fmt: skip
                if source.samples:
                    pairs = zip(source.shards, keys, strict=True)  # `done` has them in the order in which they ended
                    _check_refused([(shard, done[key]) for shard, key in pairs if key in done], source, options)
    tasks = [(shard, key, done[key]) for shard, key in zip(_numbered(source.shards, keys, done), keys, strict=True)]
    _check_refused([(shard, found) for shard, _, found in tasks], source, options)
    return tasks


def _numbered(shards: Iterable[Shard], keys: Iterable[str], done: Mapping[str, Decoded]) -> Iterator[Shard]:
    """Yield the tasks with the numbers of their first samples, which tables of pixels have only now."""
    lines = 0
    for shard, key in zip(shards, keys, strict=True):
        if shard.kind != "pixels":
            yield shard
            continue
        lines = 0 if shard.extra["whole"] else lines
        yield dataclasses.replace(shard, first=lines + 1)
        lines += done[key].items


def _end(answer: Mapping[str, object], name: str, why: str, shards: Mapping[str, Shard]) -> None:
    """Raise the error of a task that failed as a whole."""
    if "errno" in answer:
        raise OSError(answer["errno"], why.rpartition(": ")[2], why.rpartition(": ")[0] or None)
    raise refuse(f"{Path(shards[name].path).name}: {why}")


def _check_refused(done: list[tuple[Shard, Decoded]], source: Source, options: Options) -> None:
    """Raise `DatasetError` where too large a share is refused."""
    reasons = Counter(why for _, each in done for _, why in each.refused)
    for refused in source.refused:
        reasons[refused.reason] += refused.count
    total = max(source.samples, sum(each.items for _, each in done)) + sum(each.count for each in source.refused)
    count = sum(reasons.values())
    if count > max(LEAST_REFUSED, options.max_refused * total) or count == total:
        named = "; ".join(f"{number:,}: {reason}" for reason, number in reasons.most_common(NAMED))
        first = next((f", {shard.name(each.refused[0][0])} first" for shard, each in done if each.refused), "")
        raise DatasetError(
            f"{count:,} of {total:,} samples are refused ({named}{first}), more than {options.max_refused:.2%}; "
            "correct them or raise --max-refused",
            field="max_refused",
        )


def _build(
    request: Request, catalog: Catalog, source: Source, form: Form, work: Path,
    tasks: list[tuple[Shard, str, Decoded]], tell: Tell, check: Callable[[], None],
) -> tuple[Version, bool]:  # fmt: skip
    """Split, look for duplicates, write the store and register it."""
    import numpy as np

    from training.importing.building.decoded import gather
    from training.importing.building.duplicates import find_duplicates
    from training.importing.building.findings import find_overlap, report
    from training.importing.building.splitting import assign_sides
    from training.importing.building.store import Plan, StoreWriter, write_rows
    from training.importing.erasing import is_erased, read_erased

    names = source.order or in_order(class_name(name) for _, _, done in tasks for name in done.names)
    decoded = gather(work, form, tasks, names)
    decoded = decoded.without(is_erased(decoded.rows, read_erased(catalog, request.name)), ERASED)
    check_samples(len(decoded.rows))
    decoded = _with_present_classes(decoded)
    sides = assign_sides(decoded.rows, decoded.labels, request.options)
    duplicates = find_duplicates(decoded.rows, decoded.pixels)
    check()
    overlap = find_overlap(duplicates, sides, decoded.rows["constant"])
    kept = np.ones(len(sides), bool) if request.options.keep_duplicates else ~overlap.leaked
    plan = Plan.of(decoded.rows, sides, kept)
    _require_both(plan.train, plan.test, request.options)
    tell(Progress(stage="writing", read=len(decoded.rows)))
    writer = StoreWriter(decoded, plan, request.name, check)
    counts = {side: np.bincount(decoded.labels[kept & (sides == side)], minlength=len(decoded.names)).tolist()
              for side in (TRAIN, VALIDATION, TEST)}  # fmt: skip
    with writer.staged(work / STAGED[0]) as commit:
        commit()
    write_rows(work / STAGED[1], decoded, plan)
    write_pairs(
        work / STAGED[2], decoded.rows, decoded.labels, plan.numbers(len(decoded.rows)), duplicates, decoded.name
    )
    version = Version(
        name=request.name, version=1, sha256=writer.sha256,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"), source=request.source, kind=source.kind,
        shape=writer.shape,
        classes=tuple(
            ClassCount(name=name, train=counts[TRAIN][label], validation=counts[VALIDATION][label],
                       test=counts[TEST][label])
            for label, name in enumerate(decoded.names)
        ),
        asked={**asdict(request.options), "size": [form.height, form.width], "inverted": form.invert},
        report=report(decoded, source, sides, kept, duplicates, overlap),
    )  # fmt: skip
    before = catalog.numbers(request.name)
    newest = catalog.find(f"{request.name}@{before[-1]}") if before else None
    if newest is not None and newest.sha256 == version.sha256 and catalog.store(version.sha256).exists():
        return newest, False
    return catalog.register(version, lambda: put_in_place(catalog, version.sha256, work)), True


def _with_present_classes(decoded: DecodedRows) -> DecodedRows:
    """Return the rows with the classes that have samples."""
    import numpy as np

    counts = np.bincount(decoded.labels, minlength=len(decoded.names))
    present = np.flatnonzero(counts)
    names = tuple(decoded.names[label] for label in present)
    check_classes(names)
    numbers = np.cumsum(counts > 0) - 1
    return dataclasses.replace(decoded, names=names, labels=numbers[decoded.labels])


def _require_both(train: object, test: object, options: Options) -> None:
    import numpy as np

    if np.size(np.asarray(train)) == 0:
        raise refuse("no sample is left for training; lower --test or --validation, or use --keep-duplicates", "test")
    if np.size(np.asarray(test)) == 0:
        raise refuse(f"--test is {options.test:g}, which leaves the test set empty; use more than 0", "test")
