"""Features that a worker can do without: each is one folder that listens to the hooks in `worker.jobs.hooks`.

Nothing but this list imports a feature: whoever deletes a folder deletes its two lines here.
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
