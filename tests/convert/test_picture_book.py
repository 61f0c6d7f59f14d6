"""The recipe of the built-in model set, and the set as it ships."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anima_batch.convert.picture_book import make_picture_book
from anima_batch.model_set import built_in_folder, load_model_set, verify_model_set

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_picture_book(tmp_path_factory.mktemp("made") / "picture-book")


def read_all(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_recipe_gives_the_same_bytes_in_another_process(made, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-m", "anima_batch.convert.picture_book", str(tmp_path / "again")]
    subprocess.run(command, env=environment, check=True)
    assert read_all(tmp_path / "again") == read_all(made.folder)


def test_it_is_small_and_its_digests_hold(made):
    assert verify_model_set(made, sha256=True) == []
    assert sum(len(data) for data in read_all(made.folder).values()) < 1_500_000


def test_its_default_size_is_128_pixels_square(made):
    assert made.description.sizes == ((128, 128), (192, 128), (128, 192))


def test_the_set_that_ships_is_whole():
    shipped = load_model_set(built_in_folder() / "picture-book")
    assert verify_model_set(shipped, sha256=True) == []
    assert shipped.description.name == "picture-book"


def test_the_set_that_ships_has_the_dimensions_of_the_recipe(made):
    shipped = load_model_set(built_in_folder() / "picture-book")
    assert shipped.description.transformer == made.description.transformer
    assert shipped.description.sizes == made.description.sizes
