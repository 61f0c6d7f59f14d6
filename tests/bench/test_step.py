"""The measurements of a step and of lifecycles, run for real on two blocks of the built-in set."""

import itertools
import json
from dataclasses import dataclass

import pytest
from command import Workspace
from PIL import Image

from anima_batch.board import load_table, simulate
from anima_batch.board.choice import Choice

BLOCKS = 2
GRAPHS = 3 * BLOCKS


@dataclass(frozen=True)
class Measured:
    """What the command wrote and printed."""

    workspace: Workspace
    found: dict
    told: list

    def timeline(self, staging, interleave):
        (choice,) = (c for c in self.found["choices"] if (c["staging"], c["interleave"]) == (staging, interleave))
        return choice["timeline"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("bench"))
    command = ("bench", "step", "--blocks", str(BLOCKS), "--pinned", "2", "--size", "128x192", "--rounds", "2")
    ended = workspace.run(*command, "--table", "table.json", "--figure", "step.png", "--json")
    told = [line.rpartition(": ")[::2] for line in ended.stderr.splitlines() if line.endswith(" s")]
    return Measured(workspace, json.loads(ended.stdout), told)


def overlaps(timeline, first, second):
    """Whether work of two phases was ever under way at once."""
    spans = [[(start, end) for phase, _, start, end in timeline if phase in phases] for phases in (first, second)]
    return any(a[0] < b[1] and b[0] < a[1] for a, b in itertools.product(*spans) if a is not b)


def test_every_staging_is_measured_in_both_orders_and_gives_the_same_bits(measured):
    choices = [(choice["staging"], choice["interleave"]) for choice in measured.found["choices"]]
    stagings = ("on-demand", "pinned", "resident", "ahead")
    assert choices == list(itertools.product(stagings, (False, True)))
    assert len({choice["latents_xxh3"] for choice in measured.found["choices"]}) == 1


def test_the_choices_take_turns_and_of_two_rounds_the_faster_one_is_shown(measured):
    names = [name for name, _ in measured.told]
    assert names[: len(names) // 2] == names[len(names) // 2 :] == list(dict.fromkeys(names))
    for name, choice in zip(names, measured.found["choices"], strict=False):
        fastest = min(float(seconds.removesuffix(" s")) for other, seconds in measured.told if other == name)
        assert choice["step_seconds"] == pytest.approx(fastest, abs=0.006)


def test_the_timeline_holds_every_piece_of_work_within_the_step(measured):
    opened = {"on-demand": GRAPHS, "ahead": GRAPHS, "pinned": GRAPHS - 2, "resident": 0}
    for choice in measured.found["choices"]:
        counts = dict.fromkeys(("load", "init", "run", "release", "host"), 0)
        for phase, _, start, end in choice["timeline"]:
            counts[phase] += 1
            assert 0 <= start <= end
        # Where the timeline begins and where the step does may lie a little apart, when another process had its turn.
        first, last = min(span[2] for span in choice["timeline"]), max(span[3] for span in choice["timeline"])
        assert last - first <= choice["step_seconds"]
        lifecycle = opened[choice["staging"]]
        # The host prepares and finishes each graph's work for both streams, begins once and ends twice.
        host = 2 * (GRAPHS + 1) + 3
        assert counts == {"load": lifecycle, "init": lifecycle, "release": lifecycle, "run": 2 * GRAPHS, "host": host}
        for phase, seconds in choice["timings"].items():
            spans = [end - start for kind, _, start, end in choice["timeline"] if kind == phase]
            assert seconds == pytest.approx(sum(spans))
        assert choice["busy_share"] == pytest.approx(choice["timings"]["run"] / choice["step_seconds"])


def test_one_accelerator_never_runs_two_graphs_at_once(measured):
    for choice in measured.found["choices"]:
        runs = sorted((start, end) for phase, _, start, end in choice["timeline"] if phase == "run")
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs))


def test_in_the_plain_order_on_demand_nothing_overlaps(measured):
    spans = sorted((start, end) for _, _, start, end in measured.timeline("on-demand", interleave=False))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_ahead_graphs_are_opened_while_others_run_and_elsewhere_they_are_not(measured):
    assert overlaps(measured.timeline("ahead", interleave=True), ("load", "init"), ("run",))
    assert not overlaps(measured.timeline("on-demand", interleave=True), ("load", "init"), ("run",))


def test_the_table_that_was_written_is_the_one_that_was_shown_and_the_simulation_reads_it(measured):
    table = load_table(str(measured.workspace.folder / "table.json"))
    assert table.model_dump(mode="json") == measured.found["table"]
    assert (table.blocks, table.width, table.height, table.backend, table.run_cpus) == (BLOCKS, 128, 192, "onnx", 1)
    first = measured.found["choices"][0]
    predicted = simulate(table, [2], Choice("on-demand", interleave=False)).computed_step_seconds
    assert predicted == pytest.approx(first["predicted_seconds"])
    assert predicted == pytest.approx(first["step_seconds"], rel=0.02)  # it is made of this step


def test_the_figure_shows_all_choices(measured):
    with Image.open(measured.workspace.folder / "step.png") as image:
        assert image.width == 1500
        assert image.height > 8 * 100


def test_a_size_that_the_set_does_not_have_is_a_usage_error(workspace):
    ended = workspace.run("bench", "step", "--size", "512x512", check=2)
    assert "--size: must be one of 128x128, " in ended.stderr
    assert ended.stderr.rstrip().endswith("for picture-book, got 512x512")


def test_the_lifecycle_of_each_branch_adds_up_to_a_pass(workspace):
    found = json.loads(workspace.run("bench", "lifecycle", "--rounds", "2", "--json").stdout)
    assert [branch["branch"] for branch in found["branches"]] == ["self_attn", "cross_attn", "mlp"]
    total = 0.0
    for branch in found["branches"]:
        phases = [branch[f"{phase}_seconds"] for phase in ("load", "init", "release")]
        assert min(phases) > 0
        assert branch["bytes"] > 10_000
        total += branch["graphs"] * sum(phases)
    assert found["pass_seconds"] == pytest.approx(total)


def test_both_tables_are_shown_as_text(workspace):
    shown = workspace.run("bench", "lifecycle", "--rounds", "1").stdout
    assert "a pass in all: " in shown
    shown = workspace.run("bench", "step", "--pinned", "3").stdout
    assert sum(line.rstrip().endswith(" same") for line in shown.splitlines()) == 8
    (table,) = (workspace.folder / "outputs/.timing").iterdir()  # where `plan` looks for it
    digest = workspace.json("models", "show", "picture-book")["digest"]
    assert table.name == f"{digest[:12]}-onnx.json"
    assert load_table(str(table)).model_set == digest
