"""DSSE envelopes, signed with an ed25519 key of the user's."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, Signer

from anima_batch.errors import UsageError
from anima_batch.files import canonical_json, read_bounded

PAYLOAD_TYPE = "application/vnd.in-toto+json"
KEY_BYTES = 1 << 20
_MAKE_ONE = "make one with: openssl genpkey -algorithm ed25519 -out KEY.pem"


def load_signer(path: Path) -> Signer:
    """What signs with the private key of a PEM file; raises UsageError for any other file or kind of key."""
    key = _load_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"--attest: {path}: must be an ed25519 private key, got {name_kind(key)}: {_MAKE_ONE}")
    return CryptoSigner(key)


def sign_statement(statement: bytes, signer: Signer) -> bytes:
    """The envelope's JSON on one line, equal for equal input, as ed25519 signatures are."""
    envelope = Envelope(statement, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return f"{canonical_json(envelope.to_dict())}\n".encode()


def name_kind(key: object) -> str:
    """What people call such a key."""
    if isinstance(key, EllipticCurvePrivateKey):
        return f"ECDSA on {key.curve.name}"
    return "RSA" if isinstance(key, RSAPrivateKey) else type(key).__name__


def _load_key(path: Path) -> object:
    try:
        return load_pem_private_key(read_bounded(path, KEY_BYTES), None)
    except OSError as error:
        raise UsageError(f"--attest: {path}: must be a key file that can be read, got: {error.strerror}") from error
    except TypeError as error:
        raise UsageError(f"--attest: {path}: must be a key without a passphrase, got one with it") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"--attest: {path}: must be an ed25519 private key in PEM, got none: {_MAKE_ONE}") from error
