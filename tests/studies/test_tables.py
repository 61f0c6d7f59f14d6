from collections.abc import Mapping

import pytest

from anima_batch.job import request_id
from anima_batch.model_set import built_in_folder
from studies.figures import Figure, Subject, list_subjects, load_figures
from studies.quality import fill_document
from studies.settings import CONVERGED, EULER_20, REFERENCES, Setting
from studies.tables import Report, draw_decision

SUBJECTS = [Subject("a cat", 1), Subject("a dog", 2)]
AB2_11, SPECTRUM = Setting("ab2", 11), Setting("euler", 20, "spectrum")


def report_of(distances: Mapping[Setting, tuple[float, float]]) -> Report:
    """A report over two subjects with the PSNR that each setting has to every reference, as if measured."""
    figures = load_figures(built_in_folder() / "picture-book", None)
    for setting, values in {CONVERGED: (99.0, 99.0), **distances}.items():
        for subject, psnr in zip(SUBJECTS, values, strict=True):
            key = request_id(setting.request(subject.prompt, subject.seed), figures.model_set.digest)
            labels = [reference.label for reference in REFERENCES]
            figures.known[key] = Figure(
                passes=setting.passes,
                contrast=40.0 if setting == CONVERGED else 30.0,
                latent_std=1.0,
                psnr=dict.fromkeys(labels, psnr),
                ssim=dict.fromkeys(labels, 0.5),
            )
    return Report(figures, SUBJECTS)


def read_table(table: str) -> list[list[str]]:
    """The cells of each row, the header first."""
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [header, *rows]


def test_a_row_stands_beside_plain_sampling_of_equal_passes():
    plain = {Setting("euler", 11): (31.0, 33.0), AB2_11: (36.0, 38.0), Setting("dpmpp_2m", 11): (30.0, 30.0)}
    report = report_of({EULER_20: (34.0, 36.5), SPECTRUM: (35.0, 36.0), **plain})
    header, row = read_table(report.draw_quality([SPECTRUM], beside_plain=True))
    assert len(header) == len(row)
    # The standard error of two values is half their distance: gains are 4 and 3, then -1 and -2.
    assert row[:4] == ["euler 20 spectrum", "22", "35.5 ± 0.5", "1 of 2"]
    assert row[5] == "0.750"
    assert row[-4:] == ["euler 11: 32.0", "+3.5 ± 0.5", "ab2 11: 37.0", "-1.5 ± 0.5"]


def test_the_nearest_setting_is_found_for_each_number_of_passes():
    report = report_of(
        {EULER_20: (38.0, 38.0), SPECTRUM: (35.0, 35.0), AB2_11: (37.0, 37.0), Setting("ab2", 20): (30, 30)}
    )
    assert report.find_nearest([EULER_20, SPECTRUM, AB2_11, Setting("ab2", 20)]) == [AB2_11, EULER_20]


def test_a_decision_tells_the_gain_over_euler_20_on_each_set_of_prompts():
    report = report_of({EULER_20: (34.0, 36.5), SPECTRUM: (35.0, 36.5)})
    header, row = read_table(draw_decision([SPECTRUM], {"these": report, "others": report}))
    assert header[3] == "these: gain, dB"
    assert row[:8] == ["euler 20 spectrum", "22", "22.1", "+0.5 ± 0.5", "+0.5 ± 0.5", "2 of 2", "35.0", "0.5000"]
    assert row[8:] == row[3:8]


def test_tables_go_to_their_places_and_again():
    text = "a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\nc\n"
    filled = fill_document(text, {"two": "2", "one": r"\1"})
    assert filled == "a\n<!-- one -->\n\\1\n<!-- end -->\nb\n<!-- two -->\n2\n<!-- end -->\nc\n"
    assert fill_document(filled, {"two": "2", "one": r"\1"}) == filled


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="<!-- three -->"):
        fill_document("<!-- one -->\n<!-- end -->\n", {"three": "3"})


def test_prompts_are_held_out_unlike_and_always_the_same():
    subjects = list_subjects(40)
    assert len({subject.prompt for subject in subjects}) == 40
    assert subjects[:8] == list_subjects(8)
