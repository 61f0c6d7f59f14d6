"""File names of images, and the [[exclude]] that drops them."""

from __future__ import annotations

import unicodedata

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from anima_batch.job import ImageRequest, JobImage, exclude_for, make_slug


def image(prompt: str = "a red house", **names: object) -> JobImage:
    request = ImageRequest(prompt=prompt, seed=7, width=128, height=128, sampler="ab2")
    return JobImage(request, **({"prompt_name": None, "policy_name": "gentle"} | names))


@given(st.text())
def test_a_slug_is_a_short_normalised_file_name(text: str):
    slug = make_slug(text)
    assert 1 <= len(slug.encode("utf-8")) <= 80
    assert unicodedata.is_normalized("NFC", slug)
    assert all(c.isalnum() or c == "-" or unicodedata.category(c)[0] == "M" for c in slug)
    assert not slug.startswith("-")
    assert not slug.endswith("-")
    assert "--" not in slug
    assert make_slug(slug) == slug


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("A red house, at NIGHT!", "A-red-house-at-NIGHT"),
        ("../../etc/passwd", "etc-passwd"),
        ("Сова ночью", "Сова-ночью"),
        ("夜の フクロウ", "夜の-フクロウ"),
        ("cafe\u0301", "café"),
        ("हिन्दी", "हिन्दी"),
        ("🦉 owl 🌙", "owl"),
        ("🦉🌙", "prompt"),
        ("", "prompt"),
        ("a" * 100, "a" * 80),
        ("夜" * 40, "夜" * 26),
        ("a" * 79 + "x\u0323\u0331", "a" * 79),
    ],
)
def test_a_slug_keeps_letters_of_any_script_and_is_cut_on_a_character(text: str, slug: str):
    assert make_slug(text) == slug


def test_a_stem_names_prompt_seed_policy_and_twelve_digits_of_the_id():
    assert image().stem("0123456789abcdef" * 4) == "a-red-house-7-gentle-0123456789ab"
    assert image(prompt_name="owl").stem("f" * 64) == "owl-7-gentle-ffffffffffff"


def test_the_exclude_of_an_image_is_toml_with_the_keys_asked_for():
    prompt = 'quotes " and \\ and \x7f and\nlines'
    table = tomli.loads(exclude_for(image(prompt), ("sampler", "policy", "steps", "prompt")))
    assert table == {"exclude": [{"sampler": "ab2", "policy": "gentle", "steps": 20, "prompt": prompt}]}


def test_an_included_image_is_to_be_changed_since_no_exclude_reaches_it():
    assert exclude_for(image(include=2), ("sampler", "policy")) == "change sampler or policy in include[2]"
