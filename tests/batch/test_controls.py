"""Equal-cost controls, planned into a job on request."""

from anima_batch.batch.controls import plan_controls
from anima_batch.job import FullPolicy, GuidanceReusePolicy, ImageRequest, JobImage, SpectrumPolicy
from anima_batch.sampling import planned_passes

POLICIES = {"full": FullPolicy(), "spectrum": SpectrumPolicy(), "thrifty": GuidanceReusePolicy()}


def image(policy, *, steps=20, sampler="euler", open_draw=None, **fields):
    request = ImageRequest(
        prompt="an owl", seed=0, width=128, height=128, steps=steps, sampler=sampler, policy=POLICIES[policy], **fields
    )
    return JobImage(request, "owl", policy, open_draw)


def controls(*images):
    return [(found.request.sampler, found.request.steps) for found in plan_controls(images)[0]]


def test_a_control_takes_as_many_passes_plain():
    (found,), warnings = plan_controls([image("spectrum")])
    assert sum(planned_passes(found.request)) == sum(planned_passes(image("spectrum").request)) == 22
    assert (found.policy_name, found.request.policy, found.prompt_name) == ("full", FullPolicy(), "owl")
    assert warnings == []


def test_a_control_keeps_the_sampler_and_takes_an_odd_pass_more():
    assert controls(image("thrifty", sampler="ab2")) == [("ab2", 17)]


def test_plain_images_need_no_control_and_those_that_are_there_are_not_made_twice():
    assert controls(image("full"), image("full", steps=11), image("spectrum")) == []
    assert controls(image("spectrum"), image("spectrum", open_draw=1), image("spectrum")) == [("euler", 11)] * 2


def test_without_guidance_a_step_is_one_pass():
    assert controls(image("spectrum", guidance_scale=1.0)) == [("euler", 11)]


def test_a_plan_counts_controls_on_request_only(workspace):
    text = "[defaults]\nprompt = 'a'\n[matrix]\nseed = { random = 2 }\npolicy = ['full', 'spectrum']\n"
    job = workspace.write_job(text)
    assert len(workspace.json("plan", job)["images"]) == 4
    planned = workspace.json("plan", job, "--with-controls")["images"]
    assert [row["passes"] for row in planned] == [40, 22, 40, 22, 22, 22]


def test_controls_count_towards_max_images(workspace):
    job = workspace.write_job(
        "max_images = 2\n[defaults]\nprompt = 'a'\nseed = 1\n[matrix]\npolicy = ['full', 'spectrum']\n"
    )
    workspace.run("plan", job)
    refused = workspace.run("plan", job, "--with-controls", check=2)
    assert "max_images: must be at least the 3 images asked for, 1 controls among them, got 2" in refused.stderr


def test_kept_latents_are_counted_into_the_disk_that_a_plan_asks_for(workspace):
    text = "[defaults]\nprompt = 'a'\nseed = 1\nsteps = 5\n"
    plain = workspace.json("plan", workspace.write_job(text))["disk_bytes"]
    kept = workspace.json("plan", workspace.write_job(f"[run]\nkeep_latents = true\n{text}"))["disk_bytes"]
    assert kept - plain == 5 * 16 * 16 * 16 * 4
