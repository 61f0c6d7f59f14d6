"""Opening a graph of a model set, which must have the inputs that the set says."""

from __future__ import annotations

from anima_batch.backends.base import Backend, Session
from anima_batch.errors import ModelSetError
from anima_batch.model_set import ModelSet


def open_session(backend: Backend, model_set: ModelSet, role: str, core: int = 0) -> Session:
    """A role's open graph, for a core; raises BackendError, and ModelSetError for inputs of other names or ranks."""
    component = model_set.component(role, backend.suffix)
    path = model_set.folder / component.path
    session = backend.open(path, core)
    described, found = ({spec.name: len(spec.shape) for spec in specs} for specs in (component.inputs, session.inputs))
    # Not every runtime tells a graph's inputs, nor every description.
    if described and found and described != found:
        session.close()
        raise ModelSetError(
            f"{path}: inputs (with their ranks) must be {_list_inputs(described)}, got {_list_inputs(found)}: "
            "convert the model set again"
        )
    return session


def _list_inputs(ranks: dict[str, int]) -> str:
    return ", ".join(f"{name} ({rank})" for name, rank in ranks.items())
