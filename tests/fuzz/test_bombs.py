"""Files that are small to send and enormous to read: refused within seconds and without filling the memory."""

import functools
import json
import os
import struct
import zlib

import pytest
from fuzz.seals import pack_body, read_chunks, seal_manifest, seal_png, wrap_tensors, write_chunks
from fuzz.session import Session
from fuzz.world import make_world

GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def session():
    """Runs commands in a process of its own, with bounds on its time and memory."""
    opened = Session()
    yield opened
    opened.close()


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path / "workspace")


@pytest.fixture
def run(session, world):
    """Runs a command in the world: exit code, stdout, stderr."""
    return functools.partial(session.run, world.folder)


def zeros(size):
    """A zlib stream of so many zero bytes, made by repeating a block: `size` must be a multiple of 1 MiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    checksum = (size % 65521) << 16 | 1  # Adler-32 of zeros
    return b"\x78\xda" + block * (size >> 20) + end + struct.pack(">I", checksum)


def test_the_bombs_are_what_they_say():
    assert zlib.decompress(zeros(3 << 20)) == bytes(3 << 20)
    assert len(zeros(2 * GIGABYTE)) < 10_000_000


def grow(path):
    """The file with a terabyte of nothing behind it."""
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def brackets(path):
    path.write_bytes(b"[" * 1_000_000)


def braces(path):
    path.write_bytes(b'{"a":' * 1_000_000)


def lists(path):
    path.write_bytes(b"[" + b"[]," * 20_000_000 + b"[]]")


def digits(path):
    path.write_bytes(b'{"schema_version": ' + b"9" * 10_000_000 + b"}")


PLACES = {
    "job": (lambda world: world.job, [("plan", "jobs/job.toml"), ("run", "jobs/job.toml")]),
    "prompts": (lambda world: world.folder / "prompts.txt", [("plan", "jobs/job.toml")]),
    "pin": (lambda world: world.batch.outputs / "job.json", [("status", "jobs/job.toml")]),
    "manifest": (lambda world: world.manifest(0), [("status", "jobs/job.toml"), ("audit", "manifests")]),
    "picture": (lambda world: world.picture, [("status", "jobs/job.toml"), ("audit", "outputs")]),
    "checkpoint": (lambda world: world.begun / "ckpt.1", [("status", "jobs/job.toml"), ("verify", "jobs/job.toml")]),
    "history": (lambda world: world.begun / "history.3", [("status", "jobs/job.toml")]),
    "model set": (lambda world: world.model_set, [("plan", "jobs/job.toml"), ("models", "list")]),
    "component": (lambda world: world.model_set.parent / "vae/decoder.onnx", [("models", "verify", "mine")]),
}


@pytest.mark.parametrize("make", [grow, pipe, device, brackets, braces, lists, digits], ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_bomb_in_place_of_a_file_is_refused_at_once(run, world, place, make):
    find, commands = PLACES[place]
    path = find(world)
    if not path.exists():
        path.write_bytes(b"")
    make(path)
    before = path.lstat()
    for command in commands:
        code, out, errors = run(*command)
        assert code in {0, 2, 3, 4, 5}
        assert code or place in {"checkpoint", "history", "manifest", "picture"}, out + errors
        assert len(out) + len(errors) < 100_000
    after = path.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


# TOML


def overlapping_excludes():
    """Each pair of values of six axes of twelve: the sets of excludes that are left are as many as combinations."""
    values = {
        "seed": range(12),
        "steps": range(1, 13),
        "guidance_scale": range(12),
        "shift": range(1, 13),
        "negative_prompt": [f"'{n}'" for n in range(12)],
        "prompt": [f"'{n}'" for n in range(12)],
    }
    axes = "".join(f"{name} = [{', '.join(map(str, entries))}]\n" for name, entries in values.items())
    names = list(values)
    pairs = [(a, b) for position, a in enumerate(names) for b in names[:position]]
    tables = (f"[[exclude]]\n{a} = {x}\n{b} = {y}\n" for a, b in pairs for x in values[a] for y in values[b])
    return f"[matrix]\n{axes}{''.join(tables)}"


def many_ranges():
    """Each no longer than a job may be."""
    ranges = ", ".join(f"'{n}0000..{n}9999'" for n in range(100_000))
    return f"[defaults]\nprompt = 'a'\n[matrix]\nseed = [{ranges}]\n"


JOBS = {
    "ten megabytes of comments": lambda: "# nothing\n" * 1_000_000,
    "a string of ten megabytes": lambda: f'name = "{"x" * 10_000_000}"\n',
    "a prompt of seven megabytes": lambda: f'[defaults]\nseed = 1\nprompt = "{"x" * 7_000_000}"\n',
    "a million brackets": lambda: f"a = {'[' * 1_000_000}\n",
    "a million braces": lambda: f"a = {'{a = ' * 1_000_000}\n",
    "a key of a million parts": lambda: f"{'a.' * 1_000_000}a = 1\n",
    "a header of a million parts": lambda: f"[{'a.' * 1_000_000}a]\n",
    "300,000 unknown keys": lambda: "".join(f"k{n} = 1\n" for n in range(300_000)),
    "300,000 unknown defaults": lambda: "[defaults]\n" + "".join(f"k{n} = 1\n" for n in range(300_000)),
    "300,000 wrong seeds": lambda: f"[defaults]\nprompt = 'a'\n[matrix]\nseed = [{'-1, ' * 300_000}]\n",
    "300,000 seeds": lambda: f"[defaults]\nprompt = 'a'\n[matrix]\nseed = [{', '.join(map(str, range(300_000)))}]\n",
    "100,000 ranges": many_ranges,
    "a trillion images": lambda: (
        "max_images = 1000000000000\n[defaults]\nprompt = 'a'\n[matrix]\nseed = '0..999999999999'\n"
    ),
    "a trillion combinations": lambda: (
        "max_images = 100000\n[defaults]\nprompt = 'a'\n[matrix]\n"
        "seed = '0..99999'\nsteps = '1..200'\nwidth = [128, 192]\nshift = [1.0, 2.0, 3.0, 4.0, 5.0]\n"
    ),
    "200,000 excludes": lambda: (
        "[defaults]\nprompt = 'a'\n[matrix]\nseed = '0..9999'\n" + "[[exclude]]\nseed = 1\n" * 200_000
    ),
    "200,000 includes": lambda: "[defaults]\nprompt = 'a'\n" + "[[include]]\nseed = 1\n" * 200_000,
    "excludes that overlap": overlapping_excludes,
    "300,000 policies": lambda: "".join(f"[policy.p{n}]\n" for n in range(300_000)),
}


@pytest.mark.parametrize("name", JOBS)
def test_an_absurd_job_is_refused_in_seconds(run, world, name):
    world.job.write_text(f"schema_version = 1\n{JOBS[name]()}")
    code, out, errors = run("plan", "jobs/job.toml")
    assert code == 2
    assert out == ""
    assert errors.startswith("error: jobs/job.toml: ")
    assert len(errors) < 1_000_000


# PNG


CHUNKS = {
    "iCCP of 2 GB": lambda: (b"iCCP", b"p\0\0" + zeros(2 * GIGABYTE)),
    "zTXt of 2 GB": lambda: (b"zTXt", b"parameters\0\0" + zeros(2 * GIGABYTE)),
    "iTXt of 2 GB": lambda: (b"iTXt", b"anima_batch\0\1\0\0\0" + zeros(2 * GIGABYTE)),
    "IDAT of 2 GB": lambda: (b"IDAT", zeros(2 * GIGABYTE)),
    "IHDR of 60000x60000": lambda: (b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)),
    "IHDR of 8192x8192": lambda: (b"IHDR", struct.pack(">IIBBBBB", 8192, 8192, 8, 6, 0, 0, 0)),
    "a million brackets": lambda: (b"iTXt", b"anima_batch\0\0\0\0\0" + b"[" * 1_000_000),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_bomb_in_a_chunk_is_refused(run, world, name):
    kind, content = CHUNKS[name]()
    chunks = read_chunks(world.picture.read_bytes())
    at = 1 if kind != b"IHDR" else 0
    chunks[at : at + (kind in (b"IHDR", b"IDAT"))] = [(kind, content)]
    world.picture.write_bytes(write_chunks(chunks))
    assert seal_png(world.picture.read_bytes()) == world.picture.read_bytes()
    code, out, _ = run("audit", str(world.picture.relative_to(world.folder)))
    assert code == 3
    assert len(out) < 100_000
    assert run("status", "jobs/job.toml")[0] == 0


# Containers


def container(shape, dtype="F32", meta="{}", data=b""):
    size = len(data)
    header = {"__metadata__": {"meta": meta}, "x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}
    return wrap_tensors(b"anima-batch checkpoint v1", pack_body(json.dumps(header).encode(), data))


CONTAINERS = {
    "2**60 elements": container([2**60]),
    "2**60 empty rows": container([2**60, 0]),
    "2**80 elements": container([2**40, 2**40]),
    "a thousand dimensions": container([1] * 1000, data=bytes(4)),
    "a header of 2**63 bytes": wrap_tensors(b"anima-batch checkpoint v1", (2**63).to_bytes(8, "little") + b"{}"),
    "a type that NumPy has not": container([2], "BF16", data=bytes(4)),
    "a type of 8 bits": container([4], "F8_E4M3", data=bytes(4)),
    "deep metadata": container([1], meta="[" * 1_000_000, data=bytes(4)),
    "a generation without end": container(
        [1], meta=f'{{"generation": {"9" * 4000}, "step": 1, "history": {{}}, "meta": {{}}}}', data=bytes(4)
    ),
    "another folder's history": container(
        [1],
        meta=json.dumps({"generation": 1, "step": 1, "history": {"../../../jobs/job.toml": "0" * 64}, "meta": {}}),
        data=bytes(4),
    ),
    "a million history files": container(
        [1],
        meta=json.dumps(
            {"generation": 1, "step": 1, "history": {str(n): "0" * 64 for n in range(100_000)}, "meta": {}}
        ),
        data=bytes(4),
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_claims_too_much_is_told_and_the_older_generation_serves(run, world, name):
    (world.begun / "ckpt.1").write_bytes(CONTAINERS[name])
    code, out, errors = run("status", "jobs/job.toml")
    assert (code, errors) == (0, "")
    assert "3/6" in out  # the generation before
    code, out, _ = run("verify", "jobs/job.toml")
    assert code == 3
    assert f"DIFFERS: {world.begun.relative_to(world.folder)}/" in out


# Numbers


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"denoise": 1.5', '"denoise": 1.7e308'),
        ('"denoise": 1.5', '"denoise": -1e300'),
        ('"decode": 0.25', '"decode": 1.7e308'),
        ('"passes": 2', f'"passes": {"9" * 400}'),
        ('"bytes": 1', f'"bytes": {"9" * 4000}1'),
        ('"width": 16', f'"width": {"9" * 400}'),
    ],
)
def test_a_number_out_of_this_world_in_a_manifest_stops_nobody(run, world, old, new):
    data = world.manifest(0).read_bytes()
    assert old.encode() in data
    world.manifest(0).write_bytes(seal_manifest(data.replace(old.encode(), new.encode(), 1)))
    for command in ("plan", "status"):
        assert run(command, "jobs/job.toml")[0] == 0
        code, out, _ = run(command, "jobs/job.toml", "--json")
        assert code == 0
        json.loads(out, parse_constant=pytest.fail)
    assert run("verify", "jobs/job.toml")[0] in {0, 3}
    assert run("audit", "manifests")[0] in {0, 3}
