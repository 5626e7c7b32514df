"""The totals of all jobs, and what goes on now, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from worker.events import counters as totals
from worker.web.overview import Overview
from worker.wire import JobState


@dataclass(frozen=True, slots=True, eq=False)  # Prometheus's registry tells collectors apart by identity
class Snapshot(Collector):
    """Everything that one scrape shows."""

    board: Overview
    totals: Mapping[str, float]
    running: Sequence[JobState]
    viewers: int

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from self._now()
        yield from self._so_far()
        yield self._durations()

    def _now(self) -> Iterable[Metric]:
        queue = self.board.queue
        info = GaugeMetricFamily("preflight_build_info", "Version of this process; always 1.", labels=["version"])
        info.add_metric([version("preflight-worker")], 1)
        yield info
        for name, help_text, value in (
            ("preflight_queue_jobs", "Jobs that wait in the queue.", self.board.depth),
            ("preflight_running_jobs", "Jobs that a worker has taken and not ended.", self.board.running),
        ):
            gauge = GaugeMetricFamily(name, help_text, labels=["queue"])
            gauge.add_metric([queue], value)
            yield gauge
        workers = GaugeMetricFamily("preflight_workers", "Workers alive, by what they do.", labels=["queue", "state"])
        states = [worker.state for worker in self.board.workers]
        for state in sorted({"idle", "busy", *states}):
            workers.add_metric([queue, state], states.count(state))
        yield workers
        speed = sum(state.samples_per_s or 0.0 for state in self.running)
        yield GaugeMetricFamily("preflight_samples_per_second", "Training samples a second, all running jobs.", speed)
        yield GaugeMetricFamily("preflight_event_viewers", "Viewers of event streams of this process.", self.viewers)

    def _so_far(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "preflight_jobs_ended", "Attempts that ended, by outcome and reason.", labels=["outcome", "reason"]
        )
        for name, value in sorted(self.totals.items()):
            if name.startswith(totals.ENDED):
                outcome, _, reason = name.removeprefix(totals.ENDED).partition(":")
                ended.add_metric([outcome, reason], value)
        yield ended
        for name, total, help_text in (
            ("preflight_attempts", totals.ATTEMPTS, "Times that a worker took a job."),
            ("preflight_resumes", totals.RESUMES, "Trainings that went on from a checkpoint."),
            ("preflight_interruptions", totals.INTERRUPTIONS, "Jobs put back because their worker was told to stop."),
            ("preflight_oom_kills", totals.MEMORY_KILLS, "Trainings that were killed for memory."),
            ("preflight_calibrations", totals.CALIBRATIONS, "Plans that were measured."),
            ("preflight_calibration_seconds", totals.CALIBRATION_SECONDS, "Seconds spent measuring plans."),
        ):
            yield CounterMetricFamily(name, help_text, self.totals.get(total, 0.0))

    def _durations(self) -> Metric:
        bounds = [*map(str, totals.DURATIONS), "+Inf"]
        count, buckets = 0.0, []
        for bound in bounds:
            count += self.totals.get(f"{totals.BUCKET}{bound}", 0.0)
            buckets.append((bound, count))
        return HistogramMetricFamily(
            "preflight_job_duration_seconds", "From taking a job to its end, each attempt.", buckets=buckets,
            sum_value=self.totals.get(totals.SECONDS, 0.0),
        )  # fmt: skip


def exposition(snapshot: Snapshot) -> bytes:
    """Return a snapshot in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(snapshot)
    return generate_latest(registry)
