"""A job file that is written and read again asks for the same images."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.job import (
    GuidanceReusePolicy,
    ImageRequest,
    SpectrumPolicy,
    expand_job,
    load_job,
    render_job,
    request_json,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
POLICIES = {
    "full": None,
    "spectrum": SpectrumPolicy(),
    "gentle": SpectrumPolicy(tail_steps=2, blend=0.1 + 0.2, penalize_constant=False, ridge_lambda=1e-07),
    "thrifty": GuidanceReusePolicy(uncond_every=3),
}
SIZES = [(128, 128), (192, 128)]
requests = st.fixed_dictionaries(
    {
        "prompt": TEXTS,
        "negative_prompt": TEXTS,
        "seed": st.integers(0, 2**64 - 1),
        "width": st.sampled_from([128, 192]),
        "height": st.just(128),
        "steps": st.integers(1, 200),
        "guidance_scale": st.floats(0, 100),
        "shift": st.floats(1e-9, 100),
        "schedule": st.sampled_from(["simple", "normal"]),
        "sampler": st.sampled_from(["euler", "ab2"]),
        "noise": st.sampled_from(["torch", "philox"]),
        "policy": st.sampled_from(list(POLICIES)),
    }
)


@settings(max_examples=100, deadline=None)
@given(images=st.lists(requests, min_size=1, max_size=5, unique_by=repr), comment=TEXTS)
def test_any_images_come_back_in_their_order(tmp_path_factory, images, comment):
    policies = {name: policy for name, policy in POLICIES.items() if policy is not None}
    path: Path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(render_job(images, head={"name": "x"}, policies=policies, comments=[comment]), encoding="utf-8")
    found = [image.request for image in expand_job(load_job(path, path.parent), SIZES).images]
    wanted = []
    for image in images:
        policy = policies.get(image["policy"])
        wanted.append(ImageRequest(**image | {"policy": policy.model_dump() if policy else {"kind": "full"}}))
    assert [request_json(request) for request in found] == [request_json(request) for request in wanted]


def test_what_images_share_stands_once_and_the_rest_advances_together():
    images = [
        {"prompt": "a", "seed": 1, "steps": 9},
        {"prompt": "b", "seed": None, "steps": 9},
        {"prompt": "c", "seed": None, "steps": 9},
        {"prompt": "d", "seed": 2, "steps": 9},
    ]
    assert render_job(images, head={"model_set": "m"}, comments=["two\nlines"]) == (
        '# two\\nlines\nschema_version = 1\nmodel_set = "m"\n\n[defaults]\nsteps = 9\n\n[matrix]\n'
        'prompt = ["a", "b", "c", "d"]\nseed = [1, { random = 2 }, 2]\nzip = [["prompt", "seed"]]\n'
    )


def test_one_image_with_a_seed_to_draw_is_a_matrix_of_that():
    text = render_job([{"prompt": "a", "seed": None}], head={})
    assert text == 'schema_version = 1\n\n[defaults]\nprompt = "a"\n\n[matrix]\nseed = [{ random = 1 }]\n'
