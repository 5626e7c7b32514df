"""Metrics in Prometheus's text format: totals of all jobs, and the current state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from preflight.errors import ERRORS_BY_REASON, Cancelled, ChildStopped, PreflightError
from preflight.events import counters
from preflight.wire import JobState
from worker.web.listing.overview import Overview

FAILURES: Final = sorted({PreflightError.reason, *ERRORS_BY_REASON} - {Cancelled.reason, ChildStopped.reason})
NO_ENDS: Final = dict.fromkeys(
    (f"{counters.ENDED}{end}" for end in ("finished:", "cancelled:", *(f"failed:{reason}" for reason in FAILURES))), 0.0
)
"""Counters exported before the first such end: Prometheus sees no increase in a series that begins with 1."""


@dataclass(frozen=True, slots=True, eq=False)  # the registry distinguishes collectors by identity
class Snapshot(Collector):
    """The data of one scrape."""

    overview: Overview
    totals: Mapping[str, float]
    running: Sequence[JobState]
    viewers: int

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from self._gauges()
        yield from self._counters()
        yield self._histogram()

    def _gauges(self) -> Iterable[Metric]:
        queue = self.overview.queue
        info = GaugeMetricFamily("preflight_build_info", "Version of this process; always 1.", labels=["version"])
        info.add_metric([version("preflight-worker")], 1)
        yield info
        for name, help_text, value in (
            ("preflight_queue_jobs", "Jobs in the queue.", self.overview.depth),
            ("preflight_running_jobs", "Jobs that a worker runs.", self.overview.running),
        ):
            gauge = GaugeMetricFamily(name, help_text, labels=["queue"])
            gauge.add_metric([queue], value)
            yield gauge
        workers = GaugeMetricFamily("preflight_workers", "Workers by state.", labels=["queue", "state"])
        states = [worker.state for worker in self.overview.workers]
        for state in sorted({"idle", "busy", *states}):
            workers.add_metric([queue, state], states.count(state))
        yield workers
        suspended = int(self.overview.suspended)
        yield GaugeMetricFamily(
            "preflight_suspended", "1 while `rq suspend` keeps workers from taking jobs.", suspended
        )
        hourly = self.overview.jobs_per_hour  # None: no sample, since 0 would say that no job finishes
        help_text = "Jobs that finish per hour: rate of the last hour, or of the shorter time that this process counts."
        yield GaugeMetricFamily("preflight_jobs_per_hour", help_text, hourly)
        sharing = sum(1 for state in self.running if state.shared_with)
        yield GaugeMetricFamily("preflight_jobs_sharing", "Running jobs that share the processors of a host.", sharing)
        speed = sum(state.samples_per_s or 0.0 for state in self.running)
        yield GaugeMetricFamily("preflight_samples_per_second", "Samples per second of all running jobs.", speed)
        yield GaugeMetricFamily("preflight_event_viewers", "Viewers of event streams of this process.", self.viewers)

    def _counters(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "preflight_jobs_ended", "Attempts that ended, by outcome and reason.", labels=["outcome", "reason"]
        )
        for name, value in sorted((NO_ENDS | dict(self.totals)).items()):
            if name.startswith(counters.ENDED):
                outcome, _, reason = name.removeprefix(counters.ENDED).partition(":")
                ended.add_metric([outcome, reason], value)
        yield ended
        for name, total, help_text in (
            ("preflight_attempts", counters.ATTEMPTS, "Attempts that began."),
            ("preflight_resumes", counters.RESUMES, "Trainings resumed from a checkpoint."),
            ("preflight_interruptions", counters.INTERRUPTIONS, "Jobs requeued because their worker shut down."),
            ("preflight_oom_kills", counters.MEMORY_KILLS, "Trainings killed for lack of memory."),
            ("preflight_groups", counters.GROUPS, "Groups of workers that formed to train a job together."),
            ("preflight_groups_let_go", counters.GROUPS_LET_GO, "Groups that did not pay: measured, and let go."),
            ("preflight_groups_short", counters.GROUPS_SHORT, "Attempts put back as too few workers came."),
            ("preflight_members_left", counters.MEMBERS_LEFT, "Members that left their group, or were let go."),
            ("preflight_calibrations", counters.CALIBRATIONS, "Plans that were measured."),
            (
                "preflight_calibration_seconds",
                counters.CALIBRATION_SECONDS,
                "Wall time of calibrations, process starts included.",
            ),
        ):
            yield CounterMetricFamily(name, help_text, self.totals.get(total, 0.0))

    def _histogram(self) -> Metric:
        bounds = [*map(str, counters.DURATIONS), "+Inf"]
        count, buckets = 0.0, []
        for bound in bounds:
            count += self.totals.get(f"{counters.BUCKET}{bound}", 0.0)
            buckets.append((bound, count))
        return HistogramMetricFamily(
            "preflight_job_duration_seconds", "Duration of an attempt.", buckets=buckets,
            sum_value=self.totals.get(counters.SECONDS, 0.0),
        )  # fmt: skip


def exposition(snapshot: Snapshot) -> bytes:
    """Return the snapshot as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(snapshot)
    return generate_latest(registry)
