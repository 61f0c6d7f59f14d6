"""Which sessions are open when, and that it is no matter to the result."""

import numpy as np
import pytest

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.errors import BackendError
from anima_batch.job import RunSpec
from anima_batch.model_set import built_in_folder, load_model_set
from anima_batch.sampling import make_sigmas

PICTURE_BOOK = load_model_set(built_in_folder() / "picture-book")
ROLES = ("transformer.00.self_attn", "transformer.00.mlp", "transformer.01.mlp")


class Opener:
    """Opens real sessions and remembers them in order."""

    def __init__(self):
        self.opened = []
        self._backend = OnnxBackend(1)

    def __call__(self, role):
        session = self._backend.open(PICTURE_BOOK.path(role))
        self.opened.append((role, session))
        return session

    @property
    def roles(self):
        return [role for role, _ in self.opened]


def is_open(session):
    feeds = {spec.name: np.zeros([2 if size == "tokens" else size for size in spec.shape]) for spec in session.inputs}
    try:
        session.run(feeds)
    except BackendError as error:
        if "run after close" not in str(error):
            raise
        return False
    return True


def walk(staging, rounds=2):
    """Use every role in order, as passes do."""
    for _ in range(rounds):
        for role in ROLES:
            with staging.session(role) as session:
                assert is_open(session)


def test_on_demand_each_use_opens_a_session_and_closes_it():
    opener = Opener()
    walk(Staging(opener))
    assert opener.roles == [*ROLES, *ROLES]
    assert not any(is_open(session) for _, session in opener.opened)


def test_pinned_sessions_and_no_others_stay_open_after_their_first_use():
    opener = Opener()
    walk(Staging(opener, ROLES[:1]))
    assert opener.roles == [*ROLES, *ROLES[1:]]
    assert [is_open(session) for _, session in opener.opened] == [True, False, False, False, False]


def test_resident_each_session_is_opened_once_and_only_when_it_is_needed():
    opener = Opener()
    staging = Staging(opener, ROLES)
    assert opener.roles == []
    walk(staging)
    assert opener.roles == list(ROLES)
    assert all(is_open(session) for _, session in opener.opened)


def test_close_closes_what_was_kept_and_a_second_close_does_nothing():
    opener = Opener()
    staging = Staging(opener, ROLES)
    walk(staging)
    staging.close()
    staging.close()
    assert not any(is_open(session) for _, session in opener.opened)


def test_after_close_the_next_use_opens_again():
    opener = Opener()
    staging = Staging(opener, ROLES)
    walk(staging, rounds=1)
    staging.close()
    walk(staging)
    assert opener.roles == [*ROLES, *ROLES]


def test_an_exception_in_the_block_closes_a_session_that_is_not_kept():
    opener = Opener()
    with pytest.raises(ZeroDivisionError), Staging(opener).session(ROLES[0]):
        raise ZeroDivisionError
    assert not is_open(opener.opened[0][1])


def test_an_exception_in_the_block_leaves_a_kept_session_to_close():
    opener = Opener()
    staging = Staging(opener, ROLES)
    with pytest.raises(ZeroDivisionError), staging.session(ROLES[0]):
        raise ZeroDivisionError
    assert is_open(opener.opened[0][1])
    staging.close()
    assert not is_open(opener.opened[0][1])


def test_a_session_that_does_not_open_is_tried_again_at_the_next_use():
    backend, paths = OnnxBackend(1), [PICTURE_BOOK.path(ROLES[0]), PICTURE_BOOK.folder / "gone.onnx"]
    staging = Staging(lambda role: backend.open(paths.pop()), ROLES)
    with pytest.raises(BackendError, match="gone"), staging.session(ROLES[0]):
        pass
    with staging.session(ROLES[0]) as session:
        assert is_open(session)


def test_on_demand_pinned_and_resident_give_the_same_velocity_bit_by_bit():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 32, 64), np.float32)
    latents = rng.standard_normal((16, 16, 24), np.float32)
    sigmas = make_sigmas("simple", 4, 3.0)
    results = []
    for staging in ("on-demand", "pinned", "resident"):
        pipeline = open_pipeline(PICTURE_BOOK, "onnx", RunSpec(staging=staging, pinned=5))
        transformer = pipeline.make_transformer(sigmas, Conditioning(*rows), 192, 128)
        features = transformer.features(latents, 1, ["cond", "uncond"])
        features = transformer.features(latents, 2, ["cond", "uncond"])  # from sessions that ran before
        results.append(np.stack([transformer.velocity(each, 2) for each in features]))
        pipeline.close()
    assert not np.array_equal(*results[0])
    assert all(result.tobytes() == results[0].tobytes() for result in results)
