from pathlib import Path

import pytest

from anima_batch.job import expand_job, load_job
from anima_batch.sampling import check_request
from studies.settings import ALL, EULER_20, POLICIES, REFERENCES, Setting, find_preset, spell_policies


def test_every_setting_can_be_asked_for():
    wanted = [*ALL, *REFERENCES, *(twin for setting in ALL for twin in setting.plain_twins)]
    errors = [
        (setting.label, problem)
        for setting in dict.fromkeys(wanted)
        for problem in check_request(setting.request("a cat", 1))
        if problem.severity == "error"
    ]
    assert not errors


def test_the_policies_as_they_are_spelled_are_those_compared(tmp_path: Path):
    names = [name for name in POLICIES if name.startswith(("free", "reuse-2-4", "chebyshev", "spectrum"))]
    job = tmp_path / "job.toml"
    start = f'schema_version = 1\n[defaults]\nprompt = "a cat"\nseed = 1\n[matrix]\npolicy = {names}\n'
    job.write_text(f"{start}{spell_policies(names)}\n", encoding="utf-8")
    images = expand_job(load_job(job, tmp_path), [(128, 128)]).images
    assert [image.request.policy for image in images] == [POLICIES[name] for name in names]


def test_a_plain_twin_has_the_passes_of_its_setting_or_one_more():
    setting = Setting("ab2", 14, "reuse-2-2")
    assert setting.passes == 23
    assert [(twin.sampler, twin.passes) for twin in setting.plain_twins] == [
        ("euler", 24),
        ("ab2", 24),
        ("dpmpp_2m", 24),
    ]


def test_the_preset_is_a_setting_that_was_compared():
    assert find_preset("balanced") in ALL


def test_labels_name_what_differs_from_the_default():
    assert EULER_20.label == "euler 20"
    assert Setting("ab2", 14, "reuse-2-4", "beta").label == "ab2 14 reuse-2-4 beta"
    assert len({setting.label for setting in ALL}) == len(set(ALL))


@pytest.mark.parametrize("setting", [EULER_20, find_preset("balanced")])
def test_planned_passes_are_at_most_forty(setting: Setting):
    assert setting.passes <= EULER_20.passes == 40


def test_the_board_takes_its_published_time_for_twenty_computed_steps():
    assert EULER_20.board_minutes == pytest.approx(2408.54 / 60, rel=1e-4)  # seconds published for the whole image
