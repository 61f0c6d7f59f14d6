"""Signed provenance of pictures, an extra: in-toto attestations beside manifests, Content Credentials in PNGs."""

from anima_batch.attest.attesting import attest_run
from anima_batch.attest.credentials import Credentials, load_credentials
from anima_batch.attest.signing import load_signer, sign_statement
from anima_batch.attest.statement import make_statement

__all__ = ["Credentials", "attest_run", "load_credentials", "load_signer", "make_statement", "sign_statement"]
