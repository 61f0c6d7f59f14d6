"""`anima-batch bench` with the real rknn-toolkit-lite2 wheel, under emulation."""

import json


def test_residency_opens_the_npus_contexts_and_releases_them(board):
    words = ("--backend", "rknn", "--model-set", "board-book", "--dwell", "0", "--min-available-mib", "0")
    pools = ("--pool", "1", "--pool", "3")
    ended = board.emulate("-m", "anima_batch", "bench", "residency", *words, *pools, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [len(entry["piling"]) for entry in found["pools"]] == [1, 3]
    sizes = [path.stat().st_size for path in sorted((board.folder / "models/board-book").rglob("00.*.rknn"))]
    assert found["pools"][1]["piling"][-1]["file_bytes"] == sum(sizes)
    board.wait_for_release()
