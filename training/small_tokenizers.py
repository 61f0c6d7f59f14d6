"""Small tokenizers made from captions, with the pipelines of the real ones."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from anima_batch.convert.tokenizer import END_OF_TEXT, make_qwen_tokenizer, special_token
from anima_batch.files import make_folder, write_atomic

_BPE_SIZE = 511  # byte letters and merges; the end of text makes it 512
_UNIGRAM_SIZE = 384


def train_small_tokenizers(folder: Path, captions: Sequence[str]) -> int:
    """Writes `qwen/tokenizer.json` and `t5/tokenizer.json` made from captions; returns the empty-token id.

    The pipelines are those of the real ones, with at most 512 and 384 ids. The vocabularies are counted here and not by
    the library's trainers, whose results depend on their version and on threads: each call writes the same bytes.
    """
    qwen, t5 = _make_small_qwen(captions), _make_small_t5(captions)
    for name, tokenizer in (("qwen", qwen), ("t5", t5)):
        make_folder(folder / name)
        write_atomic(folder / name / "tokenizer.json", tokenizer.to_str().encode())
    return qwen.get_vocab()[END_OF_TEXT]


def _make_small_qwen(captions: Sequence[str]) -> Tokenizer:
    """Byte-pair merges of the most frequent neighbours, the alphabetically first among equals."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    splitter = make_qwen_tokenizer(models.BPE(), []).pre_tokenizer
    counts = Counter(piece for caption in captions for piece, _ in splitter.pre_tokenize_str(caption))
    words = {tuple(word): count for word, count in counts.items()}
    merges: list[tuple[str, str]] = []
    while len(letters) + len(merges) < _BPE_SIZE:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        words = {_merge(word, merges[-1]): count for word, count in words.items()}
    pieces = [*letters, *(first + second for first, second in merges)]
    model = models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges)
    return make_qwen_tokenizer(model, [special_token(END_OF_TEXT)])


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """The word with each occurrence of the pair joined, from the left."""
    joined: list[str] = []
    for piece in word:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return tuple(joined)


def _make_small_t5(captions: Sequence[str]) -> Tokenizer:
    """Whole words and single ASCII characters, each with the logarithm of its share as score."""
    words = Counter(f"▁{word.strip(',')}" for caption in captions for word in caption.split())
    signs = Counter("▁" + string.ascii_letters + string.digits + string.punctuation)
    signs.update(sign for caption in captions for sign in caption if sign != " ")
    pieces: list[tuple[str, float]] = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    for counts in (signs, words):
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        pieces += [(piece, round(math.log(count / counts.total()), 4)) for piece, count in ranked]
    tokenizer = Tokenizer(models.Unigram(pieces[:_UNIGRAM_SIZE], unk_id=2))
    blanks = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), blanks, normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens([special_token(text) for text in ("<pad>", "</s>", "<unk>")])
    return tokenizer
