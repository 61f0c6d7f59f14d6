"""The stages of an image on the built-in set, and how a pipeline is chosen."""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import subgraph_keys
from anima_batch.anima.engine import Engine
from anima_batch.anima.pipeline import Pipeline, StagingChoice, _room_bytes, choose_staging, open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.errors import BackendError, ModelSetError
from anima_batch.job import RunSpec
from anima_batch.model_set import built_in_folder, load_model_set
from anima_batch.sampling import make_sigmas

PICTURE_BOOK = load_model_set(built_in_folder() / "picture-book")
CONFIG = PICTURE_BOOK.description.transformer
ROWS = PICTURE_BOOK.description.text.context_rows
ROLES = [key.role for key in subgraph_keys(CONFIG.blocks)]
SIGMAS = make_sigmas("simple", 4, 3.0)


@pytest.fixture
def pipeline():
    opened = open_pipeline(PICTURE_BOOK, "onnx", RunSpec(threads=1))
    yield opened
    opened.close()


@pytest.fixture
def broken_set(tmp_path):
    """A copy of the built-in set in which one file is missing."""

    def copy(missing):
        shutil.copytree(PICTURE_BOOK.folder, tmp_path / "set")
        (tmp_path / "set" / missing).unlink()
        return load_model_set(tmp_path / "set")

    return copy


def conditioning(seed=1, rows=ROWS):
    embeds = np.random.default_rng(seed).standard_normal((2, rows, CONFIG.context_dim), np.float32)
    return Conditioning(*embeds)


def opened_by_two_passes(run):
    """The roles that two passes open under the choice that `run` makes."""
    backend, opened = OnnxBackend(1), []

    def open_session(role):
        opened.append(role)
        return backend.open(PICTURE_BOOK.path(role))

    total = sum(PICTURE_BOOK.path(role).stat().st_size for role in ROLES)
    choice = choose_staging(run, ROLES, total, 1 << 30)
    engine = Engine(Staging(open_session, choice.keep, ahead_bytes=choice.ahead_bytes), backend.watch)
    transformer = Pipeline(PICTURE_BOOK, backend, backend, engine).make_transformer(SIGMAS, conditioning(), 128, 128)
    for step in (0, 1):
        transformer.features(np.zeros((16, 16, 16), np.float32), step, ["cond"])
    return opened


@pytest.mark.parametrize("name", ["auto", "onnx"])
def test_a_set_without_graphs_for_the_npu_runs_in_onnxruntime(name):
    assert open_pipeline(PICTURE_BOOK, name, RunSpec()).backend.name == "onnx"


def test_a_small_set_is_resident_under_auto():
    assert opened_by_two_passes(RunSpec()) == ROLES


@pytest.mark.parametrize("pinned", [0, 1, 5, 12, 100])
def test_pinned_keeps_the_first_n_sessions_of_a_pass(pinned):
    assert opened_by_two_passes(RunSpec(staging="pinned", pinned=pinned)) == ROLES + ROLES[pinned:]


def test_on_demand_and_ahead_keep_no_session_and_resident_all():
    assert opened_by_two_passes(RunSpec(staging="on-demand")) == ROLES + ROLES
    assert opened_by_two_passes(RunSpec(staging="ahead")) == ROLES + ROLES
    assert opened_by_two_passes(RunSpec(staging="resident")) == ROLES


def test_auto_goes_ahead_where_the_graphs_take_more_than_a_quarter_of_the_room():
    resident, ahead = StagingChoice(ROLES), StagingChoice(ahead_bytes=128 << 20)
    assert choose_staging(RunSpec(), ROLES, 1000 << 20, 4000 << 20) == resident
    assert choose_staging(RunSpec(), ROLES, 1001 << 20, 4000 << 20) == ahead
    assert choose_staging(RunSpec(staging="resident"), ROLES, 1001 << 20, 4000 << 20) == resident
    assert choose_staging(RunSpec(staging="ahead"), ROLES, 1000 << 20, 4000 << 20) == ahead


def test_auto_keeps_a_small_set_open_however_little_memory_there_is():
    assert choose_staging(RunSpec(), ROLES, 7 << 20, 8 << 20) == StagingChoice(ROLES, gated=False)


def test_the_npu_has_room_for_its_four_gigabytes_of_addresses_however_much_memory_there_is():
    assert _room_bytes("rknn", 32 << 30) == 4 << 30
    assert _room_bytes("rknn", 2 << 30) == 2 << 30
    assert _room_bytes("onnx", 32 << 30) == 32 << 30


def test_a_set_that_lacks_a_graph_of_the_transformer_is_refused_when_the_pipeline_opens():
    parts = tuple(part for part in PICTURE_BOOK.description.components if part.role != ROLES[-1])
    fewer = replace(PICTURE_BOOK, description=PICTURE_BOOK.description.model_copy(update={"components": parts}))
    with pytest.raises(ModelSetError, match=f"no .onnx component of role {ROLES[-1]}"):
        open_pipeline(fewer, "onnx", RunSpec())


def test_a_graph_that_is_missing_on_disk_is_an_error_when_it_is_needed(broken_set):
    pipeline = open_pipeline(broken_set("transformer/02.mlp.onnx"), "onnx", RunSpec(threads=1))
    transformer = pipeline.make_transformer(SIGMAS, conditioning(), 128, 128)
    with pytest.raises(BackendError, match=r"transformer/02\.mlp\.onnx: No such file or directory") as caught:
        transformer.features(np.zeros((16, 16, 16), np.float32), 0, ["cond"])
    assert caught.value.exit_code == 4


def test_missing_host_weights_are_a_model_set_error_that_names_the_file(broken_set):
    pipeline = open_pipeline(broken_set("transformer/host.safetensors"), "onnx", RunSpec())
    with pytest.raises(
        ModelSetError, match=r"transformer/host.safetensors: .*run `anima-batch models verify`"
    ) as caught:
        pipeline.make_transformer(SIGMAS, conditioning(), 128, 128)
    assert caught.value.exit_code == 4


def test_truncated_host_weights_are_a_model_set_error(broken_set):
    broken = broken_set("transformer/host.safetensors")
    whole = PICTURE_BOOK.path("transformer.host", ".safetensors").read_bytes()
    broken.path("transformer.host", ".safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelSetError, match=r"transformer/host.safetensors: "):
        open_pipeline(broken, "onnx", RunSpec()).make_transformer(SIGMAS, conditioning(), 128, 128)


def with_inputs(role, edit):
    """The built-in set, in whose description the inputs of a graph are changed."""
    description = PICTURE_BOOK.description
    parts = tuple(
        part.model_copy(update={"inputs": edit(part.inputs)}) if part.role == role else part
        for part in description.components
    )
    return replace(PICTURE_BOOK, description=description.model_copy(update={"components": parts}))


@pytest.mark.parametrize("role", ["qwen.model", "adapter.model", "transformer.00.self_attn", "vae.decoder"])
def test_a_graph_with_other_inputs_than_described_is_refused_when_it_is_opened(role):
    def rename(inputs):
        return (inputs[0].model_copy(update={"name": "other"}), *inputs[1:])

    def flatten(inputs):
        return (inputs[0].model_copy(update={"shape": (1, 2)}), *inputs[1:])

    for edit in (rename, flatten, lambda inputs: inputs[1:] or rename(inputs)):
        pipeline = open_pipeline(with_inputs(role, edit), "onnx", RunSpec(threads=1))
        with pytest.raises(
            ModelSetError, match=r"inputs \(with their ranks\) must be .*, got .*convert the model set again"
        ):
            run_stages(pipeline)


def test_a_description_without_inputs_is_taken_as_it_is():
    run_stages(open_pipeline(with_inputs("transformer.00.self_attn", lambda inputs: ()), "onnx", RunSpec(threads=1)))


def run_stages(pipeline):
    pipeline.encode(["a red house"])
    latents = np.zeros((16, 16, 16), np.float32)
    pipeline.make_transformer(SIGMAS, conditioning(), 128, 128).features(latents, 0, ["cond"])
    pipeline.decode(latents)


def test_prompts_become_contexts_that_differ_and_are_the_same_each_time(pipeline):
    house, owl, again = pipeline.encode(["a red house", "a white owl", "a red house"])
    assert house.shape == owl.shape == (ROWS, CONFIG.context_dim)
    assert house.dtype == np.float32
    assert not np.array_equal(house, owl)
    assert np.array_equal(house, again)
    assert np.array_equal(pipeline.encode(["a white owl"])[0], owl)


def test_a_conditioning_has_one_stream_without_a_negative_prompt_and_two_with_one():
    both = conditioning()
    assert list(both.streams) == ["cond", "uncond"]
    assert both.streams["cond"] is both.prompt_embeds
    assert both.streams["uncond"] is both.negative_prompt_embeds
    assert list(Conditioning(both.prompt_embeds, None).streams) == ["cond"]


def test_a_conditionings_digest_tells_streams_their_order_and_every_bit_apart():
    both = conditioning()
    a, b = both.prompt_embeds, both.negative_prompt_embeds
    nudged = a.copy()
    nudged.view(np.uint32)[-1, -1] ^= 1
    values = [both, Conditioning(b, a), Conditioning(a, None), Conditioning(a, a), Conditioning(nudged, b)]
    assert len({value.sha256 for value in values}) == len(values)
    assert both.sha256 == hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest()
    assert both.sha256 == Conditioning(a.copy(), b.copy()).sha256


def test_images_with_the_same_schedule_share_one_modulation(pipeline):
    first = pipeline.make_transformer(SIGMAS, conditioning(1), 128, 128)
    second = pipeline.make_transformer(SIGMAS.copy(), conditioning(2), 192, 128)
    assert second.modulation is first.modulation
    other = make_sigmas("simple", 4, 5.0)
    third = pipeline.make_transformer(other, conditioning(1), 128, 128)
    assert third.modulation is not first.modulation
    assert not np.array_equal(third.modulation.branches, first.modulation.branches)
    assert third.modulation.branches.shape == (4, CONFIG.blocks, 3, 3, CONFIG.hidden)  # none for the final sigma of 0


def test_a_transformer_has_the_grid_of_the_picture_and_the_contexts_of_its_streams(pipeline):
    made = conditioning()
    transformer = pipeline.make_transformer(SIGMAS, made, 192, 128)
    assert transformer.grid == (8, 12)
    assert transformer.fixed.contexts == made.streams
    (features,) = transformer.features(np.zeros((16, 16, 24), np.float32), 0, ["uncond"])
    assert features.shape == (96, CONFIG.hidden)
    assert transformer.velocity(features, 0).shape == (16, 16, 24)


@pytest.mark.parametrize(("width", "height"), [(128, 128), (192, 128), (128, 192)])
def test_latents_are_decoded_to_pixels_of_the_pictures_size(width, height, pipeline):
    latents = np.random.default_rng(5).standard_normal((16, height // 8, width // 8), np.float32)
    pixels = pipeline.decode(latents)
    assert pixels.shape == (height, width, 3)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0
    assert np.array_equal(pipeline.decode(latents), pixels)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_latents_that_are_not_finite_are_refused(value, pipeline):
    latents = np.zeros((16, 16, 16), np.float32)
    latents[3, 4, 5] = value
    with pytest.raises(BackendError):
        pipeline.decode(latents)


def test_a_prompt_in_other_tools_syntax_is_warned_about_and_a_plain_one_is_not(pipeline):
    assert pipeline.warn_about("a red house") == []
    (warning,) = pipeline.warn_about("a (red:1.3) house")
    assert "'(red:1.3)' is encoded as plain text" in warning
    assert f"first {ROWS} are used" in pipeline.warn_about("house " * 600)[0]


def test_closing_releases_the_sessions_that_were_kept_and_the_pipeline_can_go_on(pipeline):
    transformer = pipeline.make_transformer(SIGMAS, conditioning(), 128, 128)
    latents = np.zeros((16, 16, 16), np.float32)
    (before,) = transformer.features(latents, 0, ["cond"])
    released = pipeline.backend.watch.timings.release
    pipeline.close()
    assert pipeline.backend.watch.timings.release > released
    (after,) = transformer.features(latents, 0, ["cond"])
    assert np.array_equal(before, after)
