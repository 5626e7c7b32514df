"""Files of models that an alias names, kept by hash: hard links, so that removing a job's directory leaves them."""

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from preflight.errors import ArtifactError
from preflight.files.atomic_files import open_regular, sha256_of, sync, sync_directory
from training.artifacts.model_dir import MANIFEST, MODEL, require_files
from worker.models.records import Promotion

KEPT: Final = (MANIFEST, MODEL)
"""Files of an artifact that every kept model has."""
UNFINISHED: Final = "unfinished-"
"""Prefix of a directory's name while files are put into it."""
MIN_AGE_SECONDS: Final = 3600.0
"""Minimum age of a directory that nothing names: another process may be about to name it."""


class KeptFiles:
    """The directory of kept models; each has a directory named by a hash over its files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, promotion: Promotion) -> Path:
        """Return the directory of a promotion's files."""
        return self.root / promotion.key

    def keep(self, sources: Mapping[str, Path]) -> tuple[dict[str, str], Path]:
        """Link files, or copy them where links cannot be made; returns their sha256 and where they wait for `settle`.

        Raises:
            OSError: one cannot be read, or the directory cannot be written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.root))
        unfinished.chmod(0o755)
        digests = {}
        try:
            for name, source in sources.items():
                _link(source, unfinished / name)
                digests[name] = sha256_of(unfinished / name)  # of the kept file: the source may change meanwhile
            sync_directory(unfinished)
        except OSError:  # on a full disk these copies would keep what little there is
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return digests, unfinished

    def settle(self, unfinished: Path, promotion: Promotion) -> None:
        """Give a directory of `keep` its name; one that is there and whole stays. Raises `OSError`."""
        final = self.directory(promotion)
        if final.is_dir():
            with suppress(ArtifactError):
                self.check(promotion)
                shutil.rmtree(unfinished)
                return
            shutil.rmtree(final)
        unfinished.rename(final)
        sync_directory(self.root)

    def check(self, promotion: Promotion) -> Path:
        """Return the directory of a promotion whose files all have their hash; raises `ArtifactError` otherwise."""
        directory = self.directory(promotion)
        require_files(directory, promotion.files)
        return directory

    def has(self, promotion: Promotion) -> bool:
        """Whether the model of a promotion is still kept."""
        return (self.directory(promotion) / MODEL).is_file()

    def remove(self, key: str) -> None:
        """Remove the files with this key, where they are."""
        shutil.rmtree(self.root / key, ignore_errors=True)

    def sweep(self, named: Collection[str]) -> None:
        """Remove directories that are older than `MIN_AGE_SECONDS` and not among the keys in `named`."""
        for path in self._old():
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)

    def _old(self) -> Iterator[Path]:
        with suppress(OSError):
            for path in self.root.iterdir():
                with suppress(OSError):
                    if path.lstat().st_mtime < time.time() - MIN_AGE_SECONDS:
                        yield path


def _link(source: Path, target: Path) -> None:
    """Link a regular file, or copy it: file systems differ, or have no links (SMB, some FUSE)."""
    with open_regular(source) as file:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            with target.open("xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
                copy.flush()
                sync(copy.fileno())
