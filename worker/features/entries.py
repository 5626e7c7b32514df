"""The list of features; each listens to the hooks in `worker.jobs.hooks`.

Nothing else imports a feature: to remove one, delete its folder and its two lines here. The processes of features do
not import this list.
"""

from typing import Final

from worker.features.exporters.feature import FEATURE as EXPORTERS
from worker.features.groups.feature import FEATURE as GROUPS
from worker.features.report.feature import FEATURE as REPORT
from worker.jobs.hooks import Feature

FEATURES: Final[tuple[Feature, ...]] = (
    GROUPS,
    REPORT,
    EXPORTERS,  # after the others: the upload includes their files
)
