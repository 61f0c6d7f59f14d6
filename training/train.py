"""Trains picture-book: `python -m training.train RUN_FOLDER`; the same command goes on after an interruption."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from training.curves import draw_curves
from training.export import export_model_set
from training.run_folder import RunFolder
from training.train_autoencoder import draw_pictures, measure_latents, train_autoencoder
from training.train_transformer import train_transformer

STEPS_VAE, STEPS_TRANSFORMER = 3600, 3200  # of the set that ships
STAGES = ("scenes", "vae", "latents", "transformer", "export")


def main() -> None:
    """Runs the stages that are asked for, in order."""
    options = _parse_arguments()
    folder = RunFolder(options.folder)
    work: dict[str, Callable[[], object]] = {
        "scenes": lambda: draw_pictures(folder, options.seed),
        "vae": lambda: train_autoencoder(folder, options.seed, options.steps_vae),
        "latents": lambda: None if folder.has_array("latent-statistics") else measure_latents(folder),
        "transformer": lambda: train_transformer(folder, options.seed, options.steps_transformer),
        "export": lambda: export_model_set(folder, options.out or folder.path / "picture-book"),
    }
    for stage in STAGES:
        if stage in options.stages:
            print(f"stage {stage}", flush=True)
            work[stage]()
            draw_curves(folder)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the run's folder: states, logs, curves, weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--steps-vae", type=int, default=STEPS_VAE)
    parser.add_argument("--steps-transformer", type=int, default=STEPS_TRANSFORMER)
    parser.add_argument("--out", type=Path, help="where the model set goes; default FOLDER/picture-book")
    return parser.parse_args()


if __name__ == "__main__":
    main()
