"""What made a picture (model set, weights, versions, seed, policy), and whether all of it is still as recorded."""

from anima_batch.audit.auditor import Audit, audit_paths
from anima_batch.audit.verification import verify_job

__all__ = ["Audit", "audit_paths", "verify_job"]
