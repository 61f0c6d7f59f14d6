"""A model set: a folder of artefacts, with what each is, how it was built and its digests in `model_set.json`."""

from anima_batch.model_set.description import (
    SCHEMA_VERSION,
    Component,
    ModelSetFile,
    Source,
    TensorShape,
    TextConfig,
    TransformerConfig,
    VaeConfig,
)
from anima_batch.model_set.search import (
    ModelSetScan,
    built_in_folder,
    find_by_digest,
    find_model_set,
    scan_model_sets,
)
from anima_batch.model_set.store import (
    FILE_NAME,
    ModelSet,
    describe_component,
    load_model_set,
    seal_model_set,
    verify_model_set,
    write_description,
)

__all__ = [
    "FILE_NAME",
    "SCHEMA_VERSION",
    "Component",
    "ModelSet",
    "ModelSetFile",
    "ModelSetScan",
    "Source",
    "TensorShape",
    "TextConfig",
    "TransformerConfig",
    "VaeConfig",
    "built_in_folder",
    "describe_component",
    "find_by_digest",
    "find_model_set",
    "load_model_set",
    "scan_model_sets",
    "seal_model_set",
    "verify_model_set",
    "write_description",
]
