"""The scheduler is lost at the worst moments: no image falls between the hands that it goes through."""

import functools

import pytest
from boards import fleet_in
from instant_images import make_instantly

from anima_batch.fleet import Connection, make_on_fleet
from anima_batch.fleet.crew import Crew, SchedulerLostError
from anima_batch.runner import BatchEnded, ImageDone, RunOptions, StopRequest, run_job

IMAGES = 12
JOB = f'[defaults]\nprompt = "a boat"\nsteps = 4\n[matrix]\nseed = ["1..{IMAGES}"]\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_scheduler()
        fleet.start_boards("ada", "bela")
        yield fleet


@pytest.mark.parametrize("call", ["give", "find_boards", "listen"])
@pytest.mark.parametrize("number", [1, 4, 7])
def test_no_image_is_lost_with_the_connection(fleet, monkeypatch, call, number):
    """The connection breaks at the n-th call of a kind; the driver connects anew, to the same scheduler."""
    right, calls = getattr(Crew, call), []

    def break_once(self, *arguments):
        calls.append(call)
        if len(calls) == number:
            raise SchedulerLostError
        return right(self, *arguments)

    monkeypatch.setattr(Crew, call, break_once)
    name = f"{call}-{number}"
    job = fleet.driver.write_job(JOB, name)
    make = functools.partial(make_on_fleet, connection=Connection(fleet.address), make=make_instantly)
    events = [*run_job(fleet.driver.folder / job, fleet.driver.folder, RunOptions(), StopRequest(), make)]
    done = [event.stem for event in events if isinstance(event, ImageDone)]
    assert len(done) == len(set(done)) == IMAGES
    assert isinstance(events[-1], BatchEnded)
    assert (events[-1].done, events[-1].waiting) == (IMAGES, 0)
    assert len(fleet.driver.manifests(name)) == IMAGES
