"""What made a picture (model set, weights, versions, seed, policy), and whether all of it is still as recorded."""

from anima_batch.audit.auditor import Audit, audit_paths
from anima_batch.audit.differences import Picture, compare_model_set, open_picture
from anima_batch.audit.grouping import ModelSetGroup, group_by_model_set
from anima_batch.audit.search import FoundManifest, ManifestSearch
from anima_batch.audit.verification import verify_job
from anima_batch.audit.weights import identify_weights, select_made_with

__all__ = [
    "Audit",
    "FoundManifest",
    "ManifestSearch",
    "ModelSetGroup",
    "Picture",
    "audit_paths",
    "compare_model_set",
    "group_by_model_set",
    "identify_weights",
    "open_picture",
    "select_made_with",
    "verify_job",
]
