"""The real command, on this machine and on recorded trees."""

import json
import os
import platform
import subprocess

import pytest
from recorded_tree import TREES

JOB = "[defaults]\nprompt = 'a'\nseed = 1\nsteps = 4\n"
KEYS = {"name": str, "status": str, "found": str, "allowed": str, "fix": (str, type(None))}


def checks_of(document):
    assert list(document) == ["checks"]
    for check in document["checks"]:
        assert list(check) == list(KEYS)
        assert all(isinstance(check[key], kind) for key, kind in KEYS.items())
        assert check["status"] in ("ok", "warn", "fail")
        assert (check["fix"] is None) == (check["status"] == "ok")
    return {check["name"]: check for check in document["checks"]}


def expected_code(checks):
    failed = {name for name, check in checks.items() if check["status"] == "fail"}
    return 0 if not failed else 5 if failed <= {"file_system", "free_space"} else 4


def test_this_machine_is_examined_and_the_exit_code_follows_the_checks(workspace):
    ended = workspace.run("doctor", "--json", check=None)
    checks = checks_of(json.loads(ended.stdout))
    assert len(checks) == 18
    assert ended.returncode == expected_code(checks)
    assert checks["kernel"]["found"] == platform.release()
    assert checks["python"]["found"] == f"{'.'.join(platform.python_version_tuple()[:2])} on {platform.machine()}"
    point = subprocess.run(
        ["df", "--output=target", str(workspace.folder)], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1]
    assert checks["file_system"]["found"].split(":")[0].endswith(f" at {point}")
    assert list(workspace.folder.iterdir()) == [workspace.folder / "jobs"]  # nothing is written


def test_a_jobs_room_is_compared_with_its_plan(workspace):
    job = workspace.write_job(JOB)
    checks = checks_of(workspace.json("doctor", job, check=None))
    megabytes = workspace.json("plan", job)["disk_bytes"] / 1e6
    assert checks["free_space"]["allowed"] == f"{megabytes:.0f} MB for 1 image"
    assert checks["backend"]["found"].startswith("onnx")


@pytest.mark.parametrize(
    ("name", "code", "failed"),
    [
        ("rock-5c", 0, set()),
        ("orange-pi-5", 0, set()),
        ("rock-5c-mainline", 4, {"npu_driver", "librknnrt"}),
        ("x86-pc", 0, set()),
    ],
)
def test_a_recorded_tree_is_examined_and_says_what_it_cannot_know(name, code, failed, workspace):
    arguments = ("doctor", "--root", str(TREES / name), "--workspace", "/home/radxa")
    checks = checks_of(workspace.json(*arguments, check=code))
    assert {name for name, check in checks.items() if check["status"] == "fail"} == failed
    for unknown in ("rknn_toolkit_lite2", "python", "clock", "free_space"):
        assert checks[unknown]["found"] == "a copied tree does not tell"


def test_the_table_has_a_row_each_and_the_fixes_below(workspace):
    root = str(TREES / "rock-5c-mainline")
    table = workspace.run("doctor", "--root", root, "--workspace", "/home/radxa", check=4).stdout
    lines = table.splitlines()
    assert lines[0].split() == ["status", "check", "found", "allowed"]
    assert any(line.startswith("fail") and "npu_driver" in line and "rocket" in line for line in lines)
    assert any(line.startswith("to mend librknnrt: sudo curl -fLo /usr/lib/librknnrt.so https://") for line in lines)
    assert lines[-1] == "9 ok, 7 warn, 2 fail"


def test_names_in_the_tree_cannot_disturb_the_terminal(copy_tree, workspace):
    root = copy_tree("rock-5c", {"proc/device-tree/model": b"\x1b[2JROCK\x9b1m\n[bold]5C\0"})
    ended = workspace.run("doctor", "--root", str(root), "--workspace", "/home/radxa")
    assert "\\x1b[2JROCK" in ended.stdout
    assert "[bold]5C" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_a_full_disk_is_said_before_the_night_and_not_after(small_disk, workspace):
    """On real file systems: tmpfs, which keeps nothing, and ext4."""
    job = workspace.write_job(JOB)
    (small_disk.folder / "jobs").mkdir()
    (small_disk.folder / job).write_bytes((workspace.folder / job).read_bytes())
    small_disk.fill()
    ended = workspace.run("doctor", job, "--workspace", str(small_disk.folder), "--json", check=5)
    checks = checks_of(json.loads(ended.stdout))
    assert checks["free_space"]["status"] == "fail"
    assert "0 MB free" in checks["free_space"]["found"]
    in_memory = checks["file_system"]["found"].startswith("tmpfs")
    assert checks["file_system"]["status"] == ("fail" if in_memory else "ok")


@pytest.mark.parametrize("small_disk", ["ext4"], indirect=True)
@pytest.mark.parametrize(
    ("option", "text", "fix"),
    [("barrier=0", "nobarrier", "remount,barrier=1"), ("ro", "read-only", "remount,rw")],
)
def test_an_ext4_that_is_mounted_badly_is_told_and_mended_by_the_command(option, text, fix, small_disk, workspace):
    def examine(code):
        return checks_of(workspace.json("doctor", "--workspace", str(small_disk.folder), check=code))["file_system"]

    subprocess.run(["mount", "-o", f"remount,{option}", str(small_disk.folder)], check=True)
    told = examine(5)
    assert told["status"] == "fail"
    assert text in told["found"]
    command = told["fix"].split(";")[0].removeprefix("sudo ")
    assert fix in command
    subprocess.run(command.split(), check=True)
    assert examine(None)["status"] == "ok"


def test_a_job_for_the_npu_fails_where_there_is_none(workspace):
    if platform.machine() == "aarch64" and os.path.exists("/proc/device-tree/compatible"):
        pytest.skip("this may be a board")
    job = workspace.write_job('backend = "rknn"\n' + JOB)
    checks = checks_of(workspace.json("doctor", job, check=4))
    assert checks["npu_driver"]["status"] == "fail"


def test_mistakes_are_usage_errors(workspace):
    assert "error: --root: must be a folder" in workspace.run("doctor", "--root", "none", check=2).stderr
    assert "error: jobs/none.toml: " in workspace.run("doctor", "jobs/none.toml", check=2).stderr
    assert "defaults.steps" in workspace.run("doctor", workspace.write_job("[defaults]\nsteps = 0\n"), check=2).stderr
