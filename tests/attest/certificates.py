"""Keys, and certificates such as C2PA wants them, made for a test."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BEGIN = datetime.now(timezone.utc) - timedelta(days=1)


def key_pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_credentials(key: Any, *, purpose: bool = True) -> bytes:
    """A PEM of the key, its certificate and its authority's; `purpose`: it may sign documents."""
    authority = Ed25519PrivateKey.generate()
    root = _certify("Test authority", authority.public_key(), authority, is_authority=True)
    own = _certify("Test signer", key.public_key(), authority, purpose=purpose)
    return key_pem(key) + own + root


def _name(text: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, text), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test")]
    )


def _certify(subject: str, public: Any, authority: Any, *, is_authority: bool = False, purpose: bool = True) -> bytes:
    usage = dict.fromkeys(
        (
            "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
            "decipher_only",
        ),
        False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("Test authority"))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(BEGIN + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    if not is_authority and purpose:
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(purposes, critical=True)
    algorithm = None if isinstance(authority, Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(authority, algorithm).public_bytes(Encoding.PEM)
