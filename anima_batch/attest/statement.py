"""An in-toto Statement v1 with the SLSA provenance v1 predicate, from a manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anima_batch.files import canonical_json, sha256_bytes
from anima_batch.job import request_json
from anima_batch.store import ComponentRecord, Manifest, SourceRecord

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:anima-batch:image:v1"  # what the parameters below mean


def make_statement(manifest: Manifest, data: bytes, name: str) -> bytes:
    """The statement of a finished image as canonical JSON, equal for equal input.

    `data` and `name` are the manifest's file and its path relative to the workspace. The subject is the PNG; what it
    depends on are the files of the model set and the weights that these were made from.
    """
    image, environment = manifest.image, manifest.environment
    assert image is not None  # of a finished image
    model_set = manifest.model_set
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "request_id": manifest.request_id,
                "request": request_json(manifest.request),
                "model_set": {"name": model_set.name, "digest": model_set.digest, "license": model_set.license},
            },
            "internalParameters": {"job": manifest.job.model_dump(), "environment": environment.model_dump()},
            "resolvedDependencies": [*_describe(model_set.source), *_describe(model_set.components)],
        },
        "runDetails": {
            "builder": {
                "id": f"pkg:pypi/anima-batch@{environment.anima_batch}",
                "version": {key: value for key, value in environment.model_dump().items() if value is not None},
            },
            "metadata": {
                "invocationId": manifest.request_id,
                **({"startedOn": manifest.runs[0].started_at} if manifest.runs else {}),
            },
            "byproducts": [{"name": name, "digest": {"sha256": sha256_bytes(data)}}],
        },
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": image.path, "digest": {"sha256": image.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return canonical_json(statement).encode()


def _describe(parts: Iterable[SourceRecord | ComponentRecord]) -> list[dict[str, Any]]:
    return [
        {
            "name": part.file if isinstance(part, SourceRecord) else part.path,
            "digest": {"sha256": part.sha256},
            "annotations": {"role": part.role, "bytes": part.bytes},
        }
        for part in parts
    ]
