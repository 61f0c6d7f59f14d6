"""What is to be done with each image of a job, and how long it will take."""

from anima_batch.plan.plan import (
    MANIFEST_BYTES,
    Action,
    Plan,
    PlannedImage,
    Progress,
    Sizes,
    Status,
    Workload,
    make_plan,
)
from anima_batch.plan.rates import MEASURED_IMAGES, Estimate, Measurement, Rates, Work, work_left

__all__ = [
    "MANIFEST_BYTES",
    "MEASURED_IMAGES",
    "Action",
    "Estimate",
    "Measurement",
    "Plan",
    "PlannedImage",
    "Progress",
    "Rates",
    "Sizes",
    "Status",
    "Work",
    "Workload",
    "make_plan",
    "work_left",
]
