"""Checkpoint files: written and verified; needs no torch.

A checkpoint is two files in the directory of the attempt that wrote it, `<job>/<attempt>/`: the tensors as
`checkpoint-<position>.safetensors`, and then `checkpoint-<position>.json`, which holds everything else and vouches
for both with sha256. Where the second is, the first is whole. Nothing in either is executed when it is read.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from preflight.contract.removed import in_one_process
from preflight.contract.spec import STRICT, TrainSpec
from preflight.files.atomic_files import open_regular, read_text, staged
from training.checkpoints.files import tensors_of
from training.step.train_state import TrainState
from training.system.digests import Digests, HashedChunks
from training.system.safetensors_file import TensorView, safetensors_chunks

LONGEST_HEADER: Final = 16 << 20
"""Most bytes of a header: it names a few hundred tensors, so that a longer one is invalid."""

_SEALED: Final = re.compile(rb'\{"sha256":"([0-9a-f]{64})","checkpoint":(.*)\}\n', re.DOTALL)


class InvalidCheckpoint(Exception):
    """A checkpoint from which a training cannot resume; the message says why, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Checkpoint:
    """Everything of a checkpoint but the tensors."""

    format: Literal[1] = 1
    spec: TrainSpec
    plan: Plan
    """Plan under which it was trained until then."""
    dataset: str
    data_sha256: str
    """SHA-256 of the prepared data, wherever they lay."""
    facts: dict[str, JsonValue]
    """Facts of the request."""
    course: TrainState
    tensors: tuple[str, ...]
    """Names of the tensors."""
    tensors_bytes: int
    tensors_sha256: str


CHECKPOINT = TypeAdapter(Checkpoint)


@plain_dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Spec, plan, data and facts of a training: the same in all its checkpoints."""

    spec: TrainSpec
    plan: Plan
    dataset: str
    data_sha256: str
    """SHA-256 of the prepared data, as `dataset_store.checksum` returns it."""
    facts: dict[str, JsonValue]


def write(directory: Path, origin: Origin, course: TrainState, tensors: Mapping[str, TensorView]) -> tuple[Path, int]:
    """Write a checkpoint, whole or not at all; return the path of its JSON and the bytes of both files.

    Raises:
        OSError: it cannot be written; an earlier checkpoint stays as it was.
    """
    path = directory / f"checkpoint-{course.position:012d}.json"
    hashed = HashedChunks(safetensors_chunks(tensors))
    with staged(tensors_of(path), hashed, uncached=True) as put_tensors:
        checkpoint = Checkpoint(
            spec=origin.spec, plan=origin.plan, dataset=origin.dataset, data_sha256=origin.data_sha256,
            facts=origin.facts, course=course, tensors=tuple(tensors), tensors_bytes=hashed.bytes,
            tensors_sha256=hashed.sha256,
        )  # fmt: skip
        body = CHECKPOINT.dump_json(checkpoint)
        seal = hashlib.sha256(body).hexdigest().encode()
        sealed = b'{"sha256":"%b","checkpoint":%b}\n' % (seal, body)
        with staged(path, (sealed,)) as vouch:
            put_tensors()
            vouch()
    return path, hashed.bytes + len(sealed)


def read(path: Path, spec: TrainSpec, data_sha256: str, digests: Digests) -> Checkpoint:
    """Return the checkpoint described at `path`, its tensors verified but not loaded.

    Raises:
        InvalidCheckpoint: it is damaged, or of a training of another spec or of other data.
    """
    checkpoint = _unsealed(path)
    if checkpoint.spec != spec:
        there, here = asdict(checkpoint.spec), asdict(spec)
        differing = ", ".join(name for name in here if there[name] != here[name])
        raise InvalidCheckpoint(f"it is of another job, whose spec differs in {differing}")
    if checkpoint.data_sha256 != data_sha256:
        raise InvalidCheckpoint(f"data set {spec.dataset!r} held other data when it was made")
    _verify(tensors_of(path), checkpoint, digests)
    return checkpoint


def _unsealed(path: Path) -> Checkpoint:
    try:
        content = read_text(path)
    except OSError as error:
        raise InvalidCheckpoint(f"it cannot be read ({error.strerror or error})") from error
    match = _SEALED.fullmatch(content)
    if match is None or hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        raise InvalidCheckpoint("it is damaged: its checksum does not match")
    try:
        return CHECKPOINT.validate_json(_in_one_process(match[2]))
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint("it is not of this version") from error


def _in_one_process(text: bytes) -> str | bytes:
    """Return the JSON of a checkpoint; a plan for several processes is replaced by the one for a single process."""
    match fields := json.loads(text):
        case {"spec": {"batch_size": batch_size}, "plan": {"processes": _} as plan}:
            return json.dumps({**fields, "plan": in_one_process(plan, batch_size)})
    return text


def _verify(path: Path, checkpoint: Checkpoint, digests: Digests) -> None:
    """Raise `InvalidCheckpoint` unless `path` holds the very tensors that were written."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != checkpoint.tensors_bytes:
                raise InvalidCheckpoint(f"{path.name} has {size:,} bytes instead of {checkpoint.tensors_bytes:,}")
            if digests.sha256(file) != checkpoint.tensors_sha256:
                raise InvalidCheckpoint(f"{path.name} is damaged: its sha256 is not the recorded one")
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
    except OSError as error:
        raise InvalidCheckpoint(f"{path.name} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path.name} is not in the form of safetensors") from error
    if not isinstance(header, dict) or header.keys() != set(checkpoint.tensors):
        raise InvalidCheckpoint(f"{path.name} does not hold the tensors that it should")
