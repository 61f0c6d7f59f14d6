"""Decoding whole and in tiles, measured for real on the built-in set, and what is advised."""

import json
import subprocess

import numpy as np
import pytest
from command import COMMAND, Workspace
from memory_group import memory_group
from PIL import Image

from anima_batch.bench.decode import DecodeComparison, Decoding, choose_decoding, make_latents


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("bench"))
    words = ("--size", "512x256", "--tile", "16", "--tile", "8", "--threads", "1", "--threads", "2", "--rounds", "1")
    found = workspace.json("bench", "decode", *words, "--figure", "decode.png")
    with Image.open(workspace.folder / "decode.png") as image:
        assert image.width == 1500
    return found


def rows_of(found, **wanted):
    return [row for row in found["rows"] if all(row[key] == value for key, value in wanted.items())]


def test_every_way_is_measured_with_every_number_of_threads(measured):
    ways = [(row["threads"], row["tile"]) for row in measured["rows"]]
    assert ways == [(1, None), (1, 16), (1, 8), (2, None), (2, 16), (2, 8)]
    for row in measured["rows"]:
        assert min(row["seconds"], row["first_seconds"]) > 0
        assert row["peak_bytes"] > row["need_bytes"] > 1e6


def test_the_whole_picture_is_the_measure_of_the_tiles(measured):
    (whole,) = rows_of(measured, threads=1, tile=None)
    assert (whole["psnr"], whole["ssim"]) == (None, 1)
    (large,), (small,) = (rows_of(measured, threads=1, tile=tile) for tile in (16, 8))
    assert 20 < small["psnr"] < large["psnr"] < 60
    assert 0.5 < small["ssim"] < large["ssim"] < 1


def test_tiles_take_less_memory_than_the_whole_picture(measured):
    (whole,), (tiled,) = (rows_of(measured, threads=1, tile=tile) for tile in (None, 8))
    assert tiled["need_bytes"] < 0.7 * whole["need_bytes"]


def test_with_memory_to_spare_the_whole_picture_is_advised(measured):
    assert measured["available_bytes"] > max(row["need_bytes"] for row in measured["rows"])
    assert measured["advice"]["tile"] is None
    assert measured["advice"]["threads"] == min(rows_of(measured, tile=None), key=lambda row: row["seconds"])["threads"]


def test_by_default_a_half_and_a_quarter_are_tried_and_the_table_says_what_fits(workspace):
    shown = workspace.run("bench", "decode", "--rounds", "1").stdout
    assert [word in shown for word in ("whole", "tile 8", "tile 4")] == [True] * 3
    assert shown.rstrip().endswith("MB are available: the whole picture fits")


def comparison(tile, need, seconds, threads=1):
    return DecodeComparison(Decoding(threads, tile, seconds, seconds, need, need), 40.0, 0.99)


FOUND = [
    comparison(None, 900, 6.0, threads=2),
    comparison(32, 400, 9.0, threads=2),
    comparison(16, 200, 8.0, threads=2),
    comparison(32, 350, 15.0),
]


@pytest.mark.parametrize(("available", "chosen"), [(1000, 0), (900, 0), (899, 1), (399, 3), (349, 2), (199, None)])
def test_the_largest_tile_that_fits_is_chosen_with_the_fastest_threads(available, chosen):
    assert choose_decoding(FOUND, available) is (None if chosen is None else FOUND[chosen])


def test_latents_are_like_those_of_pictures():
    """Mean 0, variance 1, and most of it in low frequencies, where white noise has it everywhere alike."""
    latents = make_latents(32, 64)
    assert latents.shape == (16, 32, 64)
    assert latents.dtype == np.float32
    np.testing.assert_allclose(latents.mean(axis=(1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(latents.std(axis=(1, 2)), 1, atol=1e-6)
    neighbours = (latents[:, :, 1:] * latents[:, :, :-1]).mean()
    assert neighbours > 0.6
    np.testing.assert_array_equal(latents, make_latents(32, 64))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tile", "3"), "--tile: must be 4 to 15 latent pixels here, got 3"),
        (("--tile", "16"), "--tile: must be 4 to 15 latent pixels here, got 16"),
        (("--size", "500x512"), "--size: must be WIDTHxHEIGHT, multiples of 16 from 64 on, got 500x512"),
        (("--size", "512"), "--size: must be WIDTHxHEIGHT, multiples of 16 from 64 on, got 512"),
    ],
)
def test_a_tile_or_size_that_cannot_be_is_a_usage_error(workspace, words, message):
    assert message in workspace.run("bench", "decode", *words, check=2).stderr


def test_a_picture_that_the_memory_cannot_hold_ends_in_one_line(workspace):
    """At 1024 x 1024 the decoder's attention alone has 1 GB of scores."""
    with memory_group(500_000_000) as inside:
        command = [*inside, *COMMAND, "bench", "decode", "--size", "1024x1024", "--threads", "1"]
        ended = subprocess.run(
            command, cwd=workspace.folder, env=workspace.environment, capture_output=True, text=True, timeout=300
        )
    assert ended.returncode == 4, ended.stderr
    assert "bench decode: the process died over the whole picture with 1 threads" in ended.stderr
    assert "Traceback" not in ended.stderr


def keep_need(workspace, words, bytes_):
    """As if the decoding had taken so many bytes."""
    workspace.run("bench", "decode", "--rounds", "1", "--tile", "8", *words)
    (path,) = (workspace.folder / "outputs/.timing").iterdir()
    kept = json.loads(path.read_text())
    assert {(need["tile"], need["bytes"] > 1e6) for need in kept["needs"]} == {(None, True), (8, True)}
    for need in kept["needs"]:
        need["bytes"] = bytes_
    path.write_text(json.dumps(kept))
    return path


JOB = """
[defaults]
prompt = "a house"
seed = 1
steps = 1
width = 128
height = 128
"""


def test_a_run_says_before_it_begins_that_decoding_needs_more_memory_than_there_is(workspace):
    job = workspace.write_job(JOB)
    path = keep_need(workspace, (), 10**15)
    said = workspace.run("run", job).stderr
    assert "decoding needs 1000000000 MB or more, as `anima-batch bench decode` measured it, " in said
    assert said.index("decoding needs") < said.index("step 1")
    path.write_text("{")
    workspace.run("run", job)  # nothing is left to do, so nothing is looked at
    assert (
        f"{path.relative_to(workspace.folder)}: cannot be read"
        in workspace.run("run", workspace.write_job(JOB.replace("seed = 1", "seed = 2"))).stderr
    )


def test_a_need_that_is_met_or_of_a_larger_picture_or_of_other_tiles_says_nothing(workspace):
    job = workspace.write_job(JOB)
    path = keep_need(workspace, (), 1)
    assert "decoding needs" not in workspace.run("run", job, "--limit", "1").stderr
    kept = json.loads(path.read_text())
    kept["needs"] = [
        {**need, "bytes": 10**15} | ({"height": 192} if need["tile"] is None else {}) for need in kept["needs"]
    ]
    path.write_text(json.dumps(kept))
    job = workspace.write_job(JOB.replace("seed = 1", "seed = 2"))
    assert "decoding needs" not in workspace.run("run", job).stderr
