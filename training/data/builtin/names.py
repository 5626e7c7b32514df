"""Names under which the files of MNIST and its relatives lie on people's disks."""

import re
from typing import Final, NamedTuple

PACKED: Final = re.compile(r"\.(gz|gzip|z)$|\s*\(\d+\)|\s+-?\s*copy\b|\.download$|\.\d$")
"""Parts that gzip, browsers and file managers add to a name."""
FILE: Final = re.compile(
    r"(?P<prefix>(?:[a-z0-9]+-)*?)(?P<split>train|training|t10k|test|testing)-(?P<kind>images?|labels?)"
    r"(?:-(?:idx[123]?|ubyte|int|bin|dat|uncompressed))*"
)
"""Name of a file in small letters, with hyphens for all else."""
RELATIVE: Final = re.compile(r"fashion|kuzushiji|(?<![a-z])(?:k|q|e|not)mnist")
"""Word in the name of a folder or a file that is not that of MNIST itself, in small letters."""


class Role(NamedTuple):
    """Role of a file in its data set, by its name."""

    prefix: str
    """Name of the data set, letters and digits only; empty for most."""
    split: str
    """`train` or `test`."""
    kind: str
    """`image` or `label`."""


def role_of(name: str) -> Role | None:
    """Return the role of a file or folder by its name, in any case, with any separators; None: it has none."""
    bare = name.lower()
    while (shorter := PACKED.sub("", bare)) != bare:
        bare = shorter
    found = FILE.fullmatch(re.sub(r"[^a-z0-9]+", "-", bare).strip("-"))
    if found is None:
        return None
    split = "train" if found["split"].startswith("train") else "test"
    return Role(_squeezed(found["prefix"]), split, found["kind"].removesuffix("s"))


def names_dataset(path: str, dataset: str) -> bool:
    """Whether a path names this data set rather than another one, as `FashionMNIST/raw` does."""
    found = RELATIVE.search(path.lower())
    if found is None:
        return _squeezed(dataset) in _squeezed(path)
    return _squeezed(dataset).startswith("kmnist" if found[0] == "kuzushiji" else found[0])


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
