"""The timing tables: what is built in follows from the published figures, and a bad file is told in one line."""

import json

import pytest

from anima_batch.board import BRANCHES, list_tables, load_table
from anima_batch.errors import UsageError

# Power SMPS, August 2026, seconds on the ROCK 5C; the tolerances below are one unit of the last digit of the table.
LIFECYCLE = {"self_attn": 0.423, "cross_attn": 0.200, "mlp": 0.510}  # a model
PHASES = {"load": 13.96, "init": 12.90, "release": 4.84}  # all 84 models
NPU = {"self_attn": 24.00, "cross_attn": 7.45, "mlp": 44.76}  # a step of two passes
NOT_NPU, ALL_LIFECYCLES, FILES_GB = 44.19, 31.71, 3.99


@pytest.fixture(scope="module")
def board():
    return load_table("rock-5c")


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_published_lifecycle_of_a_model_is_divided_as_the_phases_of_all_are(board, branch):
    rounding = ALL_LIFECYCLES / (28 * sum(LIFECYCLE.values()))
    for phase, seconds in PHASES.items():
        share = seconds / sum(PHASES.values())
        found = getattr(board.times(branch), f"{phase}_seconds")
        assert found == pytest.approx(LIFECYCLE[branch] * rounding * share, abs=1e-6)


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_run_is_a_56th_of_the_published_seconds_of_its_branch(board, branch):
    assert board.times(branch).run_seconds == pytest.approx(NPU[branch] / 56, abs=1e-6)


def test_the_lifecycle_of_a_pass_and_of_each_phase_are_the_published_ones(board):
    assert board.lifecycle_seconds == pytest.approx(ALL_LIFECYCLES, abs=0.005)
    for phase, seconds in PHASES.items():
        total = 28 * sum(getattr(board.times(branch), f"{phase}_seconds") for branch in BRANCHES)
        assert total == pytest.approx(seconds, abs=0.01)  # the three add up to 31.70


def test_the_hosts_work_is_what_the_published_step_leaves(board):
    calls = [board.times(branch).prepare_seconds + board.times(branch).finish_seconds for branch in BRANCHES]
    step = 56 * sum(calls) + board.begin_seconds + board.end_seconds
    assert step == pytest.approx(NOT_NPU - ALL_LIFECYCLES, abs=1e-4)
    assert calls[0] * 6 > 0.1658  # of one block, AdaLN and residual sums alone


def test_the_files_add_up_to_the_published_size(board):
    assert 28 * board.block_bytes == pytest.approx(FILES_GB * 1e9, rel=1e-6)


def test_a_table_that_was_written_as_json_is_read_as_it_was(board, tmp_path):
    path = tmp_path / "here.json"
    path.write_text(board.model_dump_json())
    assert load_table(str(path)) == board


def test_scaling_multiplies_runs_and_the_hosts_work_and_leaves_the_lifecycle(board):
    small = board.scale(blocks=4, tokens=256)
    assert (small.blocks, small.times("mlp").run_seconds) == (4, pytest.approx(board.times("mlp").run_seconds / 4))
    assert small.times("mlp").finish_seconds == pytest.approx(board.times("mlp").finish_seconds / 4)
    assert small.times("mlp").load_seconds == board.times("mlp").load_seconds
    assert small.decode_seconds == pytest.approx(155.04 / 4)
    assert small.encode_seconds is None
    assert board.scale(board.blocks, board.tokens) == board


def test_the_name_of_no_table_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"must be one of rock-5c, or a file that .* wrote, got: No such file"):
        load_table(str(tmp_path / "rock-6"))
    assert list_tables() == ["rock-5c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 0}, "blocks: .*greater than or equal to 1, got 0"),
        ({"cores": "many"}, "cores: .*valid integer.*, got 'many'"),
        ({"speed": 1}, "speed: .*not permitted, got 1"),
        ({"decode_seconds": float("inf")}, "decode_seconds: .*finite number, got inf"),
        ({"branches": {}}, "branches.self_attn: Field required, got {}"),
    ],
)
def test_a_bad_value_is_told_with_its_key_and_what_was_got(board, change, message, tmp_path):
    path = tmp_path / "here.json"
    path.write_text(json.dumps({**board.model_dump(mode="json"), **change}))
    with pytest.raises(UsageError, match=f"^{path}: {message}$") as caught:
        load_table(str(path))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("name", "content"), [("a.json", b"{"), ("a.toml", b"x ="), ("b.toml", b"\xff"), ("c", b"[[")])
def test_a_file_that_is_no_table_is_told_in_one_line(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"^{path}: a timing table must be TOML or JSON: ") as caught:
        load_table(str(path))
    assert len(caught.value.lines) == 1


def test_a_table_that_is_not_a_table_is_refused(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(UsageError, match=r"the table: .*, got "):
        load_table(str(path))
