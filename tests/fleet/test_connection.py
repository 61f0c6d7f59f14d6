"""Nobody but this machine is spoken to without TLS."""

import ssl

import pytest

from anima_batch.errors import UsageError
from anima_batch.fleet.connection import Connection, FleetError


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"])
def test_this_machine_may_be_spoken_to_openly(address):
    assert Connection(address).is_local


@pytest.mark.parametrize("address", ["tcp://192.168.1.7:8786", "tcp://shelf.local:8786", "tcp://0.0.0.0:8786"])
def test_another_machine_may_not(address):
    with pytest.raises(UsageError, match="use tls://"):
        Connection(address)


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "http://127.0.0.1:80", "tls://shelf", "tls://shelf:port", ""])
def test_an_address_has_a_protocol_a_host_and_a_port(address):
    with pytest.raises(UsageError, match="must be tls://HOST:PORT"):
        Connection(address)


def test_tls_needs_all_three_files(tmp_path):
    there = tmp_path / "there.pem"
    there.write_text("no certificate")
    with pytest.raises(UsageError, match="--tls-cert: must be a PEM file"):
        Connection("tls://shelf:8786", tls_ca_file=there)
    with pytest.raises(UsageError, match=r"--tls-key .*gone.pem: must be a PEM file"):
        Connection("tls://shelf:8786", there, there, tmp_path / "gone.pem")
    with pytest.raises(UsageError, match="must be certificates and the key that fits"):
        Connection("tls://shelf:8786", there, there, there).security()


def test_files_without_tls_are_refused(tmp_path):
    there = tmp_path / "there.pem"
    there.touch()
    with pytest.raises(UsageError, match="--tls-ca-file: must go with tls://"):
        Connection("tcp://127.0.0.1:8786", tls_ca_file=there)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ValueError("name taken, ada"), "the scheduler refuses this board (name taken, ada)"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "no scheduler answers"),  # a ValueError too
        (ConnectionRefusedError(111, "Connection refused"), "no scheduler answers"),
    ],
)
def test_a_name_that_is_taken_is_told_from_silence(cause, said):
    error = OSError("Timed out")
    error.__cause__ = cause
    assert said in Connection("tcp://127.0.0.1:8786").describe_silence(error)


def test_a_scheduler_that_is_not_there_is_one_line():
    with pytest.raises(FleetError, match="no scheduler answers") as raised:
        Connection("tcp://127.0.0.1:1").connect()
    assert len(raised.value.lines) == 1
