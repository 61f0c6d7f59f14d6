"""The two tokenizers: read from the files they come in, or made small from captions for the built-in model set."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from anima_batch.errors import UsageError
from anima_batch.files import make_folder, read_json, write_atomic

END_OF_TEXT = "<|endoftext|>"
_QWEN_SPECIAL = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")  # in this order after the vocabulary, since Qwen's first

# Where Qwen2 splits a text before byte-pair merging: contractions, words with one leading sign, single digits, runs of
# signs with their line breaks, line breaks, blanks (Qwen2Tokenizer).
_QWEN_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

_BPE_SIZE = 511  # byte letters and merges; the end of text makes it 512
_UNIGRAM_SIZE = 384
_CAPTIONS = 400

_COUNTS = ("a", "one", "two", "three", "four", "five", "many")
_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey")
_OBJECTS = (
    *("house", "tree", "boat", "star", "flower", "fish", "bird", "cat", "dog"),
    *("owl", "fox", "car", "ball", "apple", "balloon", "castle", "lamp"),
)
_PLACES = (
    *("on a hill", "by the sea", "in a field", "on the beach", "in the forest", "under a tree"),
    *("on a table", "in the sky", "by the river", "in the garden", "on the road", "near a mountain", "in the city"),
)
_TIMES = ("in the morning", "at noon", "in the evening", "at sunset", "at night")
_WEATHER = ("sunny", "cloudy", "rainy", "snowy", "foggy", "windy", "stormy", "clear sky")


class _SpecialToken(BaseModel):
    """A special token as Hugging Face writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: str
    lstrip: bool = False
    normalized: bool = False
    rstrip: bool = False
    single_word: bool = False
    special: bool = False


class _TokenizerConfig(BaseModel):
    """The one key of `tokenizer_config.json` that counts here; the others are for chats."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    added_tokens_decoder: Mapping[int, _SpecialToken]


def read_qwen_tokenizer(path: Path) -> Tokenizer:
    """Qwen's tokenizer from tokenizer.json, a folder with one, or with vocab.json and merges.txt; raises UsageError.

    Beside a vocab.json, `tokenizer_config.json` tells the special tokens; without it there are Qwen2's three.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        tokenizer = _read_file(file)
    elif (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        tokenizer = _read_vocabulary(path)
    else:
        raise UsageError(
            f"{path}: no Qwen tokenizer there: give tokenizer.json, its folder, or one with vocab.json and merges.txt"
        )
    tokenizer = _without_limits(tokenizer)
    if not isinstance(tokenizer.model, models.BPE):
        raise UsageError(f"{path}: Qwen's tokenizer must be a BPE model, got {type(tokenizer.model).__name__}")
    if ids := tokenizer.encode("", add_special_tokens=False).ids:
        raise UsageError(f"{path}: Qwen's tokenizer must give no ids for an empty text, got {ids}")
    return tokenizer


def read_t5_tokenizer(path: Path) -> Tokenizer:
    """T5's tokenizer from a tokenizer.json or a folder with one; raises UsageError.

    It must be a unigram model that ends every text with `</s>`, once.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path}: no T5 tokenizer there: give a tokenizer.json or a folder with one")
    tokenizer = _without_limits(_read_file(file))
    if not isinstance(tokenizer.model, models.Unigram):
        raise UsageError(f"{file}: T5's tokenizer must be a Unigram model, got {type(tokenizer.model).__name__}")
    end, ids = tokenizer.token_to_id("</s>"), tokenizer.encode("").ids
    if ids != [end]:
        raise UsageError(f"{file}: T5's tokenizer must give [id of </s>] = [{end}] for an empty text, got {ids}")
    return tokenizer


def make_qwen_tokenizer(model: models.BPE, special: list[AddedToken]) -> Tokenizer:
    """Qwen2's pipeline around a byte-level BPE model: NFC, the split, bytes as letters, and the special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated")
    bytes_as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_as_letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens(special)
    return tokenizer


def _read_file(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{file}: not a tokenizer file: {error}: give a tokenizer.json") from error


def _read_vocabulary(folder: Path) -> Tokenizer:
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # as above
        raise UsageError(f"{folder}: vocab.json and merges.txt do not make a BPE model: {error}") from error
    config = folder / "tokenizer_config.json"
    if config.is_file():
        wanted = _read_special_tokens(config)
    else:
        size = len(Tokenizer(model).get_vocab())
        wanted = {size + index: _special(text) for index, text in enumerate(_QWEN_SPECIAL)}
    tokenizer = make_qwen_tokenizer(model, list(wanted.values()))
    for number, token in wanted.items():
        if (got := tokenizer.token_to_id(token.content)) != number:
            raise UsageError(f"{config}: added_tokens_decoder: {token.content!r} must have id {got}, got {number}")
    return tokenizer


def _read_special_tokens(config: Path) -> dict[int, AddedToken]:
    """The added tokens by id, lowest first: ids are given in the order of adding."""
    content = read_json(config, what="the tokenizer's configuration", error=UsageError)
    try:
        added = _TokenizerConfig.model_validate(content).added_tokens_decoder
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UsageError(f"{config}: {where or 'the whole'}: {fault['msg']}") from error
    return {number: AddedToken(**added[number].model_dump()) for number in sorted(added)}


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    """Some published files cut or pad every text; cutting is the encoder's task, which reports it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_small_tokenizers(folder: Path, captions: Sequence[str] | None = None) -> int:
    """Write `qwen/tokenizer.json` and `t5/tokenizer.json` made from captions; returns the empty-token id.

    Without captions a few hundred of a small grammar serve. The pipelines are those of the real ones, with at most 512
    and 384 ids. The vocabularies are counted here and not by the library's trainers, whose results depend on their
    version and on threads: each call writes the same bytes.
    """
    texts = list(_generate_captions() if captions is None else captions)
    qwen, t5 = _make_small_qwen(texts), _make_small_t5(texts)
    for name, tokenizer in (("qwen", qwen), ("t5", t5)):
        make_folder(folder / name)
        write_atomic(folder / name / "tokenizer.json", tokenizer.to_str().encode())
    return qwen.get_vocab()[END_OF_TEXT]


def _generate_captions() -> Iterator[str]:
    """Captions such as "two red boats by the sea at night, windy"; the lists' lengths are mostly coprime: they mix."""
    for number in range(_CAPTIONS):
        count, colour, thing, place, time, weather = (
            words[number % len(words)] for words in (_COUNTS, _COLOURS, _OBJECTS, _PLACES, _TIMES, _WEATHER)
        )
        plural = "" if count in ("a", "one") or thing == "fish" else "es" if thing.endswith("x") else "s"
        yield f"{count} {colour} {thing}{plural} {place} {time}, {weather}"


def _make_small_qwen(captions: list[str]) -> Tokenizer:
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
    return make_qwen_tokenizer(model, [_special(END_OF_TEXT)])


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """The word with each occurrence of the pair joined, from the left."""
    joined: list[str] = []
    for piece in word:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return tuple(joined)


def _make_small_t5(captions: list[str]) -> Tokenizer:
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
    tokenizer.add_special_tokens([_special(text) for text in ("<pad>", "</s>", "<unk>")])
    return tokenizer
