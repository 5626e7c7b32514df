"""Former name of `preflight.wire`: gone in 0.29."""

import warnings

from preflight.wire import *  # noqa: F403 - every name that it had

warnings.warn("worker.wire is now preflight.wire; import from preflight", DeprecationWarning, stacklevel=2)
