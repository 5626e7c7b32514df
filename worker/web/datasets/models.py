"""Response bodies about imported data."""

from typing import Annotated

from pydantic import ConfigDict, Field

from training.importing.issues import Issues
from worker.imports.records import ImportState
from worker.web.models import ApiModel


class ClassCounts(ApiModel):
    """Samples of a class."""

    name: str
    train: int
    """Samples that train, without those that validate."""
    validation: int
    test: int


class DatasetVersion(ApiModel):
    """A version of a data set."""

    dataset: str
    """`photos@2`."""
    version: int
    sha256: str
    """SHA-256 of its content."""
    created_at: str
    source: str
    kind: str
    """What the source was, in words."""
    samples: int
    shape: tuple[int, int, int]
    """Channels, height, width."""
    classes: int
    by: str | None = None
    """Author of the changed labels, of a version that was made by such changes."""


class Dataset(ApiModel):
    """A data set: its newest version."""

    name: str
    newest: DatasetVersion
    versions: int
    aliases: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Datasets(ApiModel):
    """Imported data sets, open imports, and the room for further ones."""

    datasets: tuple[Dataset, ...]
    imports: tuple[ImportState, ...]
    used_bytes: int
    """Bytes of uploads and imported data together."""
    most_bytes: int
    most_upload_bytes: int
    read_only: bool


SampleNumber = Annotated[str, Field(pattern=r"^[0-9]{1,8}$")]
ClassName = Annotated[str, Field(min_length=1, max_length=128)]


class RelabelSamples(ApiModel):
    """Samples of a version that belong to another class, or to none."""

    model_config = ConfigDict(extra="forbid")

    changes: Annotated[
        dict[SampleNumber, ClassName | None],
        Field(min_length=1, max_length=1_500, json_schema_extra={"additionalProperties": False}),
    ]
    """Number of a sample, as `x-samples` has it -> name of its class; null leaves it out."""
    by: Annotated[str, Field(max_length=200)] = "http"
    """Author of the changes, noted in the version."""


class DatasetDetail(Dataset):
    """A data set and what the import of `chosen` has found: of the version that was asked for, else of the newest."""

    chosen: DatasetVersion
    """The version to which classes, warnings, report, changes and samples belong."""
    classes: tuple[ClassCounts, ...]
    report: dict[str, object]
    """Report of the import, as `preflight data show --json` has it; see docs/how-to/data.md."""
    history: tuple[DatasetVersion, ...]
    """All versions, the newest first."""
    changes: dict[str, object] | None = None
    """Changes from the version before the chosen one, as `preflight data diff --json`; null: none, or not known."""
    has_samples: bool
    """Whether this service reaches the pictures."""


class DatasetPair(ApiModel):
    """Two samples with the same picture, or nearly."""

    names: tuple[str, str]
    """Names of their files."""
    samples: tuple[int | None, int | None]
    """Numbers of the samples; null: the sample was left out, or its number is not known."""


class DatasetPairs(ApiModel):
    """Duplicates of a version."""

    dataset: str
    total: int
    """Pairs that are kept; up to 100,000 of each kind."""
    pairs: tuple[DatasetPair, ...]


class DatasetIssues(ApiModel):
    """Labels of a version that look wrong."""

    dataset: str
    sha256: str
    """SHA-256 of the content whose samples have these numbers."""
    expected_seconds: float
    """Rough time that a search takes with two processors, in seconds."""
    found: Issues | None
    """The last search, with the issues that were asked for; null: none was made."""
    total: int
    """Number of issues that the last search found."""
