"""The group that trains a job, as the training stage knows it."""

from preflight.errors import PreflightError
from preflight.files.journal import Record
from training.group import Seat


class Group:
    """A group of workers. This class stands for one worker alone."""

    @property
    def workers(self) -> int | None:
        """Number of workers that train the job now; None: the job asks for no others."""
        return None

    def seat(self) -> Seat | None:
        """Return the seat of the next training process; None: it trains alone."""
        return None

    def check(self) -> None:
        """Look after the group; called while the training process runs. Raises `RestartTraining`, `Superseded`."""

    def on_record(self, record: Record) -> None:
        """Note a record of the training process; raises `RestartTraining`."""

    def survives(self, error: PreflightError) -> bool:  # noqa: ARG002 - the interface
        """Whether the training continues without the group, which `error` ended; raises `GroupShort`."""
        return False

    def close(self) -> None:
        """Release the members."""
