from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_model import golden_arrays, golden_json

from anima_batch.sampling import make_noise

GOLDEN_KEYS = [entry["key"] for entry in golden_json("g_noise.json")]


def split_key(key: str) -> tuple[str, int, tuple[int, int, int]]:
    kind, seed, size = key.split("/")
    height, width = (int(side) for side in size.split("x"))
    return kind, int(seed), (16, height, width)


@pytest.mark.parametrize("key", GOLDEN_KEYS)
def test_noise_equals_torch_and_stable_diffusion_cpp(key):
    """torch 2.13 on the CPU; stable-diffusion.cpp's rng_philox.hpp. 1e-6: their log and cos differ in the last bit."""
    kind, seed, shape = split_key(key)
    noise = make_noise(kind, seed, shape)
    assert noise.dtype == np.float32
    assert noise.shape == shape
    np.testing.assert_allclose(noise.ravel()[:256], golden_arrays("g_noise.npz")[key], rtol=0, atol=1e-6)


def test_noise_has_the_recorded_mean_and_deviation():
    """Over all values, so that the ones after the first 256 are right too; 1e-6 as for the values."""
    for entry in golden_json("g_noise.json"):
        kind, seed, shape = split_key(entry["key"])
        noise = make_noise(kind, seed, shape).astype(np.float64)
        assert noise.size == entry["n"]
        assert noise.mean() == pytest.approx(entry["mean"], abs=1e-6)
        assert min(abs(noise.std(ddof=k) - entry["std"]) for k in (0, 1)) < 1e-6


def test_numpy_noise_is_the_documented_generator():
    expected = np.random.Generator(np.random.PCG64(5)).standard_normal((16, 2, 4), dtype=np.float32)
    np.testing.assert_array_equal(make_noise("numpy", 5, (16, 2, 4)), expected)


@pytest.mark.parametrize("kind", ["torch", "philox", "numpy"])
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_every_seed_gives_the_same_finite_noise_twice(kind, seed):
    first, second = make_noise(kind, seed, (16, 4, 6)), make_noise(kind, seed, (16, 4, 6))
    assert np.isfinite(first).all()
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("kind", ["philox", "numpy"])
def test_seeds_that_differ_above_bit_32_give_other_noise(kind):
    assert not np.array_equal(make_noise(kind, 5, (16, 4, 4)), make_noise(kind, 5 + 2**32, (16, 4, 4)))


def test_torch_noise_uses_the_low_32_bits_of_the_seed():
    np.testing.assert_array_equal(make_noise("torch", 5, (16, 4, 4)), make_noise("torch", 5 + 2**32, (16, 4, 4)))


def test_noise_of_a_size_that_torch_would_draw_otherwise_is_refused():
    with pytest.raises(ValueError, match="multiple of 16, got 17"):
        make_noise("torch", 0, (17,))
