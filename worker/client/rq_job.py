"""RQ's job class without its check of the id, which refuses a dot."""

from redis import Redis
from rq.job import Job
from rq.serializers import Serializer


class AnyIdJob(Job):
    """A job with an unchecked id; `worker.wire.is_job_id` checks it."""

    def __init__(
        self,
        id: str | None = None,
        connection: Redis | None = None,
        serializer: Serializer | str | None = None,
    ) -> None:
        super().__init__(None, connection=connection, serializer=serializer)
        self._id = id

    @property
    def id(self) -> str:
        """The job's id."""
        return self._id or super().id

    @id.setter
    def id(self, value: str) -> None:
        self._id = value
