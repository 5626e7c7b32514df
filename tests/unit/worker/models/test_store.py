"""Aliases: fenced, signed promotions of models that are kept by hash."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import JsonValue

from preflight.errors import ArtifactError, InvalidConfig
from preflight.recognizer.onnx import ONNX
from training.artifacts.model_dir import MANIFEST, MODEL, save
from worker.models.kept import MIN_AGE_SECONDS
from worker.models.records import Alias, AliasChanged, UnknownAlias, WrongSignature
from worker.models.store import MAX_KEPT, Author, ModelStore, this_user

ME = Author(by="me@here", why="it is better")
FACTS: dict[str, JsonValue] = {
    "spec": {"model": "cnn", "dataset": "mnist"},
    "input": {},
    "metrics": {"test_accuracy": 0.99},
}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path, None)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[str], Path]:
    def train(job_id: str) -> Path:
        return save(tmp_path / job_id, [job_id.encode()], FACTS).directory

    return train


def test_a_model_is_promoted_and_found_by_name_and_hash(store: ModelStore, trained: Callable[[str], Path]) -> None:
    """It outlives its job's directory; the same promotion again changes nothing."""
    artifact = trained("a")
    alias = store.promote("production", artifact, ME)
    assert (alias.current.number, alias.current.by, alias.current.why) == (1, "me@here", "it is better")
    assert (alias.current.job_id, alias.current.test_accuracy) == ("a", 0.99)
    assert store.promote("production", artifact, ME) == alias
    model = store.resolve("production")
    assert (model.directory / MODEL).samefile(artifact / MODEL)
    shutil.rmtree(artifact)
    assert store.resolve("production") == store.resolve(f"production@{model.sha256[:8]}") == model
    assert (model.directory / MODEL).read_bytes() == b"a"
    assert store.names() == ["production"]


def test_models_are_copied_where_no_link_can_be_made(
    store: ModelStore, trained: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    artifact = trained("a")
    store.promote("production", artifact, ME)
    model = store.resolve("production")
    assert not (model.directory / MODEL).samefile(artifact / MODEL)


def test_a_rollback_returns_to_the_model_before(store: ModelStore, trained: Callable[[str], Path]) -> None:
    """After a rollback and another promotion, to what was in use before that; what was rolled back can come again."""
    for job in ("a", "b"):
        store.promote("production", trained(job), ME)
    back = store.rollback("production", Author(by="you"))
    assert [(each.number, each.action, each.job_id) for each in back.history] == [
        (1, "promote", "a"), (2, "promote", "b"), (3, "rollback", "a"),
    ]  # fmt: skip
    with pytest.raises(InvalidConfig, match="no model before"):
        store.rollback("production", ME)
    store.promote("production", trained("c"), ME)
    assert store.rollback("production", ME).current.job_id == "a"
    assert store.promote("production", trained("b"), ME).current.job_id == "b"
    assert store.resolve("production").job_id == "b"


def test_two_promotions_at_once_do_not_undo_each_other(store: ModelStore, trained: Callable[[str], Path]) -> None:
    artifacts = [trained(f"job{number}") for number in range(8)]
    store.promote("production", trained("first"), ME)

    def promote(artifact: Path) -> Alias | None:
        try:
            return store.promote("production", artifact, ME, expected=1)
        except AliasChanged:
            return None

    with ThreadPoolExecutor(8) as pool:
        done = [alias for alias in pool.map(promote, artifacts) if alias is not None]
    assert len(done) == 1
    assert store.alias("production") == done[0]
    with pytest.raises(AliasChanged, match="is at promotion 2, but was at 0"):
        store.promote("production", artifacts[0], ME, expected=0)


def test_damaged_files_are_found(store: ModelStore, trained: Callable[[str], Path]) -> None:
    """At the promotion, when the model is used, and at a rollback; a whole model repairs the kept files."""
    artifact = trained("a")
    (artifact / MODEL).write_bytes(b"x")
    with pytest.raises(InvalidConfig, match="holds no whole model"):
        store.promote("production", artifact, ME)
    with pytest.raises(InvalidConfig, match="holds no whole model"):
        store.promote("production", artifact.parent / "nothing", ME)
    model_of = store.promote("production", trained("a"), ME).current
    kept = store.resolve("production").directory
    (kept / MODEL).unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        store.resolve("production")
    (kept / MODEL).write_bytes(b"x")
    with pytest.raises(ArtifactError, match="is damaged"):
        store.resolve("production")
    assert store.promote("production", trained("a"), ME).current.key == model_of.key
    assert store.resolve("production").sha256 == model_of.model_sha256
    store.promote("production", trained("b"), ME)
    (kept / MODEL).write_bytes(b"x")
    with pytest.raises(ArtifactError, match="is damaged"):
        store.rollback("production", ME)
    assert store.resolve("production").job_id == "b"


def test_a_file_beside_a_kept_model_is_not_used_instead(store: ModelStore, trained: Callable[[str], Path]) -> None:
    """Predictions prefer `model.onnx`: one that was put there later has no hash in the alias."""
    store.promote("production", trained("a"), ME)
    (store.resolve("production").directory / ONNX).write_bytes(b"another model")
    with pytest.raises(ArtifactError, match="was not promoted with its model"):
        store.resolve("production")


def test_a_promotion_that_fails_leaves_nothing(store: ModelStore, trained: Callable[[str], Path]) -> None:
    """As on a full disk, where what it has copied would keep the next one from succeeding, too."""
    artifact = trained("a")
    with pytest.raises(ArtifactError, match="cannot be read or written"):
        store.promote("production", artifact, ME, beside={ONNX: artifact / "nothing"})
    assert not [*(store.root / "~kept").iterdir()]


def test_models_stay_while_the_aliases_cannot_be_listed(
    store: ModelStore, trained: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume fails for a moment, or a process has too many files open: no model is unused because of that."""
    store.promote("production", trained("a"), ME)
    store.promote("canary", trained("b"), ME)
    kept = store.resolve("production").directory
    os.utime(kept, (1, 1))
    list_directory = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == store.root:
            raise OSError(errno.EIO, "Input/output error")
        return list_directory(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        store.promote("canary", trained("c"), ME)
        with pytest.raises(ArtifactError, match="Input/output error"):
            store.naming("a")
    assert kept.exists()
    assert store.resolve("production").job_id == "a"


def test_an_alias_may_vanish_while_the_users_of_a_job_are_looked_for(
    store: ModelStore, trained: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.promote("production", trained("a"), ME)
    monkeypatch.setattr(store, "names", lambda: ["gone", "production"])
    assert store.naming("a") == ["production"]


@pytest.mark.parametrize(
    "facts", [{"job_id": "a" * 300}, {"job_id": None}, {"metrics": {"test_accuracy": float("nan")}}]
)
def test_a_manifest_of_something_else_is_refused(
    store: ModelStore, tmp_path: Path, facts: dict[str, JsonValue]
) -> None:
    artifact = save(tmp_path / "a", [b"a"], {**FACTS, **facts}).directory
    with pytest.raises(InvalidConfig, match="does not describe a model"):
        store.promote("production", artifact, ME)


def test_an_alias_is_unknown_where_there_is_no_directory_yet(tmp_path: Path) -> None:
    """Nothing was promoted; nothing is written either."""
    store = ModelStore(tmp_path / "artifacts", None)
    with pytest.raises(UnknownAlias, match="promote one first"):
        store.remove("production")
    with pytest.raises(UnknownAlias, match="promote one first"):
        store.rollback("production", ME, expected=1)
    assert not (tmp_path / "artifacts").exists()


def test_what_is_in_use_is_not_removed(store: ModelStore, trained: Callable[[str], Path]) -> None:
    for job in ("a", "b"):
        store.promote("production", trained(job), ME)
    first, second = (each.model_sha256 for each in store.alias("production").history)
    store.promote("canary", trained("b"), ME)
    with pytest.raises(InvalidConfig, match="is in use as canary, production"):
        store.remove(f"production@{second}")
    store.remove(f"production@{first}")
    with pytest.raises(UnknownAlias, match="kept no longer"):
        store.resolve(f"production@{first}")
    with pytest.raises(InvalidConfig, match="keeps it no longer"):
        store.rollback("production", ME)
    store.remove("production")
    with pytest.raises(UnknownAlias, match="use one of canary"):
        store.resolve("production")
    nowhere = ModelStore(store.root / "nowhere", None)  # as where nothing was trained yet
    for action in (lambda: nowhere.remove("production"), lambda: nowhere.rollback("production", ME, expected=1)):
        with pytest.raises(UnknownAlias):
            action()
    assert store.resolve("canary").job_id == "b"
    with pytest.raises(UnknownAlias):
        store.remove("production")


def test_models_that_no_alias_can_return_to_are_removed(store: ModelStore, trained: Callable[[str], Path]) -> None:
    store.promote("production", trained("a"), ME)
    store.promote("canary", trained("old"), ME)
    old = [store.resolve(name).directory for name in ("production", "canary")]
    for path in old:
        os.utime(path, (1, 1))
    for number in range(MAX_KEPT):
        alias = store.promote("production", trained(f"b{number}"), ME)
    assert [path.exists() for path in old] == [False, True]
    assert len(alias.history) == MAX_KEPT + 1
    assert MIN_AGE_SECONDS > 60


def test_a_signature_is_required_where_there_is_a_key(tmp_path: Path, trained: Callable[[str], Path]) -> None:
    signed, unsigned = ModelStore(tmp_path, "k" * 32), ModelStore(tmp_path, None)
    alias = signed.promote("production", trained("a"), ME)
    assert signed.alias("production") == unsigned.alias("production") == alias
    path = signed.path("production")
    body = json.loads(path.read_text())
    for changed in ({"signature": None}, {"signature": "0" * 64}, {"signature": "ä"}, {"alias": "other"}):
        path.write_text(json.dumps({**body, **changed}))
        with pytest.raises(WrongSignature, match="not signed"):
            signed.resolve("production")
    with pytest.raises(WrongSignature):
        signed.promote("production", trained("b"), ME)
    path.write_text(json.dumps(body))
    shutil.copy(path, signed.path("copied"))
    with pytest.raises(ArtifactError, match="damaged"):  # the signature is of another name
        signed.resolve("copied")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"v": 2}', b"\xff"])
def test_a_damaged_alias_is_refused_and_harms_no_other(
    store: ModelStore, trained: Callable[[str], Path], content: bytes
) -> None:
    store.promote("production", trained("a"), ME)
    store.path("broken").write_bytes(content)
    with pytest.raises(ArtifactError, match="'broken' is damaged"):
        store.resolve("broken")
    store.promote("production", trained("b"), ME)
    first = store.alias("production").history[0].model_sha256
    with pytest.raises(InvalidConfig, match=r"in use as broken \(damaged\)"):
        store.remove(f"production@{first}")
    store.remove("broken")
    assert store.names() == ["production"]


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "~kept", "a b", "ä", "a" * 65, "-a", "a\n"])
def test_names_stay_below_their_directory(store: ModelStore, trained: Callable[[str], Path], name: str) -> None:
    with pytest.raises(InvalidConfig, match="alias is"):
        store.promote(name, trained("a"), ME)


def test_links_are_not_followed(store: ModelStore, trained: Callable[[str], Path], tmp_path: Path) -> None:
    artifact = trained("a")
    (tmp_path / "elsewhere").symlink_to(artifact)
    with pytest.raises(InvalidConfig, match="no whole model"):
        store.promote("production", tmp_path / "elsewhere", ME)
    (artifact / MANIFEST).rename(tmp_path / "manifest")
    (artifact / MANIFEST).symlink_to(tmp_path / "manifest")
    with pytest.raises(InvalidConfig, match="no whole model"):
        store.promote("production", artifact, ME)


def test_the_user_has_a_name() -> None:
    assert "@" in this_user()
