"""Folders of class folders, with or without folders `train`, `val` and `test` above them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from training.importing.form import LEAST_SHARD, MAX_SAMPLES, SHARD, TASKS
from training.importing.shards import ANY, EXAMPLES, TEST, TRAIN, VALIDATION, Refused, Shard
from training.importing.sources.base import Source, check_classes, check_samples, class_name, in_order, refuse

PICTURES: Final = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".pnm", ".heic", ".heif", ".avif",
)  # fmt: skip
"""Ends of the names of pictures; a kind that is not read is refused by its content."""
SPLITS: Final[Mapping[str, int]] = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION,
    "dev": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
LITTER: Final = ("thumbs.db", "desktop.ini", "__macosx", "lost+found")
MAX_DEPTH: Final = 16
LINK: Final = "is a symbolic link, which is not followed"


@dataclass(slots=True)
class Listing:
    """Content of a folder and below."""

    files: list[str] = field(default_factory=list)
    """Pictures, paths below the root."""
    links: list[str] = field(default_factory=list)
    ignored: int = 0

    def refused(self) -> tuple[Refused, ...]:
        """Return the links as refused samples."""
        return (Refused(reason=LINK, count=len(self.links), files=tuple(self.links[:EXAMPLES])),) if self.links else ()


def is_hidden(name: str) -> bool:
    """Whether a file or folder is none of the user's: hidden, or left by an operating system."""
    return name.startswith(".") or name.lower() in LITTER


def is_picture(name: str) -> bool:
    """Whether a file is a picture by its name."""
    return name.lower().endswith(PICTURES)


def entries(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of the other entries, links to folders among these, but no hidden ones."""
    with os.scandir(folder) as found:
        visible = [entry for entry in found if not is_hidden(entry.name)]
        folders = sorted(entry.name for entry in visible if entry.is_dir(follow_symlinks=False))
        others = sorted(entry.name for entry in visible if not entry.is_dir(follow_symlinks=False))
    return folders, others


def walk(root: str, below: str, listing: Listing, depth: int = 0) -> None:
    """Add the pictures of a folder and of those in it, in the order of the directory."""
    inner: list[str] = []
    with os.scandir(f"{root}/{below}" if below else root) as found:
        for entry in found:
            name = entry.name
            path = f"{below}/{name}" if below else name
            if is_hidden(name):
                continue
            if entry.is_symlink():
                listing.links.append(path)
            elif entry.is_dir(follow_symlinks=False):
                inner.append(path)
            elif is_picture(name):
                listing.files.append(path)
            else:
                listing.ignored += 1
    if len(listing.files) > MAX_SAMPLES:
        check_samples(len(listing.files))
    if inner and depth == MAX_DEPTH:
        raise refuse(f"{root}/{below} has folders more than {MAX_DEPTH} deep; move them up")
    for path in sorted(inner):
        walk(root, path, listing, depth + 1)


def unwrapped(root: Path) -> Path:
    """Return the folder in which the samples lie: archives often hold a single folder with all of it."""
    for _ in range(MAX_DEPTH):
        folders, others = entries(root)
        if len(folders) != 1 or others or folders[0].lower() in SPLITS:
            break
        inner = root / folders[0]
        if not entries(inner)[0] and not any(not is_picture(name) for name in entries(inner)[1]):
            break  # a single class, which the caller refuses
        root = inner
    return root


def splits_of(root: Path) -> list[tuple[str, int]]:
    """Return the folders of a split and their sides; none where there are others, too."""
    folders, _ = entries(root)
    sides = [(name, SPLITS[name.lower()]) for name in folders if name.lower() in SPLITS]
    return sides if len(sides) == len(folders) and any(side == TRAIN for _, side in sides) else []


def read_tree(root: Path) -> Source:
    """Return the samples of a folder of class folders.

    Raises:
        DatasetError: it has none, or its classes cannot be used.
    """
    listing, found = Listing(), []
    for top, side in splits_of(root) or [("", ANY)]:
        folders, others = entries(root / top)
        listing.ignored += sum(not is_picture(name) for name in others)
        loose = [name for name in others if is_picture(name)]
        if loose:
            raise refuse(
                f"{root / top} has pictures beside its class folders ({loose[0]}, {len(loose):,} in all); "
                "put each into the folder of its class, or add a labels.csv"
            )
        for folder in folders:
            below, name = f"{top}/{folder}" if top else folder, class_name(folder)
            first = len(listing.files)
            walk(str(root), below, listing)
            found.append((name, side, first, len(listing.files)))
    if not listing.files:
        raise refuse(
            f"{root} holds no pictures in class folders; put the pictures of each class into a folder of its name"
        )
    names = in_order(name for name, _, first, end in found if end > first)
    check_classes(names)
    numbers = {name: number for number, name in enumerate(names)}
    labels, sides = [0] * len(listing.files), [ANY] * len(listing.files)
    for name, side, first, end in found:
        labels[first:end] = [numbers.get(name, 0)] * (end - first)
        sides[first:end] = [side] * (end - first)
    return Source(
        kind="folder of class folders", shards=tuple(in_shards(root, listing.files, labels, sides, names)),
        samples=len(listing.files), refused=listing.refused(), ignored=listing.ignored,
    )  # fmt: skip


def in_shards(
    root: Path, files: list[str], labels: list[int], sides: list[int], names: tuple[str, ...],
    groups: tuple[str, ...] = (),
) -> Iterator[Shard]:  # fmt: skip
    """Yield the tasks of files below `root`."""
    size = max(LEAST_SHARD, min(SHARD, -(-len(files) // TASKS)))
    for first in range(0, len(files), size):
        part = slice(first, first + size)
        own = sides[part]
        yield Shard(
            kind="files", path=str(root), first=first, count=len(files[part]), files=tuple(files[part]),
            labels=tuple(labels[part]), sides=tuple(own) if len(set(own)) > 1 else (own[0],), names=names,
            groups=groups[part],
        )  # fmt: skip
