"""Makes the built-in model set: `python -m anima_batch.convert.picture_book FOLDER`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from anima_batch.convert.build import ConvertOptions, convert_model_set
from anima_batch.convert.layouts import AdapterDims, QwenDims, TransformerDims, VaeDims
from anima_batch.convert.random_weights import ModelDims, write_random_weights
from anima_batch.convert.tokenizer import train_small_tokenizers
from anima_batch.model_set import ModelSet

SEED = 1
QWEN_ROWS = 512  # what train_small_tokenizers needs at most
T5_ROWS = 384
DIMS = ModelDims(
    transformer=TransformerDims(blocks=4, hidden=64, head_dim=16, context_dim=32, rank=16, mlp=256),
    adapter=AdapterDims(blocks=2, hidden=32, head_dim=16, inner=32, mlp=128, rows=T5_ROWS, states=32),
    qwen=QwenDims(layers=2, hidden=32, head_dim=16, heads=4, kv_heads=2, mlp=64, rows=QWEN_ROWS),
    vae=VaeDims(base=8),
)


def make_picture_book(out: Path) -> ModelSet:
    """The set, written to a folder that must not be there yet; the same bytes with the same versions of the tools."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_random_weights(folder, DIMS, SEED)
        empty_token_id = train_small_tokenizers(folder)
        options = ConvertOptions(
            transformer=files.transformer,
            text_encoder=files.text_encoder,
            vae=files.vae,
            qwen_tokenizer=folder / "qwen",
            t5_tokenizer=folder / "t5",
            out=out,
            name="picture-book",
            license="CC0-1.0 (random weights, made by this project)",
            sizes=((128, 128), (192, 128), (128, 192)),
            empty_token_id=empty_token_id,
        )
        return convert_model_set(options, lambda role: None)


if __name__ == "__main__":
    make_picture_book(Path(sys.argv[1]))
