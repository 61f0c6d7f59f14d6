"""With TLS on, who has no certificate of the fleet's authority is not heard."""

import re
import subprocess
from pathlib import Path

import pytest
from boards import JOB, fleet_in

DOCS = Path(__file__).parents[2] / "docs/fleet.md"


def make_authority(folder, names, need_tool):
    """The commands of docs/fleet.md, as they stand there."""
    need_tool("openssl")
    folder.mkdir()
    (block,) = [text for text in re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL) if "openssl" in text]
    script = re.sub(r"for name in .*; do", f"for name in {' '.join(names)}; do", block)
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, capture_output=True)


def options(folder, name):
    return (
        "--tls-ca-file",
        f"{folder}/ca.pem",
        "--tls-cert",
        f"{folder}/{name}.pem",
        "--tls-key",
        f"{folder}/{name}.key",
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, need_tool):
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder / "ours", ["scheduler", "desk", "ada"], need_tool)
    make_authority(folder / "theirs", ["desk"], need_tool)
    with fleet_in(folder) as fleet:
        fleet.tls = options(folder / "ours", "scheduler")
        fleet.start_scheduler("--protocol", "tls", *fleet.tls)
        fleet.tls = options(folder / "ours", "ada")
        fleet.start_boards("ada")
        yield fleet


def test_who_has_a_certificate_of_the_authority_is_served(fleet):
    fleet.tls = options(fleet.folder / "ours", "desk")
    assert fleet.run(fleet.driver.write_job(JOB.format(seeds=1))).stdout.startswith("4 done")


def test_who_has_none_is_refused(fleet):
    job = fleet.driver.write_job(JOB.format(seeds=1), "other")
    open_address = fleet.address.replace("tls:", "tcp:")
    ended = fleet.driver.run("run", job, "--dask", open_address, check=4)
    assert "no scheduler answers" in ended.stderr
    assert fleet.driver.manifests("other") == {}


def test_who_has_another_authoritys_is_refused(fleet):
    job = fleet.driver.write_job(JOB.format(seeds=1), "other")
    ended = fleet.driver.run("run", job, "--dask", fleet.address, *options(fleet.folder / "theirs", "desk"), check=4)
    assert "no scheduler answers" in ended.stderr
    assert "certificate verify failed" in ended.stderr
    assert fleet.driver.manifests("other") == {}


def test_our_certificate_under_their_authority_is_refused(fleet):
    """The client would trust the scheduler; the scheduler does not trust the client."""
    ours, theirs = fleet.folder / "ours", fleet.folder / "theirs"
    mixed = ("--tls-ca-file", f"{ours}/ca.pem", "--tls-cert", f"{theirs}/desk.pem", "--tls-key", f"{theirs}/desk.key")
    job = fleet.driver.write_job(JOB.format(seeds=1), "other")
    ended = fleet.driver.run("run", job, "--dask", fleet.address, *mixed, check=4)
    assert "no scheduler answers" in ended.stderr
    assert fleet.driver.manifests("other") == {}
