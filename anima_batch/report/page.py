"""The page itself: a template, a style sheet and a program, put into one file with the data."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from anima_batch import __version__
from anima_batch.compare import (
    Comparison,
    Records,
    compare_records,
    find_job,
    read_records,
    sum_up,
    summarise_settings,
)
from anima_batch.errors import UsageError
from anima_batch.files import write_atomic
from anima_batch.report import tables
from anima_batch.report.content import describe_images
from anima_batch.report.thumbnails import make_thumbnails

_PARTS = Path(__file__).parent / "page"
PAGE_BYTES = 14_500_000  # what thumbnails may fill the page up to; more images only make them smaller
_ROW_BYTES = 1500  # of an image in the page's tables, generously
_PROGRAM = ("elements.js", "grid.js", "picture.js", "start.js")


@dataclass(frozen=True)
class Written:
    """The page that was written, and a line for each file of the job that could not be used."""

    path: Path
    images: int
    bytes: int
    problems: tuple[str, ...]


def write_report(job: Path, workspace: Path, out: Path | None, min_psnr_db: float) -> Written:
    """Write the page of a job, beside its pictures unless `out` says where.

    Raises JobError, UsageError or StorageError.
    """
    folder = find_job(job, workspace)
    path = folder.outputs / "report.html" if out is None else out
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--out: must be a file in a folder that exists, got {path}")
    found = read_records(folder)
    comparisons = compare_records(found.usable, min_psnr_db)
    data = render_page(found, comparisons, min_psnr_db, path.parent).encode("utf-8", "replace")
    write_atomic(path, data)
    return Written(path, len(found.records), len(data), found.problems)


def render_page(found: Records, comparisons: Sequence[Comparison], min_psnr_db: float, folder: Path) -> str:
    """The page as text, the same for the same files. `folder` is where it will lie: links are relative to it."""
    style = _read("style.css")
    program = "".join(map(_read, _PROGRAM))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PARTS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=_format_seconds, fixed=_format_fixed, decibel=_format_decibel, share=_format_share, gain=_format_gain
    )
    counts, environments = tables.read_environments(found.records)
    data = describe_images(found, comparisons, folder)
    left = PAGE_BYTES - len(script_json(data).encode("utf-8", "replace")) - _ROW_BYTES * len(found.records)
    thumbnails = make_thumbnails(found.records, left)
    for image in data["images"]:
        image["thumbnail"] = thumbnails.get(image["stem"])
    return environment.get_template("page.html.jinja").render(
        title=found.folder.name,
        version=__version__,
        style=Markup(style),  # noqa: S704 - a file of the package
        program=Markup(program),  # noqa: S704 - a file of the package
        policy=_content_policy(style, program),
        data=Markup(script_json(data)),  # noqa: S704 - no tag can begin in it
        found=found,
        summary=_summarise(found, comparisons),
        comparisons=comparisons,
        settings=summarise_settings(comparisons),
        sums=sum_up(comparisons),
        decibels=_decibel_range(comparisons, min_psnr_db),
        min_psnr_db=min_psnr_db,
        times=tables.read_times(found.records),
        phases=tables.PHASES,
        checks=tables.read_checks(found),
        failures=[record for record in found.records if record.manifest.error],
        warnings=tables.group_warnings(found.records),
        environment_counts=counts,
        environments=environments,
        model_sets=tables.read_model_sets(found.records),
    )


def script_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """JSON that can stand inside <script>: whatever a text holds, no tag and no comment can begin in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _content_policy(style: str, program: str) -> str:
    """What the browser may load: this style, this program, pictures from beside the page; nothing from a network."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, program)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src 'self' file: data:; base-uri 'none'; form-action 'none'"
    )


def _summarise(found: Records, comparisons: Sequence[Comparison]) -> Mapping[str, Any]:
    """The figures of the head."""
    manifests = [record.manifest for record in found.records]
    return {
        "done": sum(manifest.status == "done" for manifest in manifests),
        "failed": sum(manifest.status == "failed" for manifest in manifests),
        "waiting": len(found.waiting),
        "dropped": len(found.dropped),
        "flagged": sum(bool(entry.flags) for entry in comparisons),
        "faults": sum(bool(record.fault) for record in found.records) + len(found.problems),
        "seconds": math.fsum(manifest.timings.total for manifest in manifests),
        "passes": sum(record.passes for record in found.records),
        "model_sets": list(dict.fromkeys(manifest.model_set.name for manifest in manifests)),
        "begun": min((run.started_at for manifest in manifests for run in manifest.runs), default=""),
        "resumed": sum(len(manifest.runs) > 1 for manifest in manifests),
    }


def _decibel_range(comparisons: Sequence[Comparison], min_psnr_db: float) -> tuple[float, float]:
    """The scale that all settings share, in whole fives."""
    known = [entry.twin.likeness.psnr_db for entry in comparisons if entry.twin]
    finite = [value for value in [*known, min_psnr_db] if math.isfinite(value)]
    return 5 * math.floor(min(finite) / 5), 5 * math.ceil(max(finite) / 5 + 0.01)


def _format_seconds(seconds: float) -> str:
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s" if seconds >= 60 else f"{seconds:.2f} s"


def _format_fixed(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _format_decibel(value: float | None) -> str:
    return "same" if value == math.inf else _format_fixed(value, 1)


def _format_share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %".replace("-", "\N{MINUS SIGN}")


def _format_gain(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
