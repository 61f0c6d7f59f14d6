"""Residency, block and decode on stdout, as tables or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from anima_batch.bench import BlockComparison, DecodeComparison, Extrapolation, Plateau
from anima_batch.console.results import show_line, show_table

GB, MB = 1e9, 1e6


def residency_json(found: Sequence[Plateau], extrapolation: Extrapolation | None) -> dict[str, Any]:
    """Each pool with all that was looked at, and what all graphs would hold."""
    pools = [
        {**asdict(entry), "pss_growth_bytes": entry.pss_growth, "available_drop_bytes": entry.available_drop}
        for entry in found
    ]
    return {"pools": pools, "extrapolation": None if extrapolation is None else asdict(extrapolation)}


def show_residency(found: Sequence[Plateau], extrapolation: Extrapolation | None) -> None:
    """A row a pool, and what all graphs would hold."""
    rows = []
    for entry in found:
        reached = entry.dwelling[-1]
        swap = max(sample.held.swapped_bytes for sample in entry.dwelling) - entry.before.swapped_bytes
        rows.append(
            (
                entry.pool,
                reached.graphs,
                f"{entry.file_bytes / MB:.0f}",
                f"{entry.pss_growth / MB:+.0f}",
                f"{(reached.held.device_pss_bytes - entry.before.device_pss_bytes) / MB:+.0f}",
                f"{-entry.available_drop / MB:+.0f}",
                f"{reached.held.available_bytes / MB:.0f}",
                f"{swap / MB:+.0f}",
                f"{entry.lru_hits} of {entry.pass_graphs}",
            )
        )
    headers = (
        "pool",
        "open",
        "files MB",
        "PSS MB",
        "device MB",
        "available MB",
        "left MB",
        "swap MB",
        "LRU hits a pass",
    )
    show_table(headers, rows)
    for entry in found:
        if entry.shortage:
            show_line(f"pool of {entry.pool}: broke off: {entry.shortage}")
    if extrapolation is None:
        show_line("no extrapolation: it takes three pools that did not break off, of different sizes")
        return
    pss, available = extrapolation.pss, extrapolation.available
    show_line(
        f"all {extrapolation.graphs} graphs ({extrapolation.file_bytes / GB:.2f} GB of files), extrapolated: "
        f"PSS {pss.bytes / GB:+.2f} GB ± {pss.error / GB:.2f}, "
        f"available {-available.bytes / GB:+.2f} GB ± {available.error / GB:.2f}"
    )


def block_json(found: BlockComparison) -> dict[str, Any]:
    """Both forms, and how far apart their numbers are."""
    return asdict(found)


def show_block(found: BlockComparison) -> None:
    """A row a form, in milliseconds for both CFG streams."""
    rows = [
        (
            entry.form,
            entry.graphs,
            f"{entry.bytes / MB:.1f}",
            *(f"{1e3 * seconds:.1f}" for seconds in asdict(entry.timings).values()),
            f"{1e3 * entry.seconds:.1f}",
            f"{entry.pss_bytes / MB:.0f}",
            f"{entry.device_pss_bytes / MB:.0f}",
        )
        for entry in (found.split, found.fused)
    ]
    phases = [f"{phase} ms" for phase in asdict(found.split.timings)]
    show_table(("form", "graphs", "MB", *phases, "all ms", "peak PSS MB", "device MB"), rows)
    show_line(
        f"fused / split: {found.fused.seconds / found.split.seconds:.3f} x; cosine {found.cosine:.9f}, "
        f"largest difference {found.largest_difference:.1e} of {found.largest_value:.3g}"
    )


def decode_json(
    found: Sequence[DecodeComparison], chosen: DecodeComparison | None, available_bytes: int
) -> dict[str, Any]:
    """Each decoding; `psnr` is null where the picture equals the whole one."""
    rows = [
        {**asdict(entry.decoding), "psnr": entry.psnr if math.isfinite(entry.psnr) else None, "ssim": entry.ssim}
        for entry in found
    ]
    advice = None if chosen is None else {"threads": chosen.decoding.threads, "tile": chosen.decoding.tile}
    return {"rows": rows, "available_bytes": available_bytes, "advice": advice}


def show_decode(found: Sequence[DecodeComparison], chosen: DecodeComparison | None, available_bytes: int) -> None:
    """A row a decoding, and which to take here."""
    rows = [
        (
            entry.decoding.threads or "all",
            entry.decoding.how,
            f"{entry.decoding.seconds:.2f}",
            f"{entry.decoding.first_seconds:.2f}",
            f"{entry.decoding.need_bytes / MB:.0f}",
            f"{entry.decoding.peak_bytes / MB:.0f}",
            f"{entry.psnr:.2f}" if math.isfinite(entry.psnr) else "equal",
            f"{entry.ssim:.5f}",
        )
        for entry in found
    ]
    headers = ("threads", "decoded", "seconds", "first s", "needs MB", "peak MB", "PSNR dB", "SSIM")
    show_table(headers, rows)
    room = f"{available_bytes / MB:.0f} MB are available"
    if chosen is None:
        show_line(f"{room}: nothing fits: try a smaller --tile")
    elif chosen.decoding.tile is None:
        show_line(f"{room}: the whole picture fits")
    else:
        tile = chosen.decoding.tile
        show_line(f"{room}: tile {tile} fits: make the model set with `anima-batch convert --vae-tile {tile}`")
