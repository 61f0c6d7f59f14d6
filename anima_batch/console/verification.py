"""What `convert verify` found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anima_batch.console.results import show_line, show_table
from anima_batch.convert.rknn.published import PUBLISHED, PUBLISHED_W8A8, find_counterpart
from anima_batch.convert.rknn.trajectory import LEAST_PSNR_DB, LEAST_SSIM

if TYPE_CHECKING:
    from anima_batch.convert.rknn.deviation import Deviation
    from anima_batch.convert.rknn.published import Published
    from anima_batch.convert.rknn.trajectory import Judgement
    from anima_batch.convert.rknn.verification import Verification

_HEADERS = ("cosine", "MAE", "max abs", "MSE", "NaN", "Inf")


def verification_json(found: Verification) -> dict[str, Any]:
    """Everything that was found, beside what was published."""
    options = found.options
    return {
        "model_set": {"name": options.model_set.name, "digest": options.model_set.digest},
        "toolkit": options.toolkit,
        "mlp": options.mlp,
        "size": list(options.pictures.size),
        "seed": options.pictures.seed,
        "steps": options.pictures.steps,
        "sampled": [
            {"step": step + 1, "sigma": sigma} for step, sigma in zip(options.sampled_steps, found.sigmas, strict=True)
        ],
        "blocks": [
            {
                "block": finding.block,
                "part": finding.part,
                "of": finding.lane,
                "from": finding.reference,
                **finding.deviation.figures(),
            }
            for finding in found.findings
        ],
        "pictures": [
            {
                "prompt": judgement.prompt,
                "latents": [deviation.figures() for deviation in judgement.latents],
                "psnr_db": None if judgement.psnr_db == float("inf") else judgement.psnr_db,
                "same_pixels": judgement.psnr_db == float("inf"),
                "ssim": judgement.ssim,
                "good": judgement.good,
            }
            for judgement in found.judgements
        ],
        "good": found.good,
        "allowed": {"psnr_db": LEAST_PSNR_DB, "ssim": LEAST_SSIM},
        "published": [
            {"what": entry.what, "of": entry.lane, "from": entry.reference, **_published_figures(entry), "board": True}
            for entry in PUBLISHED
        ],
        "seconds": found.seconds,
    }


def _published_figures(entry: Published) -> dict[str, float | None]:
    return {"cosine": entry.cosine, "mae": entry.mae, "max_abs": entry.max_abs}


def show_verification(found: Verification) -> None:
    """Blocks, what was published beside it, pictures, and the verdict on them."""
    options = found.options
    sampled = ", ".join(
        f"{step + 1} (sigma {sigma:.3f})" for step, sigma in zip(options.sampled_steps, found.sigmas, strict=True)
    )
    width, height = options.pictures.size
    show_line(
        f"{options.model_set.name}, {width}x{height}, simulator of rknn-toolkit2 {options.toolkit}, "
        f"MLPs {options.mlp}; steps {sampled} of {options.pictures.steps}, each with its CFG streams"
    )
    rows = [
        (finding.block, finding.part, finding.lane, finding.reference, *_cells(finding.deviation))
        for finding in found.findings
    ]
    show_table(("block", "part", "of", "from", *_HEADERS), rows)
    _show_published(found)
    if found.judgements:
        _show_pictures(found)
    show_line(f"{found.seconds:.0f} s")


def _cells(deviation: Deviation) -> tuple[str, ...]:
    return (
        f"{deviation.cosine:.10f}",
        f"{deviation.mae:.3e}",
        f"{deviation.max_abs:.3e}",
        f"{deviation.mse:.3e}",
        str(deviation.nan),
        str(deviation.inf),
    )


def _show_published(found: Verification) -> None:
    """Those published figures that have a counterpart; on a board, with the released weights."""
    rows = []
    for entry in PUBLISHED:
        if finding := find_counterpart(entry, found.findings):
            there = (f"{entry.cosine:.10f}", *("-" if x is None else f"{x:.3e}" for x in (entry.mae, entry.max_abs)))
            rows.append((entry.what, f"{entry.lane} from {entry.reference}", *there, *_cells(finding.deviation)[:3]))
    headers = (
        "published, float16 on a board",
        "",
        "cosine",
        "MAE",
        "max abs",
        "cosine here",
        "MAE here",
        "max abs here",
    )
    show_table(headers, rows)


def _show_pictures(found: Verification) -> None:
    rows = [
        (
            judgement.prompt,
            f"{judgement.latents[-1].cosine:.10f}",
            f"{min(deviation.cosine for deviation in judgement.latents):.10f}",
            "none" if judgement.psnr_db is None else f"{judgement.psnr_db:.2f}",
            "none" if judgement.ssim is None else f"{judgement.ssim:.5f}",
            "good" if judgement.good else "NOT GOOD",
        )
        for judgement in found.judgements
    ]
    show_table(("prompt", "last latents", "worst step's", "PSNR dB", "SSIM", "picture"), rows)
    show_line(give_verdict(found.judgements))
    if found.options.mlp == "w8a8":
        show_line(f"published of W8A8 MLPs: {PUBLISHED_W8A8}")


def give_verdict(judgements: Sequence[Judgement]) -> str:
    """One line over all pictures, with the limits and where they come from."""
    bad = sum(not judgement.good for judgement in judgements)
    limits = f"PSNR {LEAST_PSNR_DB} dB and SSIM {LEAST_SSIM}, the published tiled decoder's from the whole one"
    if bad:
        return (
            f"verdict: {bad} of {len(judgements)} pictures are farther from ONNX Runtime's than {limits}: do not use it"
        )
    return f"verdict: all {len(judgements)} pictures are as near to ONNX Runtime's as {limits}, or nearer"
