"""When several boards will be done, in numbers done by hand."""

import pytest

from anima_batch.fleet.outlook import estimate_end


@pytest.mark.parametrize(
    ("boards", "seconds"),
    [
        ([], None),
        ([(0.0, 100.0)], 100.0),
        ([(20.0, 100.0)], 120.0),
        ([(0.0, 100.0), (0.0, 100.0)], 50.0),
        ([(0.0, 100.0), (0.0, 300.0)], 75.0),  # three quarters and one quarter
        ([(0.0, 100.0), (40.0, 100.0)], 70.0),  # 70 s and 30 s of it
        ([(0.0, 100.0), (500.0, 100.0)], 500.0),  # the second is busy with its own image until then
        ([(30.0, 0.0), (12.0, 0.0)], 30.0),  # nothing is left to begin
    ],
)
def test_the_end_is_when_the_last_board_ends(boards, seconds):
    assert estimate_end(boards) == (None if seconds is None else pytest.approx(seconds))
