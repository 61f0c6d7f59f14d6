"""From a prompt to the context, through ONNX Runtime and graphs made from small reference weights."""

from __future__ import annotations

import string
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from anima_batch.anima.text import (
    PromptTokens,
    causal_mask,
    encode_prompts,
    encode_tokens,
    gather_rows,
    load_tokenizer,
    prompt_warnings,
    rotary_1d,
    run_qwen,
    tokenize,
)
from anima_batch.backends.base import Session
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.text import build_adapter, build_qwen
from anima_batch.errors import ModelSetError
from anima_batch.model_set import (
    ModelSet,
    ModelSetFile,
    TextConfig,
    TransformerConfig,
    VaeConfig,
    describe_component,
    write_description,
)
from training.scenes import list_captions
from training.small_tokenizers import train_small_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 2e-5  # ten times the spread of the public implementations among themselves, in float32
FILES = {
    "qwen.tokenizer": "qwen/tokenizer.json",
    "qwen.embedding": "qwen/embedding.safetensors",
    "qwen.model": "qwen/model.onnx",
    "t5.tokenizer": "t5/tokenizer.json",
    "adapter.embedding": "adapter/embedding.safetensors",
    "adapter.model": "adapter/model.onnx",
}
AWKWARD = {
    "10 kB": "a red house by the sea, " * 420,
    "Japanese": "桜の木の下で微笑む少女、青い目、長い髪" * 40,
    "emoji": "cat 😺 and 🌸🏳️\u200d🌈 party",
    "right to left": "قطة حمراء \u202eabc\u202c חתול",
    "line breaks": "line one\nline two\r\n\ttabbed\n\n",
    "blanks": "   ",
    "NUL": "a\0b",
    "combining": "e\u0301\u0323" * 50,
}


def make_set(folder: Path, *, dtype: type = np.float32, **text: object) -> ModelSet:
    """The reference weights with small tokenizers; embeddings get random rows so that every id of these has one."""
    train_small_tokenizers(folder, list_captions())
    generator = np.random.default_rng(7)
    parts = (
        ("qwen", "b_qwen3", "model.", 512, build_qwen),
        ("adapter", "b_llm_adapter", "net.llm_adapter.", 384, build_adapter),
    )
    for part, name, prefix, rows, build in parts:
        weights = {
            key.removeprefix(prefix): array.astype(dtype)
            for key, array in load_file(GOLDEN / f"{name}_weights.safetensors").items()
        }
        known = next(array for key, array in weights.items() if "embed" in key)
        more = generator.standard_normal((rows - len(known), known.shape[1])).astype(dtype)
        (folder / part).mkdir(exist_ok=True)
        save_file({"weight": np.concatenate([known, more])}, folder / part / "embedding.safetensors")
        (folder / part / "model.onnx").write_bytes(build(weights)[0])
    config = {"context_rows": 512, "empty_prompt": "token", "empty_token_id": 250, **text}
    description = ModelSetFile(
        schema_version=1,
        name="small",
        license="CC0-1.0",
        sizes=((128, 128),),
        transformer=TransformerConfig(blocks=1, hidden=64, head_dim=16, context_dim=32, latent_channels=16),
        text=TextConfig(head_dim=16, rope_theta=1e6, adapter_head_dim=16, adapter_rope_theta=1e4, **config),
        vae=VaeConfig(latent_mean=(0.0,) * 16, latent_std=(1.0,) * 16),
        sources=(),
        components=tuple(describe_component(folder, role, path, {}) for role, path in FILES.items()),
    )
    return write_description(folder, description)


@pytest.fixture(scope="module")
def model_set(tmp_path_factory) -> ModelSet:
    return make_set(tmp_path_factory.mktemp("float32"))


@pytest.fixture(scope="module")
def short_set(tmp_path_factory) -> ModelSet:
    return make_set(tmp_path_factory.mktemp("short"), context_rows=12)


@pytest.fixture(scope="module")
def masked_set(tmp_path_factory) -> ModelSet:
    return make_set(tmp_path_factory.mktemp("masked"), empty_prompt="masked")


@pytest.fixture
def backend() -> OnnxBackend:
    return OnnxBackend(threads=1)


class RecordingBackend(OnnxBackend):
    """An ONNX backend that notes what is opened and closed."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.events: list[str] = []

    def open(self, path: Path, core: int = 0) -> Session:
        self.events.append(f"open {path.parent.name}")
        return RecordedSession(super().open(path, core), lambda: self.events.append(f"close {path.parent.name}"))


class RecordedSession:
    """A session that reports its closing."""

    def __init__(self, session: Session, on_close: Callable[[], None]) -> None:
        self.inputs, self.run = session.inputs, session.run
        self._session, self._on_close = session, on_close

    def close(self) -> None:
        self._session.close()
        self._on_close()


def read_tokens(golden) -> PromptTokens:
    qwen_ids, t5_ids = (tuple(int(number) for number in golden[name]) for name in ("qwen_ids", "t5_ids"))
    return PromptTokens(qwen_ids, t5_ids, len(qwen_ids), len(t5_ids))


@pytest.mark.parametrize("case", ["prompt", "empty"])
def test_the_context_is_that_of_the_reference(case, model_set, backend):
    """Reference: transformers Qwen3Model (eager) and ComfyUI LLMAdapter."""
    golden = np.load(GOLDEN / f"b_text_{case}.npz")
    context = encode_tokens([read_tokens(golden)], model_set, backend)[0]
    assert (context.shape, context.dtype) == ((512, 32), np.float32)
    np.testing.assert_allclose(context, golden["context_512"][0], rtol=0, atol=TOLERANCE)
    assert not context[len(golden["t5_ids"]) :].any()


def test_weights_of_the_reference_only_scale_our_rows(model_set, backend):
    """Reference: as above; its prompt weights multiply the rows, ours are all 1."""
    golden = np.load(GOLDEN / "b_text_weighted.npz")
    context = encode_tokens([read_tokens(golden)], model_set, backend)[0]
    np.testing.assert_allclose(context[:6], golden["adapter.out"][0], rtol=0, atol=TOLERANCE)
    scaled = context[:6] * golden["t5_weights"][:, None]
    np.testing.assert_allclose(scaled, golden["context_512"][0, :6], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", ["prompt", "weighted", "empty"])
def test_qwens_states_and_both_embeddings_are_those_of_the_reference(case, model_set, backend):
    """Reference: transformers Qwen3Model (eager) and ComfyUI LLMAdapter."""
    golden = np.load(GOLDEN / f"b_text_{case}.npz")
    tokens = read_tokens(golden)
    rows = [
        gather_rows(model_set.path(f"{part}.embedding", ".safetensors"), ids)
        for part, ids in (("qwen", tokens.qwen_ids), ("adapter", tokens.t5_ids))
    ]
    np.testing.assert_array_equal(rows[0], golden["qwen.hidden_states.0"])
    np.testing.assert_array_equal(rows[1], golden["adapter.embed"])
    states = run_qwen([tokens.qwen_ids], model_set, backend)[0]
    np.testing.assert_allclose(states, golden["qwen.last_hidden_state"], rtol=0, atol=TOLERANCE)


def test_an_empty_prompt_is_one_token_under_the_token_rule(model_set, backend):
    """Reference: ComfyUI's rule with id 250 as the empty token."""
    golden = np.load(GOLDEN / "b_text_empty.npz")
    context = encode_prompts([""], model_set, backend)[0]
    np.testing.assert_allclose(context, golden["context_512"][0], rtol=0, atol=TOLERANCE)


def test_an_empty_prompt_has_no_states_under_the_masked_rule(masked_set):
    """Reference: diffusers AnimaTextConditioner with all source positions masked."""
    recording = RecordingBackend()
    context = encode_prompts([""], masked_set, recording)[0]
    golden = np.load(GOLDEN / "b_text_empty_diffusers.npz")
    np.testing.assert_allclose(context[:1], golden["adapter.out"][0], rtol=0, atol=TOLERANCE)
    assert not context[1:].any()
    assert recording.events == ["open adapter", "close adapter"]


def test_the_rules_differ_for_the_empty_prompt_alone(model_set, masked_set, backend):
    first, second = (encode_prompts(["", " ", "red"], made, backend) for made in (model_set, masked_set))
    assert np.abs(first[0] - second[0]).max() > 0.1
    np.testing.assert_array_equal(first[1], second[1])
    np.testing.assert_array_equal(first[2], second[2])


def test_qwen_is_closed_before_the_adapter_is_opened(model_set):
    recording = RecordingBackend()
    encode_prompts(["a red house", "", "a blue boat at night"], model_set, recording)
    assert recording.events == ["open qwen", "close qwen", "open adapter", "close adapter"]


def test_sessions_are_closed_when_encoding_fails(model_set):
    recording = RecordingBackend()
    with pytest.raises(ModelSetError, match="token ids must be below 384, got 400"):
        encode_tokens([PromptTokens((1, 2), (400, 1), 2, 2)], model_set, recording)
    assert recording.events == ["open qwen", "close qwen", "open adapter", "close adapter"]


def test_prompts_encoded_together_equal_those_encoded_alone(model_set, backend):
    prompts = ["a red house", "", "two blue boats by the sea"]
    together = encode_prompts(prompts, model_set, backend)
    for prompt, context in zip(prompts, together, strict=True):
        np.testing.assert_array_equal(context, encode_prompts([prompt], model_set, backend)[0])


def test_float16_weights_give_nearly_the_float32_context(model_set, backend, tmp_path):
    half = make_set(tmp_path, dtype=np.float16)
    prompt = "two red boats by the sea at night, windy"
    exact, near = encode_prompts([prompt], model_set, backend)[0], encode_prompts([prompt], half, backend)[0]
    # Storage rounds each weight by up to 2^-11 of itself; the rest of the computation is the same.
    np.testing.assert_allclose(near, exact, rtol=0, atol=2e-2)
    assert near.dtype == np.float32


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_prompts_are_encoded_and_finite(name, model_set, backend):
    tokens = tokenize(AWKWARD[name], load_tokenizer(model_set))
    context = encode_prompts([AWKWARD[name]], model_set, backend)[0]
    assert context.shape == (512, 32)
    assert np.isfinite(context).all()
    rows = len(tokens.t5_ids)
    assert context[:rows].any(axis=1).all()
    assert not context[rows:].any()


def test_a_long_prompt_is_cut_on_the_right_and_t5_keeps_its_end(short_set, backend):
    tokenizer = load_tokenizer(short_set)
    prompt = "a red house on the left on grass by night " * 3
    tokens = tokenize(prompt, tokenizer)
    assert (tokens.qwen_count, tokens.t5_count) == (33, 31)
    assert list(tokens.qwen_ids) == tokenizer.qwen.encode(prompt).ids[:12]
    assert list(tokens.t5_ids) == [*tokenizer.t5.encode(prompt).ids[:11], 1]
    context = encode_prompts([prompt], short_set, backend)[0]
    assert context.shape == (12, 32)
    assert context.any(axis=1).all()


def test_a_cut_prompt_has_a_warning_with_the_numbers(short_set):
    warnings = prompt_warnings("a red house on the left on grass by night " * 3, load_tokenizer(short_set))
    assert warnings == ["the prompt has 33 Qwen and 31 T5 tokens, of which the first 12 are used: shorten it"]


def test_a_prompt_that_just_fits_has_no_warning(short_set):
    prompt = "red " * 11
    tokens = tokenize(prompt, load_tokenizer(short_set))
    assert tokens.t5_count == 12
    assert prompt_warnings(prompt.strip(), load_tokenizer(short_set)) == []


@pytest.mark.parametrize(
    ("prompt", "seen", "reason"),
    [
        ("(cat:1.2), dog", "'(cat:1.2)'", "weights are not applied"),
        ("(cat:.5)", "'(cat:.5)'", "weights are not applied"),
        (r"(miku \(vocaloid\):1.2)", r"(vocaloid", "weights are not applied"),
        ("1girl, ((blush)), hat", "'((blush))'", "weights are not applied"),
        ("(((x)))", "'((x))'", "weights are not applied"),
        ("a [hat]", "'[hat]'", "weights are not applied"),
        ("sea BREAK sky", "'BREAK'", "a prompt is never split"),
        ("<lora:style-v2:0.8> cat", "'<lora:style-v2:0.8>'", "no LoRA is loaded from a prompt"),
        (r"miku \(vocaloid\)", r"'\\('", "brackets need no backslash"),
    ],
)
def test_syntax_of_other_tools_is_said_to_be_plain_text(prompt, seen, reason, model_set):
    warning = prompt_warnings(prompt, load_tokenizer(model_set))[0]
    assert seen in warning
    assert warning.endswith(f"is encoded as plain text: {reason}")
    assert "\n" not in warning


@pytest.mark.parametrize(
    "prompt",
    [
        "miku (vocaloid), saber (fate), 1girl",
        "score_9, :d, >_<, ^_^, (o_o), x:y",
        "a clock at 12:30 (noon)",
        "(unclosed paren, smile",
        "daybreak, Break, breakfast",
        "a <heart> sign",
        "",
    ],
)
def test_tags_with_brackets_and_faces_have_no_warning(prompt, model_set):
    assert prompt_warnings(prompt, load_tokenizer(model_set)) == []


def test_several_kinds_of_syntax_have_a_line_each(model_set):
    prompt = "(cat:1.2), (dog:0.8), [hat] BREAK <lora:a:1>\nnext"
    assert len(prompt_warnings(prompt, load_tokenizer(model_set))) == 4


def test_brackets_are_encoded_literally(model_set):
    tokenizer = load_tokenizer(model_set)
    tokens = tokenize("(red:1.2)", tokenizer)
    assert tokenizer.qwen.decode(list(tokens.qwen_ids)) == "(red:1.2)"


@given(text=st.text(alphabet=string.printable + "\\()[]<>:", max_size=80))
def test_warnings_are_single_lines_for_any_text(model_set, text):
    assert all(len(line.splitlines()) == 1 for line in prompt_warnings(text, load_tokenizer(model_set)))


@pytest.mark.parametrize("text", ["(", "((", "[", ":", "(a:", "\\", "<lora:", "(:1", "1", " ", "( "])
def test_looking_for_syntax_takes_little_time_for_any_repetition(text, model_set):
    tokenizer = load_tokenizer(model_set)
    started = time.perf_counter()
    prompt_warnings("(:" + text * 5000, tokenizer)
    assert time.perf_counter() - started < 2  # a pattern that tries each split again would need minutes


def test_rotary_tables_have_the_closed_form():
    cos, sin = rotary_1d(600, 64, 1e4)
    assert cos.shape == sin.shape == (1, 600, 32)
    assert cos.dtype == sin.dtype == np.float32
    angle = 599 * 1e4 ** (-2 * 5 / 64)
    # Half a unit in the last place of float32 for values up to 1.
    np.testing.assert_allclose([cos[0, 599, 5], sin[0, 599, 5]], [np.cos(angle), np.sin(angle)], rtol=0, atol=6e-8)
    np.testing.assert_array_equal(cos[0, 0], 1)


def test_the_causal_mask_hides_what_comes_later():
    mask = causal_mask(4)[0]
    np.testing.assert_array_equal(mask == 0, np.tri(4, dtype=bool))
    assert not np.exp(mask[0, 1:]).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gathered_rows_are_those_of_the_table(dtype, tmp_path):
    table = np.random.default_rng(1).standard_normal((50, 8)).astype(dtype)
    save_file({"weight": table}, tmp_path / "table.safetensors")
    rows = gather_rows(tmp_path / "table.safetensors", [3, 49, 3, 0])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[0], table[[3, 49, 3, 0]].astype(np.float32))


def test_a_missing_or_broken_embedding_is_named(tmp_path):
    path = tmp_path / "table.safetensors"
    whole = save({"weight": np.ones((3, 2))})
    for content in (None, b"no table", save({"other": np.ones(2)}), whole[:-8]):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ModelSetError, match=r"table\.safetensors: .*run `anima-batch models verify`"):
            gather_rows(path, [0])


def test_a_broken_tokenizer_is_named(tmp_path):
    made = make_set(tmp_path)
    (tmp_path / FILES["t5.tokenizer"]).write_text("{}")
    with pytest.raises(ModelSetError, match=r"t5/tokenizer\.json: not a tokenizer file"):
        load_tokenizer(made)


def test_the_graphs_take_one_token_as_well_as_many(model_set, backend):
    with closing(backend.open(model_set.path("qwen.model"))) as session:
        for length in (1, 2, 512):
            cos, sin = rotary_1d(length, 16, 1e6)
            x = np.ones((1, length, 32), np.float32)
            states = session.run({"x": x, "cos": cos, "sin": sin, "mask": causal_mask(length)})
            assert states.shape == (1, length, 32)
