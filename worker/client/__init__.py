"""Former name of `preflight.client`: gone in 0.29."""

import warnings

from preflight import Client, EnqueueResult, Silence

__all__ = ("Client", "EnqueueResult", "Silence")

warnings.warn("worker.client is now preflight; use `from preflight import Client`", DeprecationWarning, stacklevel=2)
