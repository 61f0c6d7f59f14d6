"""What samplers and policies cost in quality: measures held-out prompts and writes the tables of docs/policies.md."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from anima_batch.files import write_atomic
from anima_batch.model_set import built_in_folder
from studies import settings
from studies.figures import list_subjects, load_figures
from studies.settings import EULER_20, Setting, find_preset
from studies.tables import Report, draw_bands, draw_decision

DOCUMENT = Path(__file__).parents[1] / "docs/policies.md"

# Distances in dB to Euler 200 and to Euler 20 that a first, smaller trial of this architecture showed on 24 prompts.
TRIAL = {
    EULER_20: (38.3, None),
    Setting("euler", 11): (31.2, 35.1),
    Setting("euler", 20, "spectrum"): (34.8, 37.9),
    Setting("euler", 20, "free"): (34.4, 38.7),
    Setting("euler", 20, "taylor"): (35.0, 39.9),
    Setting("euler", 20, "chebyshev"): (None, 30.6),
    Setting("dpmpp_2m", 11): (32.3, 35.1),
    Setting("dpmpp_2m", 14): (35.1, 38.4),
    Setting("dpmpp_2m", 20): (41.2, 41.3),
    Setting("ab2", 11): (36.1, 35.4),
    Setting("ab2", 12): (38.2, None),
    Setting("ab2", 14): (40.8, 36.1),
    Setting("ab2", 20): (47.2, 37.8),
    Setting("ab2", 14, "reuse-2-4"): (39.5, 36.8),
    Setting("euler", 20, "reuse-2-4"): (36.7, 47.0),
}


def main() -> None:
    """Measures what is not known yet, then rewrites the tables."""
    options = _parse_arguments()
    subjects = list_subjects(2 * options.prompts)
    figures = load_figures(options.model_set, options.json)
    chosen, others = (Report(figures, half) for half in (subjects[: options.prompts], subjects[options.prompts :]))
    figures.measure(with_twins(settings.ALL), chosen.subjects, options.processes)
    checked = [*settings.CHECKED, *chosen.find_nearest(settings.CONTENDERS)]
    figures.measure(checked, others.subjects, options.processes)
    tables = draw_tables(chosen, others, sorted(dict.fromkeys(checked), key=lambda setting: setting.passes))
    write_atomic(DOCUMENT, fill_document(DOCUMENT.read_text(encoding="utf-8"), tables).encode("utf-8"))


def with_twins(wanted: Sequence[Setting]) -> list[Setting]:
    """The settings and the plain ones of equal passes."""
    return [*wanted, *(twin for setting in wanted for twin in setting.plain_twins)]


def draw_tables(chosen: Report, others: Report, checked: Sequence[Setting]) -> dict[str, str]:
    """Every table by the name of its place in the document."""
    shown = [*settings.FORECASTS, *settings.REUSES, *settings.SCHEDULES, *checked]
    return {
        "subject": describe_subject(chosen),
        "bands": draw_bands(find_preset("balanced"), Report(chosen.figures, [*chosen.subjects, *others.subjects])),
        "agreement": chosen.draw_agreement(settings.FINEST),
        "plain": chosen.draw_quality(settings.PLAIN, beside_plain=False),
        "forecasts": chosen.draw_quality(settings.FORECASTS, beside_plain=True),
        "reuses": chosen.draw_quality(settings.REUSES, beside_plain=True),
        "schedules": chosen.draw_quality(settings.SCHEDULES, beside_plain=False),
        "decision": draw_decision(
            checked, {f"{len(chosen.subjects)} prompts": chosen, f"{len(others.subjects)} others": others}
        ),
        "trial": chosen.draw_trial(TRIAL),
        "spelling": f"```toml\n{settings.spell_policies(setting.policy for setting in shown)}\n```",
    }


def describe_subject(report: Report) -> str:
    """What the figures are of, in a line."""
    model_set = report.figures.model_set
    versions = ", ".join(f"{package} {version(package)}" for package in ("onnxruntime", "numpy"))
    return (
        f"Model set `{model_set.description.name}`, digest `{model_set.digest[:12]}`; {len(report.subjects)} prompts, "
        f"128x128, guidance_scale {settings.GUIDANCE_SCALE:g}; {versions}."
    )


def fill_document(text: str, tables: Mapping[str, str]) -> str:
    """The text with each table in its place, from `<!-- name -->` to `<!-- end -->`.

    Raises ValueError where a table has no place or several.
    """
    for name, table in tables.items():
        before, *rest = re.split(rf"(?<=<!-- {name} -->\n)", text)
        if len(rest) != 1 or "<!-- end -->" not in rest[0]:
            raise ValueError(f"{DOCUMENT}: must have one place <!-- {name} --> ... <!-- end -->, got {len(rest)}")
        text = f"{before}{table}\n{rest[0][rest[0].index('<!-- end -->') :]}"
    return text


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-set", type=Path, default=built_in_folder() / "picture-book")
    parser.add_argument("--prompts", type=int, default=32, help="as many others check what these choose")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="keeps what was measured: it is not measured again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
