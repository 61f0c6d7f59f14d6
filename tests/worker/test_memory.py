"""What /proc says of memory, and when a process is said to grow."""

import os

import psutil
import pytest

from anima_batch.worker.memory import Memory, describe_growth, read_memory

MB = 1_000_000


def test_the_memory_of_a_process_and_of_the_machine_is_what_psutil_says():
    read = read_memory(os.getpid())
    assert read.resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert read.available == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_a_process_that_is_gone_has_no_memory():
    read = read_memory(2**22 + 1)  # above the kernel's largest pid
    assert read.resident is None
    assert str(read).startswith("it held an unknown part of memory, ")


def test_memory_is_said_in_megabytes():
    assert str(Memory(512 * MB, 300 * MB)) == "it held 512 MB, 300 MB were available"


def test_a_process_that_grows_with_every_image_is_told():
    resident = [100 * MB, *(900 * MB + 50 * MB * image for image in range(5))]
    assert describe_growth(resident) == (
        "the worker process grew with each of its last 5 images, by 50 MB: it may leak"
    )


@pytest.mark.parametrize(
    "resident",
    [
        [],
        [100 * MB, 900 * MB, 1000 * MB, 1100 * MB],  # too few after the first
        [900 * MB, 901 * MB, 902 * MB, 903 * MB, 904 * MB, 905 * MB],  # too little
        [900 * MB, 1000 * MB, 1100 * MB, 1050 * MB, 1200 * MB, 1300 * MB],  # not each time
        [5000 * MB, 5000 * MB, 5100 * MB, 5200 * MB, 5300 * MB],  # less than a tenth
    ],
)
def test_what_may_be_chance_is_not_told(resident):
    assert describe_growth(resident) is None
