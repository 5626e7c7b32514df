"""The list of features; each listens to the hooks in `worker.jobs.hooks`.

Nothing else imports a feature: whoever deletes a folder deletes its two lines here. The processes of features do not
import this list.
"""

from typing import Final

from worker.features.exporters.feature import FEATURE as EXPORTERS
from worker.features.groups.feature import FEATURE as GROUPS
from worker.features.report.feature import FEATURE as REPORT
from worker.jobs.hooks import Feature

FEATURES: Final[tuple[Feature, ...]] = (
    GROUPS,
    REPORT,
    EXPORTERS,  # after the others: what is uploaded has their files
)
