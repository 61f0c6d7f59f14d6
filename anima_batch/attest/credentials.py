"""Content Credentials (C2PA) in a PNG: the last thing written into it, signed with a certificate of the user's."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import c2pa
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from PIL import Image

from anima_batch import __version__
from anima_batch.attest.signing import name_kind
from anima_batch.errors import UsageError
from anima_batch.files import read_bounded
from anima_batch.store.png import DIGITAL_SOURCE_TYPE

FILE_BYTES = 1 << 20
_CURVES = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
_SETTINGS = {"builder": {"thumbnail": {"enabled": False}}}  # the picture itself is at hand, and smaller


@dataclass(frozen=True)
class Credentials:
    """A private key with the certificates that vouch for it, the first one its own; `algorithm` in C2PA's words."""

    algorithm: str
    certificates: bytes
    key: bytes

    def embed(self, data: bytes) -> bytes:
        """The PNG with one more chunk, which says what made it and is bound to all other bytes; pixels stay.

        Nothing is sent and no time is asked for. Raises UsageError where the library refuses the certificates.
        """
        signer_info = c2pa.C2paSignerInfo(self.algorithm, self.certificates, self.key, None)
        signed = io.BytesIO()
        try:
            with (
                c2pa.Settings.from_dict(_SETTINGS) as settings,
                c2pa.Context(settings) as context,
                c2pa.Signer.from_info(signer_info) as signer,
                c2pa.Builder(json.dumps(_describe_making()), context) as builder,
            ):
                builder.sign(signer, "image/png", io.BytesIO(data), signed)
        except c2pa.C2paError as error:
            raise UsageError(f"--c2pa: the certificates must be such as C2PA allows, got: {error}") from error
        return signed.getvalue()

    def try_out(self) -> None:
        """Raise UsageError where the library refuses the certificates, which it says only when it signs."""
        blank = io.BytesIO()
        Image.new("RGB", (16, 16)).save(blank, format="PNG")
        self.embed(blank.getvalue())


def load_credentials(path: Path) -> Credentials:
    """The private key and the certificates of a PEM file; raises UsageError where it lacks one or they do not fit."""
    try:
        data = read_bounded(path, FILE_BYTES)
    except OSError as error:
        raise UsageError(f"--c2pa: {path}: must be a file that can be read, got: {error.strerror}") from error
    try:
        key, certificates = load_pem_private_key(data, None), x509.load_pem_x509_certificates(data)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        wanted = "a PEM file with a private key without passphrase and its certificates, its own first"
        raise UsageError(f"--c2pa: {path}: must be {wanted}, got: {str(error).splitlines()[0]}") from error
    if certificates[0].public_key() != key.public_key():
        raise UsageError(f"--c2pa: {path}: the first certificate must be of the private key, got one of another")
    chain = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
    return Credentials(
        _name_algorithm(key, path), chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def _name_algorithm(key: object, path: Path) -> str:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ed25519"
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, rsa.RSAPrivateKey):
        return "ps256"
    allowed = "an ed25519, ECDSA (P-256, P-384, P-521) or RSA key"
    raise UsageError(f"--c2pa: {path}: must be {allowed}, got {name_kind(key)}")


def _describe_making() -> dict[str, object]:
    agent = {"name": "anima-batch", "version": __version__}
    created = {"action": "c2pa.created", "digitalSourceType": DIGITAL_SOURCE_TYPE, "softwareAgent": agent}
    return {
        "claim_generator_info": [agent],
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [created]}}],
    }
