"""Where the scheduler is and how it is spoken to: TLS, or this machine alone."""

from __future__ import annotations

import ipaddress
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from distributed import Client, Security
from distributed import TimeoutError as DaskTimeoutError
from distributed.versions import VersionMismatchWarning

from anima_batch.errors import AnimaBatchError, UsageError

CONNECT_SECONDS = 10

_ADDRESS = re.compile(r"(?P<protocol>[a-z]+)://(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):(?P<port>[0-9]{1,5})")


class FleetError(AnimaBatchError):
    """No scheduler, or no board that can make what is left."""

    exit_code = 4


@dataclass(frozen=True)
class Connection:
    """A scheduler's address, and who we are to it: the authority's certificate, our own, our key (PEM files)."""

    address: str
    tls_ca_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an address that anyone could speak to, and for files that are missing."""
        match = _ADDRESS.fullmatch(self.address)
        if match is None or match["protocol"] not in ("tls", "tcp"):
            raise UsageError(f"scheduler: must be tls://HOST:PORT, or tcp:// on this machine, got {self.address!r}")
        files = {"--tls-ca-file": self.tls_ca_file, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        if match["protocol"] == "tcp":
            self._refuse_open_port(match["host"], [name for name, path in files.items() if path])
            return
        for name, path in files.items():
            if path is None:
                raise UsageError(f"{name}: must be a PEM file for {self.address}, got none: see docs/fleet.md")
            if not path.is_file():
                raise UsageError(f"{name} {path}: must be a PEM file, got none there")

    def _refuse_open_port(self, host: str, needless: list[str]) -> None:
        if not _is_loopback(host):
            raise UsageError(
                f"{self.address}: tcp:// lets anyone who reaches the port run any program: use tls://, "
                "or tcp:// on 127.0.0.1 alone"
            )
        if needless:
            raise UsageError(f"{', '.join(needless)}: must go with tls://, got {self.address}")

    @property
    def is_local(self) -> bool:
        """Whether it is not encrypted, and on this machine."""
        return self.address.startswith("tcp:")

    def security(self) -> Security:
        """For Dask; raises UsageError where the files are no certificates."""
        if self.is_local:
            return Security(require_encryption=False)
        names = (str(self.tls_cert), str(self.tls_key))
        security = Security(
            require_encryption=True,
            tls_ca_file=str(self.tls_ca_file),
            tls_client_cert=names[0],
            tls_client_key=names[1],
            tls_worker_cert=names[0],
            tls_worker_key=names[1],
        )
        try:
            security.get_connection_args("client")
        except (OSError, ValueError) as error:
            files = f"{self.tls_ca_file}, {self.tls_cert}, {self.tls_key}"
            raise UsageError(f"{files}: must be certificates and the key that fits (PEM): {error}") from error
        return security

    def connect(self) -> Client:
        """A client; raises FleetError where no scheduler answers."""
        silence_dask()
        try:
            return Client(
                self.address,
                security=self.security(),
                timeout=CONNECT_SECONDS,
                set_as_default=False,
            )
        except (OSError, DaskTimeoutError) as error:
            raise FleetError(self.describe_silence(error)) from error

    def describe_silence(self, error: BaseException) -> str:
        """One line for a scheduler that does not answer, or refuses a board."""
        cause = error.__cause__ or error
        why = f"{cause}".partition("\n")[0] or type(cause).__name__
        if isinstance(cause, ValueError) and not isinstance(cause, OSError):  # a bad certificate is both
            return f"{self.address}: the scheduler refuses this board ({why}): give each board a --name of its own"
        return f"{self.address}: no scheduler answers ({why}): start `dask scheduler` there, or mend the address"


def silence_dask() -> None:
    """Keep Dask's own words off the terminal: what matters is told in ours."""
    warnings.simplefilter("ignore", VersionMismatchWarning)  # boards are compared by what acts on a picture
    for name in (*logging.root.manager.loggerDict, "asyncio"):  # asyncio tells what of Dask ended with a connection
        if name.partition(".")[0] in ("asyncio", "distributed", "tornado"):  # each of Dask's has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
