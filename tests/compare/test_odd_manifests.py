"""Manifests that hold by their digest, and still say what no run would."""

import pytest

from anima_batch.compare import find_job, read_records
from anima_batch.report import write_report
from anima_batch.store import read_manifest, to_bytes


def steps(manifest, **changes):
    return tuple(step.model_copy(update=changes) for step in manifest.steps)


ODD = {
    "no step": lambda manifest: {"steps": ()},
    "no sigma": lambda manifest: {"sampling": manifest.sampling.model_copy(update={"sigmas": ()})},
    "steps that no one counts": lambda manifest: {"steps": steps(manifest, index=7, passes=2**62, abs_max=None)},
    "steps of no time": lambda manifest: {"steps": steps(manifest, seconds=-1e9, abs_max=1e300)},
    "latents without spread": lambda manifest: {"latents": manifest.latents.model_copy(update={"std": 0.0})},
    "latents of another spread in each": lambda manifest: {
        "latents": manifest.latents.model_copy(
            update={"std": 5e-324 if manifest.request.policy.kind == "full" else 1e308}
        )
    },
    "latents without finite values": lambda manifest: {"latents": manifest.latents.model_copy(update={"std": None})},
    "no time": lambda manifest: {"timings": manifest.timings.model_copy(update={"denoise": 0.0, "decode": 0.0})},
    "negative time": lambda manifest: {"timings": manifest.timings.model_copy(update={"host": -1e9, "total": -1e9})},
    "no run": lambda manifest: {"runs": ()},
    "a policy named as markup": lambda manifest: {
        "sampling": manifest.sampling.model_copy(
            update={"policy": {**manifest.sampling.policy, "name": "</bdi><script>alert(1)</script>"}}
        )
    },
    "a warning as markup": lambda manifest: {"warnings": ("<img src=x onerror=alert(1)>",)},
    "a picture of another size": lambda manifest: {"request": {**manifest.model_dump()["request"], "width": 192}},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_manifest_is_compared_and_reported(name, compared, tmp_path):
    for path in (compared.folder / "manifests/compared").glob("house-*"):
        manifest = read_manifest(path)
        odd = type(manifest)(
            **{**{key: getattr(manifest, key) for key in type(manifest).model_fields}, **ODD[name](manifest)}
        )
        target = tmp_path / "manifests/compared" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(to_bytes(odd))
    (tmp_path / "outputs").symlink_to(compared.folder / "outputs")
    assert not read_records(find_job(tmp_path / "manifests/compared", tmp_path)).problems
    out = tmp_path / "page.html"
    write_report(tmp_path / "manifests/compared", tmp_path, out, 31.444)
    text = out.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
