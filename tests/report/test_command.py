"""`report`: the file that it writes, and what stands in it of a job that went wrong."""

import json
import os
import re
import shutil

import many_images
import numpy as np
import pytest
from command import Workspace
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from anima_batch.compare import find_job, read_records
from anima_batch.report.page import script_json
from anima_batch.report.thumbnails import make_thumbnails


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


@given(st.recursive(st.text() | st.sampled_from(["</script>", "<!--", "]]>", "\u2028&amp;"]), st.lists))
def test_no_text_can_end_the_script_that_holds_it(value):
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_the_page_lies_beside_the_pictures_and_is_the_same_each_time(compared, report):
    first = report.read_bytes()
    told = compared.json("report", "outputs/compared")
    assert told == {"path": "outputs/compared/report.html", "images": 11, "bytes": len(first)}
    assert report.read_bytes() == first


def test_it_may_lie_elsewhere_and_its_links_lead_back(compared, tmp_path):
    compared.run("report", "jobs/compared.toml", "--out", str(tmp_path / "page.html"))
    for image in data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["images"]:
        assert (tmp_path / image["png"]).is_file()
        assert (tmp_path / image["manifest"]).is_file()


def test_nothing_of_it_comes_from_a_network(report):
    assert (
        re.findall(r"""(?:src|href)=["']?(?!#|data:)[^"'>\s]+|@import|url\(""", report.read_text(encoding="utf-8"))
        == []
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jobs/none.toml"], "must be a job file that can be read"),
        (["outputs/compared", "--out", "nowhere/page.html"], "--out: must be a file in a folder that exists"),
        (["outputs/compared", "--out", "jobs"], "--out: must be a file in a folder that exists, got jobs"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(compared, words, expected):
    ended = compared.run("report", *words, check=2)
    assert len(ended.stderr.splitlines()) == 1
    assert expected in ended.stderr


def test_without_the_extra_a_line_says_what_to_install(compared, tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError('No module named jinja2', name='jinja2')\n")
    bare = Workspace(compared.folder)
    bare.environment["PYTHONPATH"] = f"{tmp_path}:{bare.environment['PYTHONPATH']}"
    ended = bare.run("report", "jobs/compared.toml", check=2)
    assert ended.stderr == "error: report: jinja2 is missing: pip install 'anima-batch[report]'\n"


@pytest.fixture(scope="module")
def trouble(tmp_path_factory):
    """A job with a picture that failed, one that was changed, one without a manifest that holds, one not made."""
    made = Workspace(tmp_path_factory.mktemp("trouble"))
    made.make_faults({"kind": "nan", "seed": 2, "step": 2})
    job = made.write_job("[defaults]\nprompt = 'an (owl:1.2)'\nsteps = 3\n[matrix]\nseed = [1, 2, 3, 4, 5]\n")
    made.run("run", job, "--limit", "4", check=1)
    of_seed = {manifest["request"]["seed"]: stem for stem, manifest in made.manifests().items()}
    changed = made.folder / f"outputs/job/{of_seed[3]}.png"
    Image.fromarray(255 - np.asarray(Image.open(changed))).save(changed)
    bad = made.folder / f"manifests/job/{of_seed[4]}.json"
    bad.write_bytes(bad.read_bytes().replace(b"owl", b"cat"))
    made.run("report", job)
    return made, of_seed


def test_failures_changes_and_what_waits_are_told(trouble, visit):
    workspace, of_seed = trouble
    page = visit(workspace.folder / "outputs/job/report.html", "#checks")
    text = page.locator("#checks").inner_text()
    failed = workspace.manifests()[of_seed[2]]["error"]
    assert failed["message"] in text
    assert f"{of_seed[3]}" in text
    assert "sha256 must be" in text
    assert f"{of_seed[4]}.json: self_sha256" in text
    assert "2 pictures are not made yet" in text  # the one without a sound manifest is made again
    assert "prompt: " in text  # the warning of a weight in brackets
    summary = page.locator(".summary").inner_text()
    assert ("2 done" in summary, "1 failed" in summary, "2 waiting" in summary) == (True, True, True)


def test_a_failed_image_opens_with_its_reason(trouble, visit):
    workspace, of_seed = trouble
    page = visit(workspace.folder / "outputs/job/report.html")
    page.locator("#tools").get_by_label("show", exact=True).select_option("failed")
    page.locator(f".tile[data-stem='{of_seed[2]}']").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_text("Failed at step 2: non_finite").is_visible()
    dialog.locator("summary", has_text="Manifest").click()
    assert json.loads(dialog.locator("pre").text_content()) == workspace.manifests()[of_seed[2]]


def test_a_job_without_anything_to_compare_says_how(trouble, visit):
    page = visit(trouble[0].folder / "outputs/job/report.html", "#comparison")
    assert "--with-controls" in page.locator("#comparison").inner_text()


def test_thumbnails_get_smaller_until_they_fit(compared, tmp_path):
    many_images.multiply(compared.folder, tmp_path, "large", 12, side=512)
    records = read_records(find_job(tmp_path / "outputs/large", tmp_path)).records
    free, tight = (make_thumbnails(records, budget) for budget in (10_000_000, 12 * 2500))
    assert len(free) == len(tight) == 12
    sizes = [sum(map(len, made.values())) for made in (free, tight)]
    assert sizes[1] <= 12 * 2500 < sizes[0]


def test_a_thousand_images_stay_under_15_megabytes_and_open(compared, tmp_path, visit):
    many_images.multiply(compared.folder, tmp_path, "many", 1000)
    shutil.copytree(compared.folder / "jobs", tmp_path / "jobs")
    told = Workspace(tmp_path).json("report", "outputs/many")
    assert told["images"] == 1000
    assert told["bytes"] < 15_000_000
    page = visit(tmp_path / "outputs/many/report.html")
    assert page.locator("#grid .tile").count() == 1000
    assert "1000 pictures" in page.locator("#number").inner_text()


def test_a_picture_that_is_gone_and_a_manifest_that_leads_nowhere_hide_nothing_else(compared, tmp_path):
    shutil.copytree(compared.folder, tmp_path / "copy")
    copy = Workspace(tmp_path / "copy")
    min((copy.folder / "outputs/compared").glob("house-*.png")).unlink()
    (copy.folder / "manifests/compared/a-1-full-0123456789ab.json").symlink_to("/nowhere/at.json")
    ended = copy.run("report", "jobs/compared.toml")
    assert "a-1-full-0123456789ab.json: No such file or directory" in ended.stderr
    text = (copy.folder / "outputs/compared/report.html").read_text(encoding="utf-8")
    thumbnails = [image["thumbnail"] for image in data_of(text)["images"]]
    assert (len(thumbnails), sum(entry is None for entry in thumbnails)) == (11, 1)


def test_a_jobs_folder_may_be_a_link_to_another_disk(compared, tmp_path):
    (tmp_path / "outputs").mkdir()
    shutil.copytree(compared.folder / "manifests", tmp_path / "manifests")
    shutil.copytree(compared.folder / "outputs/compared", tmp_path / "disk")
    (tmp_path / "outputs/compared").symlink_to(tmp_path / "disk")
    told = Workspace(tmp_path).json("report", "outputs/compared")
    assert (told["path"], told["images"]) == ("outputs/compared/report.html", 11)


def test_a_workspace_whose_name_is_no_utf8_is_linked(compared, tmp_path):
    folder = tmp_path / os.fsdecode(b"work\xff")
    shutil.copytree(compared.folder, folder)
    Workspace(folder).run("report", "jobs/compared.toml", "--out", str(tmp_path / "page.html"))
    links = [image["png"] for image in data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["images"]]
    assert all(link.startswith("work%FF/outputs/compared/") for link in links), links


def test_a_threshold_must_be_a_number_of_decibels(compared):
    assert "--min-psnr" in compared.run("report", "jobs/compared.toml", "--min-psnr", "inf", check=2).stderr
