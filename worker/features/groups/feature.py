"""Groups as a feature: a leader gathers idle workers, and an idle worker sits down."""

from typing import Final

from worker.features.groups.seating import Seating
from worker.features.groups.stage import gather, require_leader
from worker.jobs.hooks import Feature

FEATURE: Final = Feature(admit=require_leader, gather=gather, seating=Seating)
