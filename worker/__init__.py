"""The worker talks to the outside (Redis, RQ, environment, terminal) and supervises the child processes.

It never imports torch: an idle worker stays small, and no fork ever follows OpenMP work.
"""

from preflight.packages import require_own

require_own(("training", "calibration"))
