"""Reading real tokenizers, and refusing wrong ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from anima_batch.anima.text import PromptTokenizer, tokenize
from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from anima_batch.errors import UsageError
from anima_batch.model_set import TextConfig
from training.scenes import list_captions
from training.small_tokenizers import train_small_tokenizers

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "f_tokens.json").read_text(encoding="utf-8"))


def text_config(context_rows: int, empty_token_id: int) -> TextConfig:
    return TextConfig(
        context_rows=context_rows,
        empty_prompt="token",
        empty_token_id=empty_token_id,
        head_dim=128,
        rope_theta=1e6,
        adapter_head_dim=64,
        adapter_rope_theta=1e4,
    )


@pytest.fixture(scope="module")
def real_folder() -> Path:
    """The folder with the real files, `qwen/` and `t5/`: in ANIMA_TOKENIZERS, else `.tokenizers/` in the repository."""
    folder = Path(os.environ.get("ANIMA_TOKENIZERS") or ROOT / ".tokenizers")
    if not (folder / "qwen").is_dir() or not (folder / "t5").is_dir():
        reason = f"needs qwen/ and t5/ in {folder}: the tokenizer files of anima-mlx 0.1.0 (.ci/run fetches them)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return folder


@pytest.fixture(scope="module")
def real(real_folder) -> PromptTokenizer:
    qwen, t5 = read_qwen_tokenizer(real_folder / "qwen"), read_t5_tokenizer(real_folder / "t5")
    return PromptTokenizer(qwen, t5, text_config(65_536, 151643))


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    train_small_tokenizers(folder, list_captions())
    return folder


@pytest.mark.parametrize("case", CASES, ids=[ascii(case["prompt"][:20]) for case in CASES])
def test_ids_are_those_of_the_reference(case, real):
    """Reference: Hugging Face tokenizers without weight parsing; for the empty prompt ComfyUI's rule."""
    expected = case["plain_hf"] if case["prompt"] else case["comfyui"]
    tokens = tokenize(case["prompt"], real)
    assert list(tokens.qwen_ids) == expected["qwen_ids"]
    assert list(tokens.t5_ids) == expected["t5_ids"]


def test_saving_the_built_tokenizer_keeps_its_ids(real, tmp_path):
    real.qwen.save(str(tmp_path / "tokenizer.json"))
    again = read_qwen_tokenizer(tmp_path / "tokenizer.json")
    for case in CASES:
        assert again.encode(case["prompt"]).ids == real.qwen.encode(case["prompt"]).ids


def test_a_long_real_prompt_is_cut_on_the_right_and_keeps_its_end(real):
    whole = next(case["plain_hf"] for case in CASES if len(case["prompt"]) > 4000)
    prompt = next(case["prompt"] for case in CASES if len(case["prompt"]) > 4000)
    tokens = tokenize(prompt, PromptTokenizer(real.qwen, real.t5, text_config(512, 151643)))
    assert list(tokens.qwen_ids) == whole["qwen_ids"][:512]
    assert list(tokens.t5_ids) == [*whole["t5_ids"][:511], 1]
    assert (tokens.qwen_count, tokens.t5_count) == (1189, 1562)


def test_blanks_are_tokens_for_qwen_and_nothing_for_t5(real):
    tokens = tokenize("  ", real)
    assert (tokens.qwen_ids, tokens.t5_ids) == ((256,), (1,))


def test_special_tokens_come_from_the_configuration_or_are_qwen2s_three(real_folder, tmp_path):
    with_config = read_qwen_tokenizer(real_folder / "qwen")
    assert with_config.token_to_id("</tool_call>") == 151658
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(real_folder / "qwen" / name, tmp_path)
    without = read_qwen_tokenizer(tmp_path)
    assert [without.id_to_token(number) for number in (151643, 151644, 151645, 151646)] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        None,
    ]


def write_small_vocabulary(small_folder: Path, folder: Path, added: object) -> None:
    model = json.loads((small_folder / "qwen" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    vocab = json.dumps(model["vocab"])
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""])
    (folder / "vocab.json").write_text(vocab, encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}), encoding="utf-8")


def test_a_folder_of_vocabulary_and_merges_equals_its_tokenizer_json(small_folder, tmp_path):
    whole = read_qwen_tokenizer(small_folder / "qwen")
    end = whole.token_to_id("<|endoftext|>")
    write_small_vocabulary(small_folder, tmp_path, {str(end): {"content": "<|endoftext|>", "special": True}})
    parts = read_qwen_tokenizer(tmp_path)
    for prompt in ("two red boats by the sea", "Ünïcode 字\n\n  x", "<|endoftext|> literal", "it's 12345"):
        assert parts.encode(prompt).ids == whole.encode(prompt).ids


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ({"9000": {"content": "<|endoftext|>"}}, "'<|endoftext|>' must have id"),
        ({"x": {"content": "<|endoftext|>"}}, "valid integer"),
        ({"467": {"text": "<|endoftext|>"}}, "467.content: Field required"),
        ([1], "valid"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(added, fault, small_folder, tmp_path):
    write_small_vocabulary(small_folder, tmp_path, added)
    with pytest.raises(UsageError, match=r"tokenizer_config\.json: added_tokens_decoder[.:]") as caught:
        read_qwen_tokenizer(tmp_path)
    assert fault in str(caught.value)


@pytest.mark.parametrize("read", [read_qwen_tokenizer, read_t5_tokenizer])
def test_a_missing_or_broken_tokenizer_is_refused_in_one_line(read, tmp_path):
    broken = tmp_path / "tokenizer.json"
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match="tokenizer there: give") as caught:
            read(path)
        assert "\n" not in str(caught.value)
    broken.write_text('{"model": 1}', encoding="utf-8")
    with pytest.raises(UsageError, match="not a tokenizer file") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_two_kinds_are_not_mistaken_for_each_other(small_folder):
    with pytest.raises(UsageError, match="must be a BPE model, got Unigram"):
        read_qwen_tokenizer(small_folder / "t5")
    with pytest.raises(UsageError, match="must be a Unigram model, got BPE"):
        read_t5_tokenizer(small_folder / "qwen")


def test_a_t5_tokenizer_without_its_end_is_refused(small_folder, tmp_path):
    tokenizer = Tokenizer.from_file(str(small_folder / "t5" / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"must give \[id of </s>\] = \[1\] for an empty text, got \[\]"):
        read_t5_tokenizer(tmp_path)


@pytest.mark.parametrize(("name", "read"), [("qwen", read_qwen_tokenizer), ("t5", read_t5_tokenizer)])
def test_cutting_and_padding_set_in_the_file_are_switched_off(name, read, small_folder, tmp_path):
    tokenizer = Tokenizer.from_file(str(small_folder / name / "tokenizer.json"))
    whole = tokenizer.encode("a red house by the sea").ids
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read(tmp_path).encode("a red house by the sea").ids == whole
