"""Idle search: what the process of a calibration in idle time does. It measures in children and ends for any job."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

import structlog
from pydantic import JsonValue

from calibration.cache.lock import idle_lock, job_calibrates
from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import signature
from calibration.cache.unfinished import UnfinishedSearch, UnfinishedSearches
from calibration.choose import PlanChoice, search_further
from calibration.space import KNOBS
from calibration.task import CalibrationContext, memory_for_training
from preflight.container.resources import detect
from preflight.errors import DatasetError, PreflightError
from training.data.dataset_info import read_info
from worker.config.settings import Settings, job_environment
from worker.queue.maintenance.extras_room import use_idle_priority
from worker.state.control import Interrupted, StopSignal

NOT_NOW: Final = os.EX_UNAVAILABLE
"""Exit code: this search cannot go on here and now."""


class IdleSearch:
    """One search that goes on, in a process of its own."""

    def __init__(self, settings: Settings, search: UnfinishedSearch, directory: Path, stop: StopSignal) -> None:
        """Go on with `search`; its children's files go to `directory`."""
        self._settings = settings
        self._search = search
        self._directory = directory
        self._stop = stop
        self._searches = UnfinishedSearches(settings.cache_dir)
        self._log = structlog.get_logger("preflight").bind(
            dataset=search.spec.dataset, model=search.spec.model, batch_size=search.spec.batch_size
        )

    def run(self) -> None:
        """Search, and keep what was found.

        Raises:
            Interrupted: a job calibrates on this machine, or the worker stops.
            SystemExit: `NOT_NOW`.
        """
        use_idle_priority()  # before any child: they have it, too
        with idle_lock(self._settings.cache_dir) as alone:
            if not alone:
                raise SystemExit(NOT_NOW)
            try:
                self._run()
            except (Interrupted, SystemExit):
                raise
            except DatasetError:  # it was deleted; a job prepares it again
                self._searches.remove(self._search)
            except (PreflightError, OSError) as error:
                message = f"the search for {self._search.workload} does not go on: {error}"
                self._log.warning("idle_calibration_failed", message=message)
                raise SystemExit(NOT_NOW) from None
            except Exception:
                self._log.exception("idle_calibration_failed", message="going on with a search failed")
                raise SystemExit(os.EX_SOFTWARE) from None

    def _run(self) -> None:
        search = self._search
        context = self._context()
        knobs = KNOBS if search.knobs is None else search.knobs
        key = signature(search.spec, search.own, context.resources, context.store, knobs=knobs)
        if key.key != search.key or memory_for_training(context.resources) < search.peak_bytes:
            raise SystemExit(NOT_NOW)  # it was begun in another container, or so much memory is not free
        self._searches.begin(search)
        self._log.info(
            "idle_calibration_started",
            message=f"the queue is empty: the search for the fastest plan for {search.workload} goes on",
        )
        choice = search_further(search, key, context, self._emit, self._check)
        if choice.finding is not None and choice.finding.confidence == "high":
            self._searches.remove(search)
        self._tell(choice)

    def _context(self) -> CalibrationContext:
        # Fresh interpreters: forks would share the server that the next job needs, and change its environment.
        return CalibrationContext(
            resources=detect(shares=self._settings.processes), store=read_info(self._search.store),
            cache=PlanCache(self._settings.cache_dir), directory=self._directory,
            environment=job_environment(self._settings),
        )  # fmt: skip

    def _check(self) -> None:
        self._stop.check()
        if job_calibrates(self._settings.cache_dir):
            raise Interrupted

    def _emit(self, kind: str, fields: dict[str, JsonValue]) -> None:
        match kind, fields:
            case "warning", {"message": str(message)}:
                self._log.warning("idle_calibration_warning", message=message)
            case _:
                self._log.debug(f"idle_calibration_{kind}", **fields)

    def _tell(self, choice: PlanChoice) -> None:
        if choice.finding is None:
            return  # a warning said why
        self._log.info(
            "idle_calibration_done", **asdict(choice.plan), why=choice.why, confidence=choice.finding.confidence,
            calibration_seconds=choice.calibration_seconds, trials=choice.trials,
            message=f"{choice.why}; later jobs with {self._search.workload} begin with this plan",
        )  # fmt: skip
