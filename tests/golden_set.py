"""One model set of the golden weights, which stem from separate small models that fit each other."""

import json
import string
from dataclasses import replace
from pathlib import Path

from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from anima_batch.convert.build import ConvertOptions, convert_model_set
from anima_batch.convert.tokenizer import make_qwen_tokenizer
from anima_batch.model_set import ModelSet

GOLDEN = Path(__file__).parent / "golden"
EMPTY_TOKEN_ID = 250  # the golden texts' stand-in for <|endoftext|>


def golden_transformer() -> dict:
    """Tensors of the transformer and the adapter as they lie in one official file."""
    weights = load_file(GOLDEN / "a_dit_A_weights.safetensors")
    return weights | load_file(GOLDEN / "b_llm_adapter_weights.safetensors")


def golden_options(folder: Path, **changes) -> ConvertOptions:
    """Options for the golden weights, of which the files that must be made lie in the folder, and `<folder>/set`."""
    folder.mkdir(exist_ok=True)
    save_file(golden_transformer(), folder / "transformer.safetensors")
    write_tokenizers(folder)
    options = ConvertOptions(
        transformer=folder / "transformer.safetensors",
        text_encoder=GOLDEN / "b_qwen3_weights.safetensors",
        vae=GOLDEN / "c_vae_decoder_wan_names.safetensors",
        qwen_tokenizer=folder / "qwen.json",
        t5_tokenizer=folder / "t5.json",
        out=folder / "set",
        name="golden",
        license="CC0-1.0 (random weights)",
        sizes=((128, 128), (160, 96)),
        empty_token_id=EMPTY_TOKEN_ID,
    )
    return replace(options, **changes)


def make_golden_set(folder: Path, **changes) -> ModelSet:
    return convert_model_set(golden_options(folder, **changes), lambda role: None)


def write_tokenizers(folder: Path) -> None:
    """Tokenizers whose ids fit the golden embeddings: single bytes for Qwen (256 rows), single letters for T5 (128)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:EMPTY_TOKEN_ID]
    model = models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    qwen = make_qwen_tokenizer(model, [AddedToken("<|endoftext|>", special=True, normalized=False)])
    qwen.save(str(folder / "qwen.json"))
    pieces = ["<pad>", "</s>", "<unk>", "▁", *string.ascii_letters, *string.digits, *string.punctuation]
    t5 = Tokenizer(
        models.Unigram([(piece, 0.0 if number < 3 else -1.0) for number, piece in enumerate(pieces)], unk_id=2)
    )
    t5.normalizer = normalizers.NFKC()
    t5.pre_tokenizer = pre_tokenizers.Metaspace()
    t5.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    t5.save(str(folder / "t5.json"))


def write_safetensors(path: Path, tensors: dict) -> None:
    """A safetensors file of raw parts: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
