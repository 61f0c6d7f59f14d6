"""Names in hostile manifests, and links in a hostile workspace, make a run touch nothing outside the job's folders."""

import json
import shutil

import pytest
from command import Workspace
from fuzz.seals import seal_manifest

JOB = '[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = [1, 2]\n'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two finished jobs, `job` and `other`."""
    workspace = Workspace(tmp_path_factory.mktemp("finished") / "workspace")
    workspace.run("run", workspace.write_job(JOB))
    workspace.run("run", workspace.write_job(JOB.replace("[1, 2]", "[8, 9]"), "other"))
    return workspace.folder


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "workspace")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious.png").write_bytes(b"precious")
    return Workspace(tmp_path / "workspace")


def outside(workspace):
    return workspace.folder.parent / "outside"


def stock(folder):
    """Inode, time and content of every file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink()]
    return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns, path.read_bytes()) for path in files}


def edit_manifest(workspace, change):
    """Change the JSON of the job's first manifest, and make its own digest right again; its path."""
    path = min((workspace.folder / "manifests/job").glob("*.json"))
    content = json.loads(path.read_text())
    change(content)
    path.write_bytes(seal_manifest(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"))
    return path


def other_picture(workspace):
    return str(min((workspace.folder / "outputs/other").glob("*.png")).relative_to(workspace.folder))


INSIDE = {
    "another job's picture": other_picture,
    "the job file": lambda workspace: "jobs/job.toml",
    "the pinned job": lambda workspace: "outputs/job/job.json",
    "a manifest": lambda workspace: "manifests/other",
    "a picture of another image": lambda workspace: f"outputs/job/{workspace.pictures()[1].name}",
    "through a link": lambda workspace: "link/precious.png",
    "nothing": lambda workspace: "outputs/job/none.png",
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_manifest_that_names_another_file_moves_nothing_but_itself(copied, name):
    (copied.folder / "link").symlink_to(outside(copied))
    named = INSIDE[name](copied)
    path = edit_manifest(copied, lambda content: content["image"].update(path=named))
    before = {**stock(copied.folder / "jobs"), **stock(copied.folder / "outputs/other"), **stock(outside(copied))}
    kept = {entry: found for entry, found in stock(copied.folder / "outputs/job").items() if entry.suffix == ".png"}
    ended = copied.run("run", "jobs/job.toml")
    assert ended.stdout.startswith("1 done, 1 done before") or ended.stdout.startswith("2 done"), ended.stderr
    assert path.with_name(f"{path.name}.aside-1").exists()
    after = {**stock(copied.folder / "jobs"), **stock(copied.folder / "outputs/other"), **stock(outside(copied))}
    assert after == before
    contents = {found[2] for found in stock(copied.folder / "outputs/job").values()}
    assert {found[2] for found in kept.values()} <= contents
    copied.run("run", "jobs/job.toml")
    copied.run("verify", "jobs/job.toml")


@pytest.mark.parametrize(
    "path", ["../outside/precious.png", "{outside}/precious.png", "outputs/../../outside/precious.png"]
)
def test_a_manifest_that_leads_outside_is_set_aside_unfollowed(copied, path):
    named = path.format(outside=outside(copied))
    manifest = edit_manifest(copied, lambda content: content["image"].update(path=named))
    before = stock(outside(copied))
    ended = copied.run("run", "jobs/job.toml")
    assert "must be a path below the folder" in ended.stderr
    assert manifest.with_name(f"{manifest.name}.aside-1").exists()
    assert stock(outside(copied)) == before


@pytest.mark.parametrize("suffix", ["", ".tmp"])
@pytest.mark.parametrize("pattern", ["outputs/job/*.png", "manifests/job/*.json", "outputs/job/job.json"])
def test_a_link_in_place_of_a_file_is_replaced_and_what_it_leads_to_stays(copied, pattern, suffix):
    path = min(copied.folder.glob(pattern))
    text = copied.folder / "jobs/job.toml"
    text.write_text(text.read_text().replace("[1, 2]", "[1, 2, 3]"))  # the pin is written anew as well
    path.unlink()
    link = path.with_name(path.name + suffix)
    link.symlink_to(outside(copied) / "precious.png")
    before = stock(outside(copied))
    copied.run("run", "jobs/job.toml", check=2 if pattern.endswith("job.json") and not suffix else 0)
    assert stock(outside(copied)) == before
    if not pattern.endswith("job.json"):
        assert path.is_file()
        assert not path.is_symlink()


def test_a_hard_link_that_was_left_as_temporary_file_is_not_written_through(copied):
    path = copied.pictures()[0]
    path.unlink()
    path.with_name(f"{path.name}.tmp").hardlink_to(outside(copied) / "precious.png")
    copied.run("run", "jobs/job.toml")
    assert (outside(copied) / "precious.png").read_bytes() == b"precious"
