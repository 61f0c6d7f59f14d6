"""Signed provenance of real pictures, read by tools that are not ours: cryptography, in-toto's types, C2PA's reader."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import c2pa
import numpy as np
import pytest
from attest.certificates import key_pem, make_credentials
from command import Workspace
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from PIL import Image
from sample_manifest import done

from anima_batch.attest import load_credentials, load_signer, make_statement, sign_statement
from anima_batch.attest.attesting import attest_image
from anima_batch.errors import UsageError
from anima_batch.store import ErrorRecord, read_png, to_bytes, write_manifest
from anima_batch.store.png import DIGITAL_SOURCE_TYPE

JOB = '[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = [1, 18446744073709551615]\n'


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, key):
    """Two pictures with both kinds of signatures."""
    workspace = Workspace(tmp_path_factory.mktemp("attested"))
    (workspace.folder / "key.pem").write_bytes(key_pem(key))
    (workspace.folder / "signer.pem").write_bytes(make_credentials(ec.generate_private_key(ec.SECP256R1())))
    workspace.run("run", workspace.write_job(JOB), "--attest", "key.pem", "--c2pa", "signer.pem")
    return workspace


def envelopes(workspace: Workspace) -> list[Path]:
    return sorted((workspace.folder / "manifests/job").glob("*.intoto.jsonl"))


def verify(envelope: dict[str, Any], public: Ed25519PublicKey) -> bytes:
    """The payload of a DSSE envelope, its signature checked over the pre-authentication encoding of DSSE v1."""
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    (signature,) = envelope["signatures"]
    encoded = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    public.verify(base64.b64decode(signature["sig"]), encoded)
    return payload


def test_each_picture_has_an_attestation_that_in_totos_types_and_the_key_confirm(finished, key):
    manifests = finished.manifests()
    assert [path.name for path in envelopes(finished)] == [f"{stem}.intoto.jsonl" for stem in manifests]
    for path, (stem, manifest) in zip(envelopes(finished), manifests.items(), strict=True):
        envelope = json.loads(path.read_text())
        assert envelope["payloadType"] == "application/vnd.in-toto+json"
        payload = verify(envelope, key.public_key())
        message = json_format.Parse(payload, statement_pb2.Statement())
        Statement.copy_from_pb(message).validate()
        assert message.predicate_type == "https://slsa.dev/provenance/v1"
        (subject,) = message.subject
        picture = finished.folder / subject.name
        assert subject.digest["sha256"] == hashlib.sha256(picture.read_bytes()).hexdigest()
        predicate = json_format.ParseDict(
            json_format.MessageToDict(message.predicate), provenance_pb2.Provenance(), ignore_unknown_fields=False
        )
        (byproduct,) = predicate.run_details.byproducts
        record = finished.folder / f"manifests/job/{stem}.json"
        assert (byproduct.name, byproduct.digest["sha256"]) == (
            f"manifests/job/{stem}.json",
            hashlib.sha256(record.read_bytes()).hexdigest(),
        )
        assert predicate.run_details.metadata.invocation_id == manifest["request_id"]
        dependencies = {
            entry.name: entry.digest["sha256"] for entry in predicate.build_definition.resolved_dependencies
        }
        model_set = manifest["model_set"]
        wanted = {part["path"]: part["sha256"] for part in model_set["components"]}
        assert dependencies == wanted | {source["file"]: source["sha256"] for source in model_set["source"]}
        parameters = json.loads(payload)["predicate"]["buildDefinition"]["externalParameters"]
        assert parameters["request"] == manifest["request"]  # exactly, also a seed of 64 bits


def test_one_changed_byte_of_the_payload_breaks_the_signature(finished, key):
    envelope = json.loads(envelopes(finished)[0].read_text())
    payload = bytearray(base64.b64decode(envelope["payload"]))
    payload[100] ^= 1
    envelope["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(InvalidSignature):
        verify(envelope, key.public_key())


def test_content_credentials_are_valid_for_their_own_reader_and_bound_to_every_byte(finished):
    data = finished.pictures()[0].read_bytes()
    with c2pa.Reader("image/png", io.BytesIO(data)) as reader:
        found = json.loads(reader.json())
    assert found["validation_state"] == "Valid"
    (manifest,) = found["manifests"].values()
    (action,) = manifest["assertions"][0]["data"]["actions"]
    assert (action["action"], action["digitalSourceType"]) == ("c2pa.created", DIGITAL_SOURCE_TYPE)
    assert action["softwareAgent"]["name"] == "anima-batch"
    assert "thumbnail" not in manifest
    changed = data.replace(b"a boat", b"a goat", 1)
    with c2pa.Reader("image/png", io.BytesIO(changed)) as reader:
        assert json.loads(reader.json())["validation_state"] == "Invalid"


def test_a_picture_with_content_credentials_is_whole_and_audited_as_any_other(finished):
    for picture in finished.pictures():
        assert read_png(picture.read_bytes()).record.request.prompt == "a boat"
    assert all(entry["ok"] for entry in finished.json("audit", "outputs"))
    assert finished.json("status", "jobs/job.toml")["done"] == 2


def test_the_same_command_again_writes_only_what_is_missing(finished):
    """Also what a run without --attest left out; those that are there keep their bytes and their inode."""
    first, second = envelopes(finished)
    kept, inode = first.read_bytes(), second.stat().st_ino
    first.unlink()
    ended = finished.run("run", "jobs/job.toml", "--attest", "key.pem")
    assert "1 images of earlier runs were attested now" in ended.stderr
    assert first.read_bytes() == kept
    assert second.stat().st_ino == inode
    assert "attested" not in finished.run("run", "jobs/job.toml", "--attest", "key.pem").stderr


SIGNING_KEYS = {
    "ed25519": Ed25519PrivateKey.generate,
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("kind", SIGNING_KEYS)
def test_content_credentials_by_every_kind_of_key(kind: str, tmp_path: Path):
    (tmp_path / "signer.pem").write_bytes(make_credentials(SIGNING_KEYS[kind]()))
    plain = io.BytesIO()
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(plain, format="PNG")
    data = load_credentials(tmp_path / "signer.pem").embed(plain.getvalue())
    with c2pa.Reader("image/png", io.BytesIO(data)) as reader:
        assert reader.get_validation_state() == "Valid"


def test_an_attestation_is_the_same_bytes_for_the_same_input(tmp_path: Path, key: Ed25519PrivateKey):
    (tmp_path / "key.pem").write_bytes(key_pem(key))
    manifest = done()
    made = [
        sign_statement(make_statement(manifest, to_bytes(manifest), "m.json"), load_signer(tmp_path / "key.pem"))
        for _ in range(2)
    ]
    assert made[0] == made[1]


def wrong_files(folder: Path) -> dict[str, tuple[str, str]]:
    """(what is said of it as --attest, as --c2pa) by file name."""
    ed25519, p256 = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    sealed = ed25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (folder / "text.pem").write_text("no key")
    (folder / "sealed.pem").write_bytes(sealed)
    (folder / "p256.pem").write_bytes(key_pem(p256))
    (folder / "other.pem").write_bytes(
        key_pem(ed25519) + make_credentials(p256).split(b"-----END PRIVATE KEY-----\n")[1]
    )
    (folder / "purpose.pem").write_bytes(make_credentials(p256, purpose=False))
    return {
        "missing.pem": ("No such file or directory", "No such file or directory"),
        "text.pem": ("must be an ed25519 private key in PEM, got none: make one", "must be a PEM file with a private"),
        "sealed.pem": ("must be a key without a passphrase, got one with it", "private key without passphrase"),
        "p256.pem": ("must be an ed25519 private key, got ECDSA on secp256r1: make one", "and its certificates"),
        "other.pem": ("", "the first certificate must be of the private key, got one of another"),
        "purpose.pem": ("got ECDSA on secp256r1", "the certificates must be such as C2PA allows, got"),
    }


def test_wrong_keys_and_certificates_are_refused_in_one_line(tmp_path: Path):
    for name, (as_key, as_credentials) in wrong_files(tmp_path).items():
        if as_key:
            with pytest.raises(UsageError) as caught:
                load_signer(tmp_path / name)
            assert as_key in str(caught.value)
            assert "\n" not in str(caught.value)
        with pytest.raises(UsageError) as caught:
            load_credentials(tmp_path / name).try_out()
        assert as_credentials in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_wrong_key_is_said_before_anything_is_made(workspace: Workspace):
    wrong_files(workspace.folder)
    job = workspace.write_job(JOB)
    for option, name in (("--attest", "p256.pem"), ("--c2pa", "purpose.pem")):
        told = workspace.run("run", job, option, name, check=2).stderr
        assert told.startswith(f"error: {option}: ")
        assert told.count("\n") == 1
    assert not (workspace.folder / "outputs").exists()


@pytest.mark.parametrize(("option", "package"), [("--attest", "securesystemslib"), ("--c2pa", "c2pa")])
def test_without_the_extra_one_line_says_what_to_install(option: str, package: str, workspace: Workspace):
    """As on a machine that has not got the package: a module in its place that is not found."""
    hidden = workspace.folder / "hidden"
    hidden.mkdir()
    (hidden / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module', name={package!r})\n")
    workspace.environment["PYTHONPATH"] = f"{hidden}{os.pathsep}{workspace.environment['PYTHONPATH']}"
    told = workspace.run("run", workspace.write_job(JOB), option, "key.pem", check=2).stderr
    assert told == f"error: {option}: {package} is missing: pip install 'anima-batch[attest]'\n"


def test_a_failed_image_and_one_of_no_known_run_end_nothing(key, tmp_path):
    """A job that names a prompt anew may leave the failed image's manifest beside that of the finished one."""
    (tmp_path / "key.pem").write_bytes(key_pem(key))
    signer = load_signer(tmp_path / "key.pem")
    error = ErrorRecord(kind="memory", step=None, message="none left")
    failed, unknown = done(status="failed", error=error, image=None), done(runs=())
    for name, manifest, is_attested in (("failed", failed, False), ("unknown", unknown, True)):
        path = tmp_path / "manifests/job" / f"{name}.json"
        write_manifest(path, manifest)
        assert attest_image(path, tmp_path, signer) is is_attested
        assert path.with_name(f"{name}.intoto.jsonl").exists() is is_attested
