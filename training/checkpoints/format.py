"""Checkpoints on disk: how they are written, found, checked and thinned out; needs no torch.

A checkpoint is two files in the directory of the attempt that wrote it, `<job>/<attempt>/`: the tensors as
`checkpoint-<position>.safetensors`, and then `checkpoint-<position>.json`, which holds everything else and vouches
for both with sha256. Where the second is, the first is whole. Nothing in either is executed when it is read.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from training.config.plan import Plan
from training.config.spec import STRICT, TrainSpec
from training.data import dataset_store as store
from training.data.dataset_store import StoreInfo
from training.loop.train_state import Course
from training.system.atomic_files import BLOCK, open_regular, read_text, staged
from training.system.digests import Digests

LONGEST_HEADER: Final = 16 << 20
"""Bytes; the header names a few hundred tensors, so what claims to be longer is none."""

_ATTEMPT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME: Final = re.compile(r"checkpoint-[0-9]{12}\.json", re.ASCII)
_FILES: Final = re.compile(r"\.?checkpoint-[0-9]{12}\.(json|safetensors)(\..*)?", re.ASCII)
"""What belongs to a checkpoint: its two files, and what a killed writer left of them."""
_SEALED: Final = re.compile(rb'\{"sha256":"([0-9a-f]{64})","checkpoint":(.*)\}\n', re.DOTALL)


class Unusable(Exception):
    """A checkpoint that cannot be gone on from; the message says why, as a clause."""


@plain_dataclass(frozen=True, slots=True)
class Blob:
    """A tensor as safetensors stores it."""

    dtype: str
    """In the words of safetensors, such as `F32`."""
    shape: tuple[int, ...]
    data: memoryview
    """The numbers row by row, as bytes."""
    width: int
    """Bytes of one number."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Checkpoint:
    """Everything of a checkpoint but the tensors."""

    format: Literal[1] = 1
    spec: TrainSpec
    plan: Plan
    """Under which it was trained until then."""
    dataset: str
    data_sha256: str
    """Of the prepared data, wherever they lay."""
    facts: dict[str, JsonValue]
    """Of the request."""
    course: Course
    tensors: tuple[str, ...]
    """Names of the tensors."""
    tensors_bytes: int
    tensors_sha256: str


CHECKPOINT = TypeAdapter(Checkpoint)


@plain_dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that can be gone on from."""

    path: Path
    """Of the JSON file."""
    epoch: int
    """Epochs done."""
    step: int
    """Steps done of the epoch after them."""
    position: int
    """Steps done in all."""
    plan: Plan
    """Under which it was trained until then."""
    facts: dict[str, JsonValue]
    """Of the request for that training."""


@plain_dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a training is made from: the same in all its checkpoints."""

    spec: TrainSpec
    plan: Plan
    dataset: str
    data_sha256: str
    """Of the prepared data, as `store.checksum` returns it."""
    facts: dict[str, JsonValue]


def tensors_of(path: Path) -> Path:
    """Return where the tensors of the checkpoint described at `path` lie."""
    return path.with_suffix(".safetensors")


def write(directory: Path, origin: Origin, course: Course, tensors: Mapping[str, Blob]) -> tuple[Path, int]:
    """Write a checkpoint, whole or not at all; return the path of its JSON and the bytes of both files.

    Raises:
        OSError: it cannot be written; an earlier checkpoint stays as it was.
    """
    path = directory / f"checkpoint-{course.position:012d}.json"
    digest, count = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes | memoryview]:
        nonlocal count
        for chunk in _safetensors(tensors):
            for start in range(0, len(chunk), BLOCK):  # what was just hashed is still in the processor's cache
                piece = chunk[start : start + BLOCK]
                digest.update(piece)
                count += len(piece)
                yield piece

    with staged(tensors_of(path), hashed(), uncached=True) as put_tensors:
        checkpoint = Checkpoint(
            spec=origin.spec, plan=origin.plan, dataset=origin.dataset, data_sha256=origin.data_sha256,
            facts=origin.facts, course=course, tensors=tuple(tensors), tensors_bytes=count,
            tensors_sha256=digest.hexdigest(),
        )  # fmt: skip
        body = CHECKPOINT.dump_json(checkpoint)
        seal = hashlib.sha256(body).hexdigest().encode()
        sealed = b'{"sha256":"%b","checkpoint":%b}\n' % (seal, body)
        with staged(path, (sealed,)) as vouch:
            put_tensors()
            vouch()
    return path, count + len(sealed)


def _safetensors(tensors: Mapping[str, Blob]) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece (github.com/huggingface/safetensors, "Format"), so that no copy is made of it."""
    # The widest numbers first: then each tensor begins at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].width, item[0]))
    header: dict[str, JsonValue] = {}
    end = 0
    for name, blob in ordered:
        begin, end = end, end + blob.data.nbytes
        header[name] = {"dtype": blob.dtype, "shape": list(blob.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for _, blob in ordered:
        yield blob.data


def candidates(job_dir: Path, spec: TrainSpec, info: StoreInfo, digests: Digests) -> tuple[list[Found], list[str]]:
    """Return what a training of `spec` on `info` can go on from, over all attempts, best first, and what it cannot.

    Best is the highest position, then the highest attempt. The others are named in one sentence each. Nothing in
    `job_dir` raises; symbolic links are not followed. Data and tensors are hashed unless `digests` knows them.

    Raises:
        DatasetError: the data set that `info` tells of cannot be read.
    """
    found: list[tuple[int, int, Found]] = []
    warnings: list[str] = []
    described = _described(job_dir)
    data_sha256 = store.checksum(info, digests) if described else ""
    for attempt, path in described:
        try:
            checkpoint = read(path, spec, data_sha256, digests)
        except Unusable as error:
            warnings.append(passed_over(path, error))
            continue
        course = checkpoint.course
        usable = Found(path, course.epoch, course.step, course.position, checkpoint.plan, checkpoint.facts)
        found.append((course.position, attempt, usable))
    found.sort(key=lambda each: each[:2], reverse=True)
    return [usable for _, _, usable in found], warnings


def passed_over(path: Path, why: Unusable) -> str:
    """Return the sentence that says why the checkpoint at `path` is not used."""
    return f"checkpoint {path} is passed over because {why}"


def read(path: Path, spec: TrainSpec, data_sha256: str, digests: Digests) -> Checkpoint:
    """Return the checkpoint described at `path`, its tensors verified but not loaded.

    Raises:
        Unusable: it is damaged, or of a training of another spec or of other data.
    """
    checkpoint = _unsealed(path)
    if checkpoint.spec != spec:
        there, here = asdict(checkpoint.spec), asdict(spec)
        differing = ", ".join(name for name in here if there[name] != here[name])
        raise Unusable(f"it is of another job, whose spec differs in {differing}")
    if checkpoint.data_sha256 != data_sha256:
        raise Unusable(f"data set {spec.dataset!r} held other data when it was made")
    _verify(tensors_of(path), checkpoint, digests)
    return checkpoint


def _unsealed(path: Path) -> Checkpoint:
    try:
        content = read_text(path)
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror or error})") from error
    match = _SEALED.fullmatch(content)
    if match is None or hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        raise Unusable("it is damaged: its checksum does not match")
    try:
        return CHECKPOINT.validate_json(match[2])
    except (ValidationError, RecursionError) as error:
        raise Unusable("it is not of this version") from error


def _verify(path: Path, checkpoint: Checkpoint, digests: Digests) -> None:
    """Raise `Unusable` unless `path` holds the very tensors that were written."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != checkpoint.tensors_bytes:
                raise Unusable(f"{path.name} has {size:,} bytes instead of {checkpoint.tensors_bytes:,}")
            if digests.sha256(file) != checkpoint.tensors_sha256:
                raise Unusable(f"{path.name} is damaged: its sha256 is not the recorded one")
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path.name} is not in the form of safetensors") from error
    if not isinstance(header, dict) or header.keys() != set(checkpoint.tensors):
        raise Unusable(f"{path.name} does not hold the tensors that it should")


def prune(directory: Path, keep: Collection[Path]) -> None:
    """Remove the checkpoints but `keep` (JSON paths) of the attempt that writes to `directory`, and of those before.

    A later attempt's are left alone: who wakes up after it was given up shall not harm its successor.

    Raises:
        OSError: a directory cannot be read or written.
    """
    kept = {name for path in keep for name in (path, tensors_of(path))}
    for place in _until(directory):
        unneeded = [path for path in _files(place) if path not in kept]
        # Its JSON first, so that what is half removed is no checkpoint.
        for path in sorted(unneeded, key=lambda path: path.suffix != ".json"):
            path.unlink(missing_ok=True)


def held_bytes(directory: Path) -> int:
    """Return the bytes of the checkpoints that `prune(directory, ())` would remove."""
    return sum(path.lstat().st_size for place in _until(directory) for path in _files(place))


def _until(directory: Path) -> list[Path]:
    """Return an attempt's directory and those of the attempts before it."""
    if not _ATTEMPT.fullmatch(directory.name):
        return [directory]
    return [place for number, place in _attempts(directory.parent) if number <= int(directory.name)]


def _attempts(job_dir: Path) -> list[tuple[int, Path]]:
    try:
        places = [place for place in job_dir.iterdir() if _ATTEMPT.fullmatch(place.name)]
    except OSError:
        return []
    return sorted((int(place.name), place) for place in places if place.is_dir() and not place.is_symlink())


def _files(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if _FILES.fullmatch(path.name)]
    except OSError:
        return []


def _described(job_dir: Path) -> list[tuple[int, Path]]:
    """Return every checkpoint's JSON, with the number of its attempt."""
    return [
        (number, path)
        for number, place in _attempts(job_dir)
        for path in sorted(_files(place))
        if _NAME.fullmatch(path.name)
    ]
