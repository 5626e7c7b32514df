"""Reading the files of models for routes: in separate threads, with a time limit, failures as problems."""

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread

from preflight.config.secrets import redact_urls
from preflight.errors import PreflightError
from preflight.object_store import describe_error
from preflight.wire import JobState
from worker.config.settings import Settings
from worker.web.files.artifact_files import OpenFile, open_file, sources_of
from worker.web.routes.errors import ApiError

MAX_THREADS: Final = 16
"""Threads that read files, apart from those of other requests, as a store may be slow."""
TIMEOUT_SECONDS: Final = 20.0
"""Longest wait for a store, in seconds."""

T = TypeVar("T")


class ModelFiles:
    """The files of finished models, as far as this service reaches them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.sources = sources_of(settings)
        self.limiter = CapacityLimiter(MAX_THREADS)

    async def open(self, state: JobState, name: str) -> OpenFile:
        """Open a file of a job; raises `ApiError` where there is none, or it cannot be read."""
        try:
            return await self.read(lambda: open_file(self.sources, state.job_id, name))
        except FileNotFoundError as error:
            status = 404 if state.status == "finished" else 409
            raise ApiError(status, "file_unavailable", f"{name} is not there: {self.where(state)}") from error

    async def read(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, which reads disk or store; raises `ApiError` where a store fails."""
        try:
            with fail_after(TIMEOUT_SECONDS):
                return await to_thread.run_sync(action, abandon_on_cancel=True, limiter=self.limiter)
        except FileNotFoundError:
            raise
        except Exception as error:  # each store has its own exceptions
            url = redact_urls(self._settings.artifact_url or str(self._settings.artifact_dir))
            known = isinstance(error, PreflightError)
            why = str(error) if known else f"{url} cannot be read ({describe_error(error)}); try again later"
            raise ApiError(502, "artifact_unreachable", self._settings.redact(why)) from error

    def where(self, state: JobState) -> str:
        """Return a sentence that says where the files of a job lie, or why there are none."""
        if state.status != "finished":
            return f"job {state.job_id!r} is {state.status}; a model has files once its job has finished"
        looked = f"this service found no file in {self._settings.artifact_dir / state.job_id}"
        there = f"{state.artifact} on worker {state.worker}" if state.worker else state.artifact
        places = " and ".join(place for place in (there, state.artifact_url) if place)
        share = "share PREFLIGHT_ARTIFACT_DIR or PREFLIGHT_ARTIFACT_URL with the worker"
        return f"{looked}; its job wrote them to {places or 'an unknown place'}: {share}"
