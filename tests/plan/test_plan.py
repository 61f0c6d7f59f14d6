"""What is to be done with each image, and how long it takes: pure cases."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.job import ImageRequest, JobImage
from anima_batch.plan import MANIFEST_BYTES, Measurement, Progress, Rates, Sizes, Work, Workload, make_plan

PASSES = (2, 2, 0, 1, 2)  # of each step
SMALL, WIDE = 128 * 128, 192 * 128


def measured(pixels, rate, decode=1.0, encode=0.0):
    """Of an image of four steps that ran two passes each, and encoded its prompts."""
    return Measurement(Work(pixels, 1, 8, 4, 0, 1), 8 * rate, encode_seconds=encode, decode_seconds=decode)


KNOWN = Rates((measured(SMALL, 2.0, decode=4.0, encode=3.0),))


def image(seed=1, width=128, prompt="a boat", **fields):
    request = ImageRequest(prompt=prompt, seed=seed, width=width, height=128, steps=len(PASSES), **fields)
    return JobImage(request, "boat", "full"), f"{seed:064x}", PASSES


def plan_one(progress, rates=KNOWN, **options):
    """Of an image whose prompts are kept, unless the options say otherwise."""
    entry, options = image(), {"kept": ("a boat", ""), **options}
    return make_plan([entry], {entry[1]: progress}, rates, **options).images[0]


def test_an_image_of_which_nothing_is_on_disk_is_run_from_the_start():
    (planned,) = make_plan([image()], {}, KNOWN).images
    assert (planned.action, planned.status, planned.from_step, planned.passes) == ("run", "waiting", 0, 7)
    assert planned.stem == "boat-1-full-000000000000"
    assert planned.pixels == SMALL


@pytest.mark.parametrize(("step", "left"), [(1, 5), (2, 3), (3, 3), (4, 2), (5, 0)])
def test_a_begun_image_is_resumed_with_the_passes_of_the_steps_left(step, left):
    planned = plan_one(Progress("begun", step, "checkpoint"))
    assert (planned.action, planned.status, planned.from_step, planned.passes) == ("resume", "begun", step, left)
    assert planned.reason == "checkpoint"
    assert planned.estimated_seconds == pytest.approx(left * 2 + 4)


def test_an_image_begun_without_a_step_done_is_run():
    planned = plan_one(Progress("begun", 0))
    assert (planned.action, planned.status, planned.passes) == ("run", "begun", 7)


def test_a_begun_image_whose_embeddings_were_lost_encodes_its_prompts_again():
    planned = plan_one(Progress("begun", 3), kept=("a boat",))
    assert (planned.new_prompts, planned.estimated_seconds) == (1, pytest.approx(3 * 2 + 4 + 3))


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_done_and_a_failed_image_are_skipped_and_cost_nothing(status):
    planned = plan_one(Progress(status, 5, "because"), Rates())
    assert (planned.action, planned.status, planned.passes, planned.estimated_seconds) == ("skip", status, 0, 0)
    assert planned.reason == "because"


def test_a_failed_image_goes_on_from_its_checkpoint_when_asked_for():
    planned = plan_one(Progress("failed", 3), retry_failed=True)
    assert (planned.action, planned.status, planned.from_step, planned.passes) == ("resume", "failed", 3, 3)


def test_a_failed_image_without_a_checkpoint_is_run_again_from_the_start_when_asked_for():
    planned = plan_one(Progress("failed"), retry_failed=True)
    assert (planned.action, planned.status, planned.from_step, planned.passes) == ("run", "failed", 0, 7)


def test_a_done_image_is_skipped_even_when_failed_ones_are_tried_again():
    assert plan_one(Progress("done"), retry_failed=True).action == "skip"


def test_a_plan_keeps_the_order_and_counts_by_status():
    entries = [image(seed) for seed in (5, 3, 9, 1, 7)]
    statuses = ["done", "begun", "failed", "waiting", "done"]
    progress = {
        entry[1]: Progress(status, 2 * (status == "begun")) for entry, status in zip(entries, statuses, strict=True)
    }
    plan = make_plan(entries, progress, KNOWN)
    assert [planned.image.request.seed for planned in plan.images] == [5, 3, 9, 1, 7]
    assert [planned.image.request.seed for planned in plan.pending] == [3, 1]
    assert {status: plan.count(status) for status in ("done", "begun", "failed", "waiting")} == {
        "done": 2, "begun": 1, "failed": 1, "waiting": 1,
    }  # fmt: skip
    assert plan.passes == 3 + 7
    assert plan.estimated_seconds == pytest.approx((3 * 2 + 4 + 3) + (7 * 2 + 4))


def test_each_prompt_is_encoded_once_by_the_first_image_that_has_it():
    entries = [
        image(1, prompt="done before"),
        image(2, prompt="kept"),
        image(3, prompt="a boat"),
        image(4, prompt="an owl"),
        image(5, prompt="a boat"),
        image(6, prompt="a bird", negative_prompt="a bird"),
        image(7, prompt="a fish", negative_prompt="never read", guidance_scale=1.0),
        image(8, prompt="a cat", negative_prompt="a dog"),
        image(9, prompt="a dog", negative_prompt="an owl"),
    ]
    plan = make_plan(entries, {entries[0][1]: Progress("done")}, KNOWN, kept={"kept", "done before"})
    assert [planned.new_prompts for planned in plan.images] == [0, 1, 1, 1, 0, 1, 1, 2, 0]
    encodings = [planned.work_after(0).encodings for planned in plan.pending]
    assert encodings == [1, 1, 1, 0, 1, 1, 1, 0]
    assert not any(planned.work_after(1).encodings for planned in plan.pending)
    assert plan.estimated_seconds == pytest.approx(8 * (7 * 2 + 4) + 6 * 3)
    assert Workload.of(plan.pending).estimate(KNOWN) == pytest.approx(plan.estimated_seconds)


def test_the_time_is_none_until_an_image_was_measured_and_zero_when_nothing_is_left():
    entries = [image(1), image(2)]
    assert make_plan(entries, {}, Rates()).estimated_seconds is None
    assert make_plan(entries, {}, Rates()).images[0].estimated_seconds is None
    assert Workload.of(make_plan(entries, {}, Rates()).pending).estimate(Rates()) is None
    done = {entry[1]: Progress("done") for entry in entries}
    assert make_plan(entries, done, Rates()).estimated_seconds == 0


def test_a_plan_of_simulated_times_says_so():
    simulated = Rates(simulated=lambda work: 10.0 * work.passes)
    plan = make_plan([image(1), image(2)], {}, simulated)
    assert plan.simulated
    assert plan.estimated_seconds == 2 * 70
    assert not make_plan([image(1)], {}, KNOWN).simulated


PROGRESS = st.one_of(
    st.just(Progress()),
    st.just(Progress("done", 5)),
    st.just(Progress("failed", 2)),
    st.builds(Progress, st.just("begun"), st.integers(0, 5)),
)


@settings(deadline=None)  # a machine may be busy
@given(
    found=st.lists(st.tuples(PROGRESS, st.sampled_from([128, 192, 256])), max_size=12),
    prompts=st.lists(st.sampled_from("abc"), min_size=12, max_size=12),
    kept=st.sets(st.sampled_from("abc")),
    encode=st.floats(0, 100),
    retry=st.booleans(),
)
def test_a_workload_takes_as_long_as_the_sum_of_its_images_and_shrinks_with_each(found, prompts, kept, encode, retry):
    """The sums are taken in another order, hence the tolerance."""
    rates = Rates((measured(SMALL, 1.5, 2.5, encode), measured(WIDE, 4.0, 7.0, encode)))
    entries = [image(seed, width, prompts[seed]) for seed, (_, width) in enumerate(found)]
    progress = {entry[1]: what for entry, (what, _) in zip(entries, found, strict=True)}
    plan = make_plan(entries, progress, rates, kept=kept, retry_failed=retry)
    left, pending = Workload.of(plan.pending), list(plan.pending)
    while True:
        expected = math.fsum(planned.estimated_seconds for planned in pending)
        assert left.estimate(rates) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        if not pending:
            break
        left = left.without(pending.pop(0))


def test_the_disk_holds_every_pending_picture_and_manifest_and_one_images_checkpoints():
    entries = [image(1), image(2, width=192), image(3)]
    plan = make_plan(entries, {entries[0][1]: Progress("done")}, KNOWN, sizes=Sizes(checkpoint_bytes=1_000_000))
    pictures = 3 * (SMALL + WIDE) * 0.75
    assert plan.disk_bytes == pictures + 2 * MANIFEST_BYTES + 1_000_000


def test_the_disk_holds_the_embeddings_of_each_prompt_that_is_still_to_be_encoded():
    entries = [
        image(1, prompt="a boat", negative_prompt="blurry"),
        image(2, prompt="a boat", negative_prompt="blurry"),
        image(3, prompt="an owl", negative_prompt="unused", guidance_scale=1.0),
        image(4, prompt="encoded", negative_prompt="before"),
        image(5, prompt="finished", negative_prompt="before"),
    ]
    progress, kept = {entries[3][1]: Progress("begun", 2), entries[4][1]: Progress("done")}, {"encoded", "before"}
    without = make_plan(entries, progress, KNOWN, kept=kept).disk_bytes
    plan = make_plan(entries, progress, KNOWN, kept=kept, sizes=Sizes(embeds_bytes=1_000_000))
    assert plan.disk_bytes == without + 3_000_000
    assert plan.disk_bytes_of(plan.pending[:1]) == without - 3 * (SMALL * 3 * 0.75 + MANIFEST_BYTES) + 2_000_000


def test_nothing_pending_needs_no_disk():
    entry = image()
    assert make_plan([entry], {entry[1]: Progress("done")}, KNOWN, sizes=Sizes(1_000_000, 1_000)).disk_bytes == 0
    assert make_plan([], {}, KNOWN).images == ()
