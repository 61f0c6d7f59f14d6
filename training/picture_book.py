"""The built-in model set from its trained weights: `python -m training.picture_book OUT`; needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from anima_batch.convert.build import ConvertOptions, convert_model_set
from anima_batch.model_set import ModelSet
from training.stages import CONTEXT_ROWS, SIZES

WEIGHTS = Path(__file__).with_name("picture-book")  # what a run's export left, kept in the repository
LICENSE = "CC0-1.0 (trained by this project on pictures that it draws)"


def make_picture_book(weights: Path, out: Path) -> ModelSet:
    """Converts official files as a user would convert them, to `out`, which must not be there yet.

    `weights` holds the three weight files, the two tokenizers, and `settings.json` with what else the training fixed.
    The same files and versions give the same bytes.
    """
    settings = json.loads((weights / "settings.json").read_text(encoding="utf-8"))
    options = ConvertOptions(
        transformer=weights / "transformer.safetensors",
        text_encoder=weights / "text_encoder.safetensors",
        vae=weights / "vae.safetensors",
        qwen_tokenizer=weights / "qwen",
        t5_tokenizer=weights / "t5",
        out=out,
        name="picture-book",
        license=LICENSE,
        sizes=SIZES,
        context_rows=CONTEXT_ROWS,
        latent_mean=tuple(settings["latent_mean"]),
        latent_std=tuple(settings["latent_std"]),
        empty_prompt="masked",
        empty_token_id=settings["empty_token_id"],
    )
    return convert_model_set(options, lambda role: None)


def main() -> None:
    """Writes the set and says its digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    print(make_picture_book(options.weights, options.out).digest)


if __name__ == "__main__":
    main()
