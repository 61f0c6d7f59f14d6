"""What boards have in common."""

import pytest

from anima_batch.fleet.boards import BoardState, find_reference
from anima_batch.fleet.messages import Examined


def make_board(name, version):
    examined = None if version is None else Examined(name, {"numpy": version}, False, {}, {})
    return BoardState(name, examined=examined)


@pytest.mark.parametrize(
    ("versions", "reference"),
    [
        ({}, None),
        ({"ada": None}, None),
        ({"ada": "1", "bela": "2", "cleo": "2"}, "2"),
        ({"cleo": "2", "bela": "1"}, "1"),  # as many have another: the first by name
        ({"ada": None, "bela": "2", "cleo": "1", "dora": "1"}, "1"),
    ],
)
def test_the_measure_is_what_most_boards_have(versions, reference):
    found = find_reference(make_board(name, version) for name, version in versions.items())
    assert found == (None if reference is None else {"numpy": reference})
