"""The protocol of event sinks."""

from typing import Protocol

from preflight.wire import AnyEvent, TrainResult


class Sink(Protocol):
    """Receives the events of an attempt; an unavailable destination must not stop the training."""

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        """Process an event; `result` comes with the last event of a finished job."""
