"""`compare` on a job that was really run."""

import json
import shutil

import compared_job
import numpy as np
import pytest
from command import Workspace
from PIL import Image, PngImagePlugin

from anima_batch import measures
from anima_batch.store import read_manifest, to_bytes


def pixels(path):
    return np.asarray(Image.open(path))


@pytest.fixture
def copy(compared, tmp_path):
    """A copy of the finished job that a test may change."""
    shutil.copytree(compared.folder, tmp_path / "copy")
    return Workspace(tmp_path / "copy")


@pytest.fixture(scope="session")
def found(compared):
    return compared.json("compare", "jobs/compared.toml")


def of(found, start):
    return [image for image in found["images"] if image["image"].startswith(start)]


def test_every_image_is_beside_its_full_twin(found):
    images = {image["image"]: image for image in found["images"]}
    beside = {image["setting"]: image["twin"] and image["twin"]["setting"] for image in of(found, "house")}
    assert beside == {
        "euler 8": None,
        "euler 8 quick": "euler 8",
        "euler 8 thrifty": "euler 8",
        "euler 5": "euler 8",
        "euler 7": "euler 8",
    }
    for image in images.values():
        if image["twin"]:
            assert image["image"].split("-")[0] == image["twin"]["image"].split("-")[0]
    assert [image["twin"] for image in of(found, "a-cat")] == [None]


def test_the_figures_are_those_of_the_files(compared, found):
    for image in found["images"]:
        if twin := image["twin"]:
            one, other = (
                pixels(compared.folder / f"outputs/compared/{stem}.png") for stem in (image["image"], twin["image"])
            )
            # Two implementations that sum in another order.
            assert twin["psnr_db"] == pytest.approx(measures.measure_psnr(one, other), abs=1e-9)
            assert twin["ssim"] == pytest.approx(measures.measure_ssim(one, other), abs=1e-9)
            contrasts = [measures.measure_contrast(picture) for picture in (one, other)]
            assert twin["contrast"] == pytest.approx(contrasts[0] / contrasts[1], abs=1e-12)
            assert twin["passes_saved"] == 16 - image["passes"]


def test_controls_were_planned_and_judge_the_policies(found):
    for prompt in ("house", "boat"):
        controls = {image["setting"]: image["control"] for image in of(found, prompt)}
        assert controls["euler 8 quick"]["setting"] == "euler 5"
        assert controls["euler 8 thrifty"]["setting"] == "euler 7"
        assert controls["euler 5"] is None
        for image in of(found, prompt):
            if control := image["control"]:
                assert control["gain_db"] == pytest.approx(image["twin"]["psnr_db"] - control["psnr_db"])
                beaten = [flag for flag in image["flags"] if "with as many passes" in flag]
                assert bool(beaten) == (control["gain_db"] < 0)


def test_latents_part_after_the_first_forecast_and_their_cosine_is_told_a_step(found, compared):
    (image,) = [image for image in of(found, "house") if image["setting"] == "euler 8 quick"]
    manifest = compared.manifests("compared")[image["image"]]
    assert image["twin"]["first_different_step"] == manifest["sampling"]["forecast_steps"][0]
    cosines = image["twin"]["latent_cosines"]
    assert [step for step, _ in cosines] == list(range(1, 9))
    parted = image["twin"]["first_different_step"]
    assert all(cosine == 1.0 for step, cosine in cosines if step < parted)
    assert all(0.9 < cosine < 1.0 for step, cosine in cosines if step >= parted)
    assert image["twin"]["latent_cosine"] == cosines[-1][1]


def test_of_other_steps_only_the_last_latents_are_compared(found):
    (image,) = [image for image in of(found, "house") if image["setting"] == "euler 5"]
    assert [step for step, _ in image["twin"]["latent_cosines"]] == [5]
    assert image["twin"]["first_different_step"] is None


def test_latents_that_are_not_those_of_the_manifest_are_not_used(copy, found):
    for path in (copy.folder / "outputs/compared/.latents").glob("*/004.latents"):
        shutil.copy(path.with_name("005.latents"), path)
    (image,) = [
        image
        for image in of(copy.json("compare", "jobs/compared.toml"), "house")
        if image["setting"] == "euler 8 quick"
    ]
    assert [step for step, _ in image["twin"]["latent_cosines"]] == [1, 2, 3, 5, 6, 7, 8]


def test_a_threshold_flags_what_is_under_it(compared, found):
    psnr = sorted(image["twin"]["psnr_db"] for image in found["images"] if image["twin"])
    between = (psnr[0] + psnr[1]) / 2
    flagged = compared.json("compare", "jobs/compared.toml", "--min-psnr", str(between))
    under = [image["image"] for image in flagged["images"] if any("under" in flag for flag in image["flags"])]
    assert under == [
        image["image"] for image in found["images"] if image["twin"] and image["twin"]["psnr_db"] < between
    ]
    assert len(under) == 1


def test_settings_are_summed_up(found):
    settings = {row["setting"]: row for row in found["settings"]}
    assert settings["euler 8 quick"]["images"] == 2
    twins = [image["twin"] for image in found["images"] if image["setting"] == "euler 8 quick"]
    assert settings["euler 8 quick"]["psnr_db"] == pytest.approx(np.mean([twin["psnr_db"] for twin in twins]))
    assert settings["euler 8 quick"]["worst_psnr_db"] == min(twin["psnr_db"] for twin in twins)
    assert settings["euler 8 quick"]["passes_saved"] == pytest.approx(sum(t["passes_saved"] for t in twins) / 32)


def test_two_images_give_the_published_table(compared, found):
    quick, full = (
        next(image["image"] for image in of(found, "house") if image["setting"] == setting)
        for setting in ("euler 8 quick", "euler 8")
    )
    first, second = f"outputs/compared/{full}.png", f"manifests/compared/{quick}.json"
    pair = compared.json("compare", first, second)
    assert [image["image"] for image in pair["images"]] == [quick]
    assert pair["images"][0]["twin"]["psnr_db"] == of(found, quick)[0]["twin"]["psnr_db"]
    manifests = compared.manifests("compared")
    total = {row["what"]: row for row in pair["sums"]}["denoise + decode seconds"]
    times = [manifests[stem]["timings"] for stem in (full, quick)]
    before, after = (time["denoise"] + time["decode"] for time in times)
    assert total["change"] == pytest.approx(after / before - 1)
    assert "denoise + decode seconds" in compared.run("compare", first, second).stdout


def test_a_job_beside_itself_is_the_same(compared):
    found = compared.json("compare", "jobs/compared.toml", "outputs/compared")
    assert len(found["images"]) == 2 * compared_job.SETTINGS + 1 + 4
    for image in found["images"]:
        assert image["twin"]["same"]
        assert image["twin"]["image"] == image["image"]
        assert image["twin"]["psnr_db"] is None


def test_a_folder_is_enough(compared, tmp_path):
    shutil.copytree(compared.folder / "manifests", tmp_path / "manifests")
    shutil.copytree(compared.folder / "outputs", tmp_path / "outputs")
    ended = compared.run("compare", str(tmp_path / "outputs/compared"))
    assert ended.stdout.splitlines()[-1].startswith("8 compared, 3 with nothing beside them")


def test_a_picture_that_is_not_the_one_recorded_is_left_out(copy):
    picture = next(path for path in copy.pictures("compared") if path.name.startswith("house") and "quick" in path.name)
    Image.fromarray(255 - pixels(picture)).save(picture)
    ended = copy.run("compare", "jobs/compared.toml", "--json")
    assert f"warning: {picture.stem}: left out: " in ended.stderr
    assert picture.stem not in {image["image"] for image in json.loads(ended.stdout)["images"]}
    copy.run("compare", str(picture), str(picture), check=2)


def test_a_resaved_picture_is_compared_all_the_same(copy):
    picture = next(path for path in copy.pictures("compared") if "quick" in path.name)
    Image.open(picture).save(picture)
    assert picture.stem in {image["image"] for image in copy.json("compare", "jobs/compared.toml")["images"]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jobs/none.toml"], "jobs/none.toml: must be a job file that can be read"),
        (["outputs"], "outputs: must be a job file (TOML), or a job's folder"),
        (["nothing"], "nothing: must be a job file (TOML), or a job's folder in outputs/ or manifests/, got nothing"),
        (["outputs/compared/house.png"], "a job's folder in outputs/ or manifests/, got one image"),
        (["outputs/compared"] * 3, "must be given one job, or two runs or images, got 3"),
        (["jobs/new.toml"], "manifests/new: no image of this job is finished or failed yet: run it first"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(copy, words, expected):
    copy.write_job("[defaults]\nprompt = 'a'\nseed = 1\n", "new")
    ended = copy.run("compare", *words, check=2)
    assert len(ended.stderr.splitlines()) == 1
    assert expected in ended.stderr


def test_without_the_extra_a_line_says_what_to_install(compared, tmp_path):
    (tmp_path / "skimage.py").write_text("raise ModuleNotFoundError('No module named skimage', name='skimage')\n")
    bare = Workspace(compared.folder)
    bare.environment["PYTHONPATH"] = f"{tmp_path}:{bare.environment['PYTHONPATH']}"
    ended = bare.run("compare", "jobs/compared.toml", check=2)
    assert ended.stderr == "error: compare: skimage is missing: pip install 'anima-batch[report]'\n"


def test_a_picture_is_compared_by_what_it_is_now(copy):
    """The manifest that an edited copy still names is of other pixels."""
    first = min((copy.folder / "outputs/compared").glob("house-*.png"))
    with Image.open(first) as image:
        image.load()
        texts = PngImagePlugin.PngInfo()
        for keyword, text in image.text.items():
            texts.add_itxt(keyword, str(text))
        Image.eval(image, lambda value: 255 - value).save(copy.folder / "edited.png", pnginfo=texts)
    told = copy.run("compare", str(first.relative_to(copy.folder)), "edited.png", check=2).stderr
    assert "edited.png: its pixels are not those that manifests/compared/" in told


def test_pictures_of_two_workspaces_are_each_of_their_own(compared, copy):
    """Both have the same job: each picture's manifest is that of the workspace in which it lies."""
    first = min((copy.folder / "outputs/compared").glob("house-*.png"))
    manifest = copy.folder / "manifests/compared" / f"{first.stem}.json"
    old = read_manifest(manifest)
    timings = old.timings.model_copy(update={"denoise": 1000.0})
    manifest.write_bytes(to_bytes(old.model_copy(update={"timings": timings})))
    (image,) = compared.json("compare", f"outputs/compared/{first.name}", str(first))["images"]
    assert image["seconds"] == 1000.0 + old.timings.decode


def test_latents_that_were_damaged_are_as_good_as_not_kept(copy):
    for path in (copy.folder / "outputs/compared/.latents").glob("*/008.latents"):
        path.write_bytes(path.read_bytes()[:100])
    for image in copy.json("compare", "jobs/compared.toml")["images"]:
        if image["twin"] and image["setting"].startswith("euler 8 "):
            assert [step for step, _ in image["twin"]["latent_cosines"]] == list(range(1, 8))
