"""The small tokenizers that are made from captions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from training.scenes import list_captions
from training.small_tokenizers import train_small_tokenizers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    train_small_tokenizers(folder, list_captions())
    return folder


def test_small_tokenizers_are_the_same_bytes_in_every_process(tmp_path):
    program = (
        "import sys; from pathlib import Path; from training.scenes import list_captions; "
        "from training.small_tokenizers import train_small_tokenizers; "
        "print(train_small_tokenizers(Path(sys.argv[1]), list_captions()))"
    )
    results = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        command = [sys.executable, "-c", program, str(folder)]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        results.append((output, *(path.read_bytes() for path in sorted(folder.glob("*/tokenizer.json")))))
    assert results[0] == results[1]
    assert len(results[0]) == 3


def test_small_tokenizers_have_the_promised_sizes_and_special_ids(small_folder, tmp_path):
    qwen, t5 = read_qwen_tokenizer(small_folder / "qwen"), read_t5_tokenizer(small_folder / "t5")
    assert train_small_tokenizers(tmp_path, list_captions()) == qwen.token_to_id("<|endoftext|>")
    assert qwen.get_vocab_size() <= 512
    assert t5.get_vocab_size() <= 384
    assert [t5.token_to_id(text) for text in ("<pad>", "</s>", "<unk>")] == [0, 1, 2]
    assert qwen.encode("red<|endoftext|>").ids[-1] == qwen.token_to_id("<|endoftext|>")


def test_small_t5_fuses_unknown_signs_and_folds_wide_ones_as_the_real_one(small_folder):
    t5 = read_t5_tokenizer(small_folder / "t5")
    assert t5.encode("桜の木").ids == [t5.token_to_id("▁"), 2, 1]
    assert t5.encode("ｒｅｄ\tﬁsh\n").ids == t5.encode("red fish").ids


def test_words_of_captions_are_single_tokens(small_folder):
    qwen, t5 = read_qwen_tokenizer(small_folder / "qwen"), read_t5_tokenizer(small_folder / "t5")
    assert len(qwen.encode("two red boats on the left on water at dusk").ids) == 10
    assert len(t5.encode("two red boats on the left on water at dusk").ids) == 11


@given(text=st.text(max_size=60))
def test_small_tokenizers_take_any_text(small_folder, text):
    qwen = Tokenizer.from_file(str(small_folder / "qwen" / "tokenizer.json"))
    t5 = Tokenizer.from_file(str(small_folder / "t5" / "tokenizer.json"))
    assert bool(qwen.encode(text).ids) == bool(text)
    ids = t5.encode(text).ids
    assert ids[-1] == 1
    assert max(ids) < 384
