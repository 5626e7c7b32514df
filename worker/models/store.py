"""Aliases of models: promote, roll back, remove, resolve.

They lie below the artifact directory, which no producer of jobs can write: `~models/<alias>.json` is an alias with its
history, `~models/~kept/<hash>/` the files of a model that one names. A change is compared with the version that was
read, under a lock, and is one atomic write.
"""

import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from preflight.errors import ArtifactError, InvalidConfig
from preflight.files.atomic_files import read_text, silent, write_atomically
from preflight.files.locks import exclusive
from preflight.recognizer.onnx import ONNX
from training.artifacts.model_dir import manifest_in, read_manifest
from worker.config.settings import Settings
from worker.models.kept import KEPT, KeptFiles
from worker.models.records import ALIAS_PATTERN, Alias, AliasChanged, Promotion, UnknownAlias, decode, encode

MODELS: Final = "~models"
"""Name of the aliases' directory in the artifact directory; no job can have this name."""
MAX_KEPT: Final = 20
"""Number of promotions of an alias whose files are kept, the newest; earlier ones cannot be rolled back to."""
SHORTEST_HASH: Final = 8
"""Least number of digits of a hash in `alias@hash`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that an alias names."""

    alias: str
    promotion: Promotion
    directory: Path
    """Directory with the files in `promotion.files`: `manifest.json`, `model.safetensors`, perhaps `model.onnx`."""

    @property
    def sha256(self) -> str:
        """The sha256 of `model.safetensors`, in hex."""
        return self.promotion.model_sha256

    @property
    def job_id(self) -> str:
        """The job that trained the model."""
        return self.promotion.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Author of a change to an alias, and the reason for it."""

    by: str
    why: str = ""


class ModelStore:
    """The aliases of an artifact directory."""

    def __init__(self, artifact_dir: Path, key: str | None) -> None:
        """Sign and check signatures with `key`; None: neither."""
        self.root = artifact_dir / MODELS
        self._key = key
        self._kept = KeptFiles(self.root / "~kept")

    # --- reading

    def names(self) -> list[str]:
        """Return the names of all aliases, sorted; those of damaged ones, too.

        Raises:
            ArtifactError: they cannot be listed: where none were named, every model would seem to be unused.
        """
        try:
            found = [path.name.removesuffix(".json") for path in self.root.iterdir() if path.name.endswith(".json")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArtifactError(f"{self.root} cannot be read ({error.strerror}); check it", field="alias") from error
        return sorted(name for name in found if re.fullmatch(ALIAS_PATTERN, name))

    def path(self, name: str) -> Path:
        """Return the file of an alias; raises `InvalidConfig` for what cannot be a name."""
        if not re.fullmatch(ALIAS_PATTERN, name):
            raise InvalidConfig(
                f"alias is {ascii(name)[:80]}, but must have 1 to 64 letters, digits, dots, underscores or hyphens and "
                "begin with a letter or digit",
                field="alias",
            )
        return self.root / f"{name}.json"

    def alias(self, name: str) -> Alias:
        """Return an alias with its history.

        Raises:
            UnknownAlias: there is none of this name.
            ArtifactError: its file is damaged or cannot be read, or its signature is wrong.
        """
        path = self.path(name)
        try:
            content = read_text(path)
        except FileNotFoundError as error:
            known = ", ".join(self.names()[:20])
            raise UnknownAlias(
                f"no model has the alias {name!r}; {f'use one of {known}' if known else 'promote one first'}",
                field="alias",
            ) from error
        except OSError as error:
            raise ArtifactError(
                f"{path} cannot be read ({error.strerror or error}); check it", field="alias"
            ) from error
        return decode(content, name, self._key)

    def resolve(self, reference: str) -> Model:
        """Return the model of `alias`, or the one of `alias@hash` in its history; its files have their hashes.

        Raises:
            UnknownAlias: there is no such alias, or no such model in its history, or it is kept no longer.
            ArtifactError: a file is damaged or missing, or the signature of the alias is wrong.
        """
        model = self.find(reference)
        self._kept.check(model.promotion)
        return model

    def find(self, reference: str) -> Model:
        """Return the model as `resolve` does, without reading its files."""
        name, at, digest = reference.partition("@")
        alias = self.alias(name)
        promotion = self._in_history(alias, digest) if at else alias.current
        return Model(alias=name, promotion=promotion, directory=self._kept.directory(promotion))

    def shape(self, alias: Alias) -> tuple[int, int, int] | None:
        """Return channels, height and width of the images that the model of an alias reads; None: not known."""
        match manifest_in(self._kept.directory(alias.current)):
            case {"input": {"shape": [int(channels), int(height), int(width)]}}:
                return channels, height, width
        return None

    def keeps(self, promotion: Promotion) -> bool:
        """Whether the files of a promotion are there."""
        return self._kept.has(promotion)

    def _in_history(self, alias: Alias, digest: str) -> Promotion:
        """Return the newest promotion whose model's sha256 begins with `digest`; raises `UnknownAlias`."""
        found = [each for each in reversed(alias.history) if each.model_sha256.startswith(digest)]
        if len(digest) < SHORTEST_HASH or not found:
            raise UnknownAlias(
                f"alias {alias.alias!r} has no model {digest[:64]!r}; use at least {SHORTEST_HASH} digits of a sha256 "
                f"that `preflight models show {alias.alias}` lists",
                field="alias",
            )
        if len({each.model_sha256 for each in found}) > 1:
            raise UnknownAlias(f"{digest!r} begins several hashes of {alias.alias!r}; use more digits", field="alias")
        if not self._kept.has(found[0]):
            raise UnknownAlias(f"the model {digest[:12]} of {alias.alias!r} is kept no longer", field="alias")
        return found[0]

    # --- writing

    def promote(
        self, name: str, artifact: Path, author: Author, *, expected: int | None = None,
        beside: Mapping[str, Path] | None = None,
    ) -> Alias:  # fmt: skip
        """Point an alias to the model in the directory `artifact`; return the alias after that.

        A model that the alias points to already stays, without another entry.

        Args:
            name: alias; it is made where it is missing.
            artifact: directory of a whole model, named by its job.
            author: who promotes it, and why.
            expected: number of the promotion that must be in effect; 0: the alias must be new; None: the one now.
            beside: further files to keep with the model, by name; they replace those of `artifact`.

        Raises:
            AliasChanged: another promotion is in effect.
            InvalidConfig: the directory holds no whole model.
            ArtifactError: the files cannot be read or kept, or the alias's signature is wrong.
        """
        path = self.path(name)
        read = self._version(name) if expected is None else expected
        manifest = read_manifest(artifact)
        if manifest is None:
            raise InvalidConfig(
                f"{artifact} holds no whole model: a file is missing or damaged; train it again", field="job"
            )
        sources = {each: artifact / each for each in KEPT}
        if (artifact / ONNX).is_file():
            sources[ONNX] = artifact / ONNX
        with _reported(self.root):
            files, unfinished = self._kept.keep({**sources, **(beside or {})})
        try:
            promotion = _promotion(manifest, artifact, files, author)
            with _reported(self.root), exclusive(self.root / "lock", silent):
                former = self._require_version(name, read)
                if former is not None and former.current.key == promotion.key and self._is_whole(promotion):
                    return former
                self._kept.settle(unfinished, promotion)
                return self._write(path, former, promotion, name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def rollback(self, name: str, author: Author, *, expected: int | None = None) -> Alias:
        """Point an alias to the model before the one in effect; return the alias after that.

        Raises:
            UnknownAlias: there is no such alias.
            AliasChanged: another promotion than `expected` is in effect.
            InvalidConfig: there is no model before, or it is kept no longer.
            ArtifactError: its files are damaged, or the alias cannot be written.
        """
        path = self.path(name)
        current = self.alias(name).current.number
        with _reported(self.root), exclusive(self.root / "lock", silent):
            alias = self._require_version(name, current if expected is None else expected)
            former = None if alias is None else alias.numbered(alias.current.former)
            if alias is None or former is None or not self._kept.has(former):
                raise InvalidConfig(
                    f"alias {name!r} has no model before the one in use, or keeps it no longer; promote a job's model",
                    field="alias",
                )
            self._kept.check(former)
            restored = replace(former, action="rollback", at=_now(), by=author.by, why=author.why)
            return self._write(path, alias, restored, name)

    def remove(self, reference: str) -> None:
        """Remove an alias and its history, or the files of one model of its history by `alias@hash`.

        Models that another alias names stay.

        Raises:
            UnknownAlias: there is no such alias or model.
            InvalidConfig: the model of `alias@hash` is in use.
            ArtifactError: it cannot be removed.
        """
        name, at, digest = reference.partition("@")
        path = self.path(name)
        if not path.exists():
            self.alias(name)  # raises, with the names that there are
        with _reported(self.root), exclusive(self.root / "lock", silent):
            if not at:
                path.unlink(missing_ok=True)
                self._sweep()
                return
            promotion = self._in_history(self.alias(name), digest)
            users = self._users(lambda current: current.key == promotion.key)
            if users:
                raise InvalidConfig(
                    f"the model {promotion.model_sha256[:12]} is in use as {', '.join(users)}; promote another first",
                    field="alias",
                )
            self._kept.remove(promotion.key)

    def _version(self, name: str) -> int:
        try:
            return self.alias(name).current.number
        except UnknownAlias:
            return 0

    def _require_version(self, name: str, expected: int) -> Alias | None:
        """Return the alias, None where it is new; raises `AliasChanged` where another promotion is in effect."""
        try:
            alias = self.alias(name)
        except UnknownAlias:
            alias = None
        found = 0 if alias is None else alias.current.number
        if found != expected:
            raise AliasChanged(
                f"alias {name!r} is at promotion {found}, but was at {expected} when it was read; "
                "look at it and repeat the command",
                field="alias",
            )
        return alias

    def _write(self, path: Path, alias: Alias | None, promotion: Promotion, name: str) -> Alias:
        """Add a promotion to an alias, and forget files that no alias can return to."""
        if alias is None:
            changed = Alias(alias=name, history=(replace(promotion, number=1, former=None),))
        else:
            former = promotion.former if promotion.action == "rollback" else alias.current.number
            changed = alias.followed_by(replace(promotion, number=alias.current.number + 1, former=former))
        write_atomically(path, encode(changed, self._key))
        self._sweep()
        return changed

    def _is_whole(self, promotion: Promotion) -> bool:
        with suppress(ArtifactError):
            self._kept.check(promotion)
            return True
        return False

    def naming(self, job_id: str) -> list[str]:
        """Return the aliases that stand for the model of a job now; a damaged alias may stand for any."""
        return self._users(lambda current: current.job_id == job_id)

    def _users(self, uses: Callable[[Promotion], bool]) -> list[str]:
        """Return the aliases whose current promotion `uses` accepts; a damaged alias may have any."""
        found = []
        for name in self.names():
            try:
                if uses(self.alias(name).current):
                    found.append(name)
            except UnknownAlias:  # somebody has removed it meanwhile
                continue
            except ArtifactError:
                found.append(f"{name} (damaged)")
        return found

    def _sweep(self) -> None:
        """Remove the files of models that no alias can return to; none while an alias is damaged: it may need them."""
        with suppress(ArtifactError):
            aliases = [self.alias(name) for name in self.names()]
            self._kept.sweep({each.key for alias in aliases for each in alias.history[-MAX_KEPT:]})


def open_store(settings: Settings) -> ModelStore:
    """Return the aliases of the artifact directory, signed where the settings have a key."""
    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    return ModelStore(settings.artifact_dir, key)


def this_user() -> str:
    """Return the name of the user of this process and of its machine."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container the user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{os.uname().nodename}"[:200]


@contextmanager
def _reported(root: Path) -> Iterator[None]:
    """Raise `ArtifactError` where a file cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{error.filename or root} cannot be read or written ({error.strerror or error}); make "
            "PREFLIGHT_ARTIFACT_DIR writable for this service, with free space",
            field="alias",
        ) from error


def _promotion(
    manifest: Mapping[str, JsonValue], artifact: Path, files: dict[str, str], author: Author
) -> Promotion:  # fmt: skip
    """Return a promotion of a model that its manifest describes; raises `InvalidConfig`."""
    match {"job_id": artifact.name, **manifest}:
        case {"job_id": str(job_id), "spec": {"model": str(model), "dataset": str(dataset)}, "input": dict()}:
            metrics = manifest.get("metrics")
            accuracy = metrics.get("test_accuracy") if isinstance(metrics, dict) else None
            with suppress(ValidationError):  # a number that is not finite, or a text that is too long
                return Promotion(
                    number=1, action="promote", at=_now(), by=author.by, why=author.why, job_id=job_id, model=model,
                    dataset=dataset, files=files, test_accuracy=_number(accuracy),
                )  # fmt: skip
    raise InvalidConfig(f"the manifest in {artifact} does not describe a model; train it again", field="job")


def _number(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
