"""Full size with random weights, by the real commands and beside Diffusers: `python -m studies.rehearse`.

It needs 12 GB of disk and 11 GB of memory. Figures are kept in the folder as they come; the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from anima_batch.convert.random_weights import ModelDims
from anima_batch.files import make_folder, write_atomic
from studies.full_size import (
    GUIDANCE_SCALE,
    NEGATIVE_PROMPT,
    PROMPT,
    SEED,
    Place,
    choose_dims,
    find_tokenizers,
    write_inputs,
    write_weights,
)
from studies.goals import draw_blocks, draw_rows, list_rows
from studies.processes import Ended, run_python, run_until_killed

STEPS = 3
KILLED_AFTER = 1
ROUNDS = ("step-resident", "diffusers step", "products", "step-on-demand", "decode", "diffusers decode")  # in turn


def main() -> None:
    """Runs what has no figure yet, prints the tables, and exits with 1 when a goal is missed."""
    options = _parse_arguments()
    dims = choose_dims(options.blocks, small=options.small)
    side = 128 if options.small else 512
    record = Record(Place(options.folder.resolve()))
    rehearse_commands(record, dims, side, None if options.small else options.tokenizers)
    measure_stages(record, options.rounds, diffusers=options.diffusers)
    rows = list_rows(record.figures, blocks=dims.transformer.blocks, small=options.small)
    print(draw_rows(rows))
    if options.diffusers:
        print("", draw_blocks(record.figures["diffusers trace 1"]), sep="\n")
    if options.json:
        content = {"rows": [asdict(row) for row in rows], "figures": record.figures, "cpus": os.cpu_count()}
        write_atomic(options.json, json.dumps(content, indent=1).encode())
    raise SystemExit(any(row.ok is False for row in rows))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("outputs/rehearsal"), help="weights, model set, figures")
    parser.add_argument("--blocks", type=int, help="of the transformer; Anima-2.9B has 40")
    parser.add_argument("--small", action="store_true", help="small dimensions: seconds, and figures that say nothing")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of what is timed, in turn")
    parser.add_argument("--tokenizers", type=Path, default=Path(".tokenizers"), help="the published ones, if there")
    parser.add_argument("--no-diffusers", dest="diffusers", action="store_false", help="without the second opinion")
    parser.add_argument("--json", type=Path, help="everything as JSON")
    return parser.parse_args()


class Record:
    """A rehearsal's figures by name, kept in its folder so that none is taken twice."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._path = place.folder / "figures.json"
        self.figures: dict[str, Mapping[str, Any]] = {}
        make_folder(place.folder)
        if self._path.is_file():
            self.figures = json.loads(self._path.read_text(encoding="utf-8"))

    def take(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> None:
        """Measures what has no figure of that name yet."""
        if name not in self.figures:
            print(f"... {name}", flush=True)
            self.figures[name] = measure()
            write_atomic(self._path, json.dumps(self.figures, indent=1).encode())

    def take_stage(self, name: str, number: int = 1) -> None:
        """One round of a stage, ours or "diffusers ...", in a process of its own."""
        module, stage = "our_stages", name
        if name.startswith("diffusers "):
            module, stage = "diffusers_stages", name.removeprefix("diffusers ")
        words: list[str | Path] = ["-m", f"studies.{module}", stage, self.place.folder]

        def measure() -> Mapping[str, Any]:
            ended = run_python(words, self.place.folder)
            return {**json.loads(ended.output), "peak_bytes": ended.peak_bytes}

        self.take(f"{name} {number}", measure)


def rehearse_commands(record: Record, dims: ModelDims, side: int, tokenizers: Path | None) -> None:
    """Weights, then the commands as a user gives them: convert, run until killed, run again, verify, audit."""
    place = record.place
    record.take("weights", lambda: {"tensors": write_weights(place, dims)})
    record.take("convert", lambda: _convert(place, side, tokenizers))
    record.take("killed", lambda: _run_until_killed(place))
    record.take("resumed", lambda: _run(place, "broken"))
    record.take("unbroken", lambda: _run(place, "unbroken", "--staging", "resident"))
    record.take("verify", lambda: _took(_anima_batch(place, "verify", "jobs/broken.toml")))
    record.take("audit", lambda: _took(_anima_batch(place, "audit", "outputs/broken")))
    write_inputs(place, dims.transformer.latent_channels, side)


def measure_stages(record: Record, rounds: int, *, diffusers: bool) -> None:
    """Single stages, each in a fresh process; what is compared in time takes turns."""
    record.take_stage("encode")
    for number in range(1, rounds + 1):
        for name in ROUNDS:
            if diffusers or not name.startswith("diffusers"):
                record.take_stage(name, number)
    if diffusers:
        for name in ("decode-float32", "trace", "diffusers encode", "diffusers trace"):
            record.take_stage(name)
        record.take("picture differences", lambda: _compare_pictures(record.place))


def _convert(place: Place, side: int, tokenizers: Path | None) -> Mapping[str, Any]:
    shutil.rmtree(place.model_set, ignore_errors=True)
    files, found = place.weights, find_tokenizers(place, tokenizers)
    words: list[str | int | Path] = ["--transformer", files.transformer, "--vae", files.vae]
    words += ["--text-encoder", files.text_encoder]
    words += ["--qwen-tokenizer", found.qwen, "--t5-tokenizer", found.t5, "--empty-token-id", found.empty_token_id]
    words += ["--license", "random weights", "--size", f"{side}x{side}"]
    took = _took(_anima_batch(place, "convert", place.model_set, *words))
    return {**took, "real_tokenizers": found.real}


def _run_until_killed(place: Place) -> Mapping[str, Any]:
    _write_job(place, "broken")
    events = place.folder / "events.jsonl"
    events.unlink(missing_ok=True)
    words: list[str | Path] = ["-m", "anima_batch", "run", "jobs/broken.toml", "--events", events]
    ended = run_until_killed(words, place.folder, events, KILLED_AFTER)
    told = map(json.loads, events.read_text(encoding="utf-8").splitlines())
    return {**_took(ended), "steps": max(event["durable_step"] for event in told if event["event"] == "StepDone")}


def _run(place: Place, job: str, *flags: str) -> Mapping[str, Any]:
    if not (place.folder / f"jobs/{job}.toml").is_file():
        _write_job(place, job)
    took = _took(_anima_batch(place, "run", f"jobs/{job}.toml", *flags))
    (path,) = (place.folder / "manifests" / job).glob("*.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    result = [manifest["latents"]["sha256"], manifest["image"]["pixel_sha256"]]
    steps = [step["latents_xxh3"] for step in manifest["steps"]]
    first_step = manifest["runs"][-1]["first_step"]
    return {**took, "steps": len(steps), "first_step": first_step, "result": result + steps}


def _write_job(place: Place, name: str) -> None:
    """A job that nothing is left of."""
    for folder in ("outputs", "manifests"):
        shutil.rmtree(place.folder / folder / name, ignore_errors=True)
    make_folder(place.folder / "jobs")
    text = f"""schema_version = 1
model_set = "rehearsal"
[run]
staging = "on-demand"
[defaults]
prompt = {json.dumps(PROMPT)}
negative_prompt = {json.dumps(NEGATIVE_PROMPT)}
seed = {SEED}
steps = {STEPS}
guidance_scale = {GUIDANCE_SCALE}
"""
    write_atomic(place.folder / f"jobs/{name}.toml", text.encode())


def _anima_batch(place: Place, *words: str | int | Path) -> Ended:
    return run_python(["-m", "anima_batch", *map(str, words)], place.folder)


def _took(ended: Ended) -> Mapping[str, Any]:
    return {"seconds": ended.seconds, "peak_bytes": ended.peak_bytes, "code": ended.code}


def _compare_pictures(place: Place) -> Mapping[str, Any]:
    """Largest differences to Diffusers' picture: of float16 weights as a share of that picture's range."""
    names = ("decoded-diffusers", "decoded-float32", "decoded")
    theirs, float32, float16 = (np.load(place.made(name))["picture"].astype(np.float64) for name in names)
    spread = theirs.max() - theirs.min()
    return {
        "float32": float(np.abs(float32 - theirs).max()),
        "float16": float(np.abs(float16 - theirs).max() / spread),
    }


if __name__ == "__main__":
    main()
