"""The two tokenizers, read from the files they come in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from anima_batch.errors import UsageError
from anima_batch.files import read_json

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
        wanted = {size + index: special_token(text) for index, text in enumerate(_QWEN_SPECIAL)}
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


def special_token(text: str) -> AddedToken:
    """A token that stands for itself wherever its text occurs, before anything is normalised."""
    return AddedToken(text, special=True, normalized=False)


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    """Some published files cut or pad every text; cutting is the encoder's task, which reports it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
