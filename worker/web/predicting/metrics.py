"""Metrics of predictions, of this process alone."""

from functools import lru_cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
PICTURES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
MAX_LABELS: Final = 2000
"""Most series of classes; further ones count as class `other`."""


class PredictMetrics:
    """Counts requests and predictions."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "preflight_predict_requests", "Requests for predictions, by HTTP status.", ["alias", "status"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "preflight_predict_seconds", "From the request's head to its answer.", buckets=SECONDS, registry=registry
        )
        self._batch = Histogram(
            "preflight_predict_batch_size", "Pictures that were recognized together.", buckets=PICTURES,
            registry=registry,
        )  # fmt: skip
        self._labels = Counter(
            "preflight_predict_labels", "Predictions, by class.", ["alias", "label"], registry=registry
        )
        self._starts = Gauge("preflight_predict_process_starts", "Starts of the prediction process.", registry=registry)
        self._waiting = Gauge("preflight_predict_waiting", "Requests that wait for an answer.", registry=registry)
        self._known: set[tuple[str, str]] = set()
        self._request = lru_cache(maxsize=256)(self._requests.labels)
        self._label = lru_cache(maxsize=MAX_LABELS)(self._labels.labels)

    def count_request(self, alias: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `alias` is empty for one that no request has found."""
        self._request(alias, str(status)).inc()
        self._seconds.observe(seconds)

    def count_predictions(self, alias: str, batch: int, classes: list[str]) -> None:
        """Count the classes that were seen in pictures, and a batch."""
        self._batch.observe(batch)
        for name in classes:
            if name:
                key = (alias, name)
                if key not in self._known and len(self._known) >= MAX_LABELS:
                    key = (alias, "other")
                self._known.add(key)
                self._label(*key).inc()

    def exposition(self, starts: int, waiting: int) -> bytes:
        """Return the metrics as text."""
        self._starts.set(starts)
        self._waiting.set(waiting)
        return generate_latest(self._registry)
