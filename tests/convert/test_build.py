"""The whole conversion: what is in a set, what is refused, and what an interruption leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from golden_set import GOLDEN, golden_options, golden_transformer, make_golden_set
from safetensors.numpy import load_file, save_file

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.engine import Engine
from anima_batch.anima.pipeline import Pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.convert.build import convert_model_set
from anima_batch.convert.inputs import LATENT_MEAN, LATENT_STD
from anima_batch.convert.layouts import AdapterDims, QwenDims, TransformerDims, VaeDims
from anima_batch.convert.random_weights import ModelDims, write_random_weights
from anima_batch.errors import FolderLockedError, UsageError
from anima_batch.files import file_digests, lock_folder
from anima_batch.model_set import load_model_set, verify_model_set

ROOT = Path(__file__).parents[2]


def convert(options):
    return convert_model_set(options, lambda role: None)


def components(model_set):
    return {part.path: part.sha256 for part in model_set.description.components}


def save_as(weights, dtype, path, prefix="net."):
    save_file({prefix + name.removeprefix("net."): array.astype(dtype) for name, array in weights.items()}, path)
    return path


def initializers(path):
    return {array.name: onnx.numpy_helper.to_array(array) for array in onnx.load(path).graph.initializer}


def test_a_set_has_every_component_and_its_digests_hold(golden_set):
    assert verify_model_set(golden_set, sha256=True) == []
    cores = {
        f"transformer/{block:02d}.{branch}.onnx" for block in range(3) for branch in ("self_attn", "cross_attn", "mlp")
    }
    assert set(components(golden_set)) == cores | {
        "transformer/host.safetensors",
        "qwen/model.onnx",
        "qwen/embedding.safetensors",
        "qwen/tokenizer.json",
        "adapter/model.onnx",
        "adapter/embedding.safetensors",
        "t5/tokenizer.json",
        "vae/decoder.onnx",
    }
    files = {str(path.relative_to(golden_set.folder)) for path in golden_set.folder.rglob("*") if path.is_file()}
    assert files == set(components(golden_set)) | {"model_set.json"}


def test_dimensions_come_from_the_tensors(golden_set):
    description = golden_set.description
    assert description.transformer.model_dump() == {
        "blocks": 3,
        "hidden": 64,
        "head_dim": 16,
        "context_dim": 32,
        "latent_channels": 16,
    }
    assert (description.text.head_dim, description.text.adapter_head_dim) == (16, 16)
    assert (description.text.rope_theta, description.text.adapter_rope_theta) == (1e6, 1e4)
    assert (description.text.context_rows, description.text.empty_prompt) == (512, "token")
    assert (description.vae.latent_mean, description.vae.latent_std) == (LATENT_MEAN, LATENT_STD)


def test_every_graph_says_what_it_takes_and_opens_in_onnx_runtime(golden_set):
    backend = OnnxBackend(threads=1)
    for part in golden_set.description.components:
        if part.path.endswith(".onnx"):
            session = backend.open(golden_set.folder / part.path)
            assert [(spec.name, spec.shape) for spec in session.inputs] == [(t.name, t.shape) for t in part.inputs]
            assert [tensor.name for tensor in part.outputs] == ["out"]


def test_a_converted_transformer_gives_the_published_velocity(golden_set):
    """Producer: ComfyUI MiniTrainDIT; the tolerance is ten times the spread of four public implementations."""
    data = np.load(GOLDEN / "a_dit_A_h12w20_s0.75_n9.npz")
    context = np.zeros((512, 32), np.float32)
    context[: data["context"].shape[1]] = data["context"][0]
    backend = OnnxBackend(threads=1)
    staging = Staging(lambda role: backend.open(golden_set.path(role)))
    pipeline = Pipeline(golden_set, backend, backend, Engine(staging, backend.watch))
    sigmas = np.array([data["sigma"][0], 0], np.float32)
    transformer = pipeline.make_transformer(sigmas, Conditioning(context, None), 8 * 20, 8 * 12)
    (features,) = transformer.features(data["x"][0, :, 0], 0, ("cond",))
    np.testing.assert_allclose(transformer.velocity(features, 0), data["pred"][0, :, 0], atol=1e-4, rtol=0)


def test_every_component_says_what_it_was_built_with(golden_set):
    for part in golden_set.description.components:
        assert part.built_with.keys() == {"anima_batch", "onnx", "numpy", "opset", "dtype"}
        assert (part.built_with["opset"], part.built_with["dtype"]) == ("19", "auto")


def test_sources_are_recorded_by_name_size_and_digest(golden_set):
    recorded = {source.role: source for source in golden_set.description.sources}
    assert recorded.keys() == {"transformer", "text_encoder", "vae"}
    path = GOLDEN / "b_qwen3_weights.safetensors"
    source = recorded["text_encoder"]
    assert (source.file, source.bytes, source.sha256) == (path.name, path.stat().st_size, file_digests(path)[0])


def test_the_host_keeps_what_is_not_in_a_core_unchanged(golden_set):
    host, weights = load_file(golden_set.folder / "transformer/host.safetensors"), golden_transformer()
    cores = (".self_attn.", ".cross_attn.", ".mlp.", "llm_adapter")
    expected = {
        name.removeprefix("net."): array for name, array in weights.items() if not any(core in name for core in cores)
    }
    assert host.keys() == expected.keys()
    assert host["x_embedder.proj.1.weight"].shape == (64, 68)
    for name, array in expected.items():
        np.testing.assert_array_equal(host[name], array)


def test_embeddings_are_files_of_one_tensor(golden_set):
    qwen = load_file(golden_set.path("qwen.embedding", ".safetensors"))
    adapter = load_file(golden_set.path("adapter.embedding", ".safetensors"))
    assert (list(qwen), list(adapter)) == (["weight"], ["weight"])
    assert (qwen["weight"].shape, adapter["weight"].shape) == ((256, 32), (128, 32))


def test_a_core_holds_its_branch_and_nothing_else(golden_set):
    weights = golden_transformer()
    held = initializers(golden_set.path("transformer.01.mlp"))
    np.testing.assert_array_equal(held["layer1.weight"], weights["net.blocks.1.mlp.layer1.weight"].T)
    assert {name for name in held if not name.startswith("constant_")} == {"layer1.weight", "layer2.weight"}


def test_the_decoder_leaves_out_what_one_frame_does_not_need(golden_set):
    held = initializers(golden_set.path("vae.decoder"))
    assert not any("time_conv" in name for name in held)
    assert held["decoder.conv1.weight"].shape == (32, 16, 3, 3)


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "model.diffusion_model.net.", ""])
def test_the_prefix_of_the_names_does_not_change_the_set(golden_set, tmp_path, prefix):
    path = save_as(golden_transformer(), np.float32, tmp_path / "other.safetensors", prefix)
    assert make_golden_set(tmp_path, transformer=path).digest == golden_set.digest


def test_the_position_buffers_that_some_files_carry_change_nothing(golden_set, tmp_path):
    weights = golden_transformer() | {"net.pos_embedder.seq": np.arange(256), "net.pos_embedder.dim_range": np.ones(21)}
    path = save_as(weights, np.float32, tmp_path / "other.safetensors")
    assert make_golden_set(tmp_path, transformer=path).digest == golden_set.digest


def test_a_transformer_of_forty_blocks_converts_and_runs(tmp_path):
    """As many as the depth-expanded Anima-2.9B has."""
    forty = TransformerDims(blocks=40, hidden=32, head_dim=16, context_dim=32, rank=8, mlp=64)
    files = write_random_weights(tmp_path / "random", replace(small_dims(), transformer=forty), seed=1)
    model_set = make_golden_set(tmp_path, transformer=files.transformer, text_encoder=files.text_encoder, vae=files.vae)
    assert model_set.description.transformer.blocks == 40
    assert model_set.has(".onnx")
    velocity = take_pass(model_set)
    assert 0.1 < velocity.std() < 10
    last = model_set.path("transformer.39.mlp")
    shutil.copy(model_set.path("transformer.38.mlp"), last)
    assert not np.array_equal(take_pass(model_set), velocity)  # the last block acts


def take_pass(model_set):
    backend = OnnxBackend(threads=1)
    staging = Staging(lambda role: backend.open(model_set.path(role)))
    pipeline = Pipeline(model_set, backend, backend, Engine(staging, backend.watch))
    random = np.random.default_rng(2)
    conditioning = Conditioning(random.standard_normal((512, 32), np.float32), None)
    transformer = pipeline.make_transformer(np.array([0.75, 0], np.float32), conditioning, 128, 96)
    (features,) = transformer.features(random.standard_normal((16, 12, 16), np.float32), 0, ("cond",))
    return transformer.velocity(features, 0)


@pytest.mark.parametrize(
    ("dtype", "rule", "stored"),
    [
        (np.float16, "auto", np.float16),
        (ml_dtypes.bfloat16, "auto", np.float16),
        (ml_dtypes.bfloat16, "fp32", np.float32),
    ],
)
def test_weights_of_16_bits_make_a_set_of_16_bits_unless_told_otherwise(tmp_path, dtype, rule, stored):
    path = save_as(golden_transformer(), dtype, tmp_path / "other.safetensors")
    model_set = make_golden_set(tmp_path, transformer=path, dtype=rule)
    host = load_file(model_set.path("transformer.host", ".safetensors"))
    assert {array.dtype for array in host.values()} == {np.dtype(stored)}
    rounded = golden_transformer()["net.blocks.0.mlp.layer1.weight"].astype(dtype).astype(np.float32).T
    held = initializers(model_set.path("transformer.00.mlp"))["layer1.weight"]
    assert held.dtype == stored
    # bfloat16 has fewer digits but smaller numbers than float16: those below 6e-5 lose some of their 8 bits
    np.testing.assert_allclose(held.astype(np.float32), rounded, atol=2**-25, rtol=0)


def test_progress_names_each_component_before_it_is_made(tmp_path):
    told = []
    model_set = convert_model_set(golden_options(tmp_path), told.append)
    assert told == [part.role for part in model_set.description.components]


def test_an_existing_folder_is_never_overwritten(tmp_path):
    options = golden_options(tmp_path)
    options.out.mkdir()
    (options.out / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="set: is there already"):
        convert(options)
    assert [path.name for path in options.out.iterdir()] == ["mine.txt"]


def test_all_faults_of_all_files_are_told_at_once(tmp_path):
    transformer = golden_transformer()
    del transformer["net.blocks.2.mlp.layer1.weight"], transformer["net.llm_adapter.norm.weight"]
    transformer["net.surprise"] = np.ones(1, np.float32)
    qwen = load_file(GOLDEN / "b_qwen3_weights.safetensors")
    qwen["model.layers.1.mlp.up_proj.weight"] = np.ones((64, 33), np.float32)
    save_file(transformer, tmp_path / "wrong.safetensors")
    save_file(qwen, tmp_path / "qwen.safetensors")
    changes = {"transformer": tmp_path / "wrong.safetensors", "text_encoder": tmp_path / "qwen.safetensors"}
    with pytest.raises(UsageError) as caught:
        make_golden_set(tmp_path, **changes)
    assert str(caught.value).splitlines() == [
        f"{changes['transformer']}: 1 missing: net.blocks.2.mlp.layer1.weight",
        f"{changes['transformer']}: 1 unknown: net.surprise",
        f"{changes['transformer']}: 1 missing: net.llm_adapter.norm.weight",
        f"{changes['text_encoder']}: 1 misshapen: model.layers.1.mlp.up_proj.weight (must be [64, 32], got [64, 33])",
    ]
    assert not (tmp_path / "set.partial").exists()


def test_a_text_encoder_of_another_width_does_not_fit_the_adapter(tmp_path):
    narrow = QwenDims(layers=1, hidden=16, head_dim=8, heads=2, kv_heads=1, mlp=16, rows=256)
    files = write_random_weights(tmp_path / "random", replace(small_dims(), qwen=narrow), seed=1)
    with pytest.raises(UsageError, match=r"the adapter takes states of 32, but .* gives 16"):
        make_golden_set(tmp_path, text_encoder=files.text_encoder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": ()}, "sizes: must be one or more multiples of 16"),
        ({"sizes": ((128, 130),)}, "sizes: must be one or more multiples of 16"),
        ({"context_rows": 0}, "context_rows: must be at least 1, got 0"),
        ({"latent_std": (1.0,) * 15}, "latent_mean and latent_std: must have 16 values each"),
        ({"vae_tile": 3}, "vae_tile: must be at least 4"),
        ({"empty_token_id": 256}, "empty_token_id: must be 0 to 255, got 256"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        make_golden_set(tmp_path, **changes)
    assert not list(tmp_path.glob("set*"))


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows_is_refused(tmp_path):
    options = golden_options(tmp_path)
    content = json.loads(options.t5_tokenizer.read_text())
    content["model"]["vocab"] += [[f"word{number}", -9.0] for number in range(31)]
    options.t5_tokenizer.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"t5\.json: ids must be below 128, the embedding's rows, got 128"):
        convert(options)


def test_a_damaged_weight_is_refused_by_name_and_leaves_nothing(tmp_path):
    weights = golden_transformer()
    weights["net.blocks.2.mlp.layer2.weight"][3, 4] = np.nan
    save_file(weights, tmp_path / "nan.safetensors")
    with pytest.raises(UsageError, match=r"nan\.safetensors: net\.blocks\.2\.mlp\.layer2\.weight: holds NaN"):
        make_golden_set(tmp_path, transformer=tmp_path / "nan.safetensors")
    assert not list(tmp_path.glob("set*"))


def test_a_stop_by_the_user_leaves_nothing(tmp_path):
    def stop(role):
        if role == "vae.decoder":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_model_set(golden_options(tmp_path), stop)
    assert not list(tmp_path.glob("set*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from golden_set import golden_options
from anima_batch.convert.build import convert_model_set

def kill(role):
    if role == "transformer.01.mlp":
        os.kill(os.getpid(), signal.SIGKILL)

convert_model_set(golden_options(Path(sys.argv[1])), kill)
"""


def test_a_killed_conversion_leaves_no_set_and_the_next_one_succeeds(golden_set, tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "set.partial" / "qwen" / "model.onnx").exists()
    assert not (tmp_path / "set").exists()
    (tmp_path / "set.partial" / "rest").write_text("of another version")
    assert make_golden_set(tmp_path).digest == golden_set.digest
    assert not (tmp_path / "set.partial").exists()
    assert not (tmp_path / "set" / "rest").exists()


def test_two_conversions_into_one_folder_do_not_mix(tmp_path):
    options = golden_options(tmp_path)
    partial = tmp_path / "set.partial"
    partial.mkdir()
    with lock_folder(partial), pytest.raises(FolderLockedError):
        convert(options)


def small_dims():
    return ModelDims(
        transformer=TransformerDims(blocks=10, hidden=256, head_dim=32, context_dim=32, rank=16, mlp=1024),
        adapter=AdapterDims(blocks=1, hidden=32, head_dim=16, inner=32, mlp=64, rows=128, states=32),
        qwen=QwenDims(layers=1, hidden=32, head_dim=16, heads=2, kv_heads=1, mlp=64, rows=256),
        vae=VaeDims(base=4),
    )


def test_only_one_component_at_a_time_is_in_memory(tmp_path):
    """Four copies of the largest: read, transposed, in the graph, serialised; all together would be ten times that."""
    files = write_random_weights(tmp_path / "random", small_dims(), seed=1)
    options = golden_options(
        tmp_path, transformer=files.transformer, text_encoder=files.text_encoder, vae=files.vae, dtype="fp32"
    )
    tracemalloc.start()
    try:
        model_set = convert(options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sizes = [part.bytes for part in model_set.description.components]
    assert peak < 4 * max(sizes) + 2e6  # what Python itself and the graphs' nodes take
    assert sum(sizes) > 10 * max(sizes)
    assert sum(sizes) > 2 * peak


def test_the_set_is_the_one_that_is_on_disk(tmp_path):
    model_set = make_golden_set(tmp_path)
    assert load_model_set(tmp_path / "set") == model_set
