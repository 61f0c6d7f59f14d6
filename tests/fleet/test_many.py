"""Ten thousand images that cost nothing go through the driver: its memory stays, and so does its pace."""

import functools
import gc
import time

import numpy as np
import psutil
from boards import fleet_in
from instant_images import make_instantly

from anima_batch.fleet import Connection, make_on_fleet
from anima_batch.runner import ImageDone, RunOptions, StopRequest, run_job

IMAGES = 10_000
MIB = 1 << 20


def test_ten_thousand_images(tmp_path):
    seconds, resident = [], []
    with fleet_in(tmp_path) as fleet:
        fleet.start_scheduler()
        fleet.start_boards("ada", "bela", "cleo", "dora")
        job = fleet.driver.write_job(f'[defaults]\nprompt = "a boat"\nsteps = 4\n[matrix]\nseed = ["1..{IMAGES}"]\n')
        make = functools.partial(make_on_fleet, connection=Connection(fleet.address), make=make_instantly)
        events = run_job(fleet.driver.folder / job, fleet.driver.folder, RunOptions(), StopRequest(), make)
        done = 0
        for event in events:
            if isinstance(event, ImageDone):
                done += 1
                if done % 500 == 0:
                    gc.collect()
                    seconds.append(time.perf_counter())
                    resident.append(psutil.Process().memory_info().rss / MIB)
        scheduler = psutil.Process(fleet.processes["scheduler"].pid).memory_info().rss / MIB
    assert done == IMAGES
    paces = np.diff(seconds) / 500
    growth = resident[-1] - resident[len(resident) // 4]  # over three quarters of the images
    print(f"{1000 * np.median(paces):.1f} ms an image, {growth:+.1f} MiB, scheduler {scheduler:.0f} MiB")
    assert np.median(paces[-5:]) < 2 * np.median(paces[:5])  # how long it takes here is in docs/fleet.md
    assert growth < 16
    assert scheduler < 400
