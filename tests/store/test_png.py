from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from anima_batch.files import canonical_json
from anima_batch.job import ImageRequest, SpectrumPolicy, request_json
from anima_batch.store.integrity import CorruptError, NewerFormatError
from anima_batch.store.png import PngInfo, decode_pixels, encode_png, format_parameters, pixel_sha256, read_png

ZERO_WIDTH_SPACE = "\u200b"
SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
HARD_PROMPTS = [
    "",
    "a red house",
    "夜の森にいる梟、水彩画 🦉👩‍🚀",
    "שלום עולם مرحبا",
    'she said "hi", then: {left}\\n',
    "two\nlines\n",
    "Steps: 20",
    "a\nSteps: 20, Sampler: DDIM, Seed: 1\nb",
    "a\r\n  Steps: 20\u2028Steps: 21",
    "Negative prompt: not me, Negative prompt:",
    "é" * 5_000,
    "\n" * 10_000,
]
FRAGMENTS = st.sampled_from(
    [
        "Steps: ",
        "Negative prompt:",
        "Negative prompt",
        "Steps",
        ": ",
        "\n",
        "\r",
        " ",
        ",",
        '"',
        "{",
        "}",
        "\\",
        "雪",
        "🦉",
    ]
)
PROMPTS = st.lists(
    FRAGMENTS | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), max_size=12
).map("".join)


def info(prompt: str = "a red house", negative_prompt: str = "", **changes: Any) -> PngInfo:
    request = ImageRequest(prompt=prompt, negative_prompt=negative_prompt, seed=7, width=32, height=16)
    fields = {
        "request_id": "a" * 64,
        "request": request,
        "policy_name": "full",
        "model_set_name": "picture-book",
        "model_set_digest": "b" * 64,
        "source_sha256": "0123456789" + "c" * 54,
        "manifest": "manifests/demo/a-red-house-7-full-aaaaaaaaaaaa.json",
        "version": "0.1.0",
    }
    return PngInfo(**{**fields, **changes})


def picture(colours: int = 256) -> np.ndarray:
    return np.random.default_rng(1).integers(0, colours, (16, 32, 3), dtype=np.uint8)


def walk_chunks(data: bytes) -> list[tuple[str, bytes]]:
    """(type, content) of every chunk, read by the PNG specification alone; each CRC must be right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, offset = [], 8
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        kind, content = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + length]
        (crc,) = struct.unpack(">I", data[offset + 8 + length : offset + 12 + length])
        assert crc == zlib.crc32(kind + content)
        chunks.append((kind.decode("ascii"), content))
        offset += 12 + length
    return chunks


def read_text_chunks(data: bytes) -> dict[str, tuple[str, str]]:
    """keyword -> (chunk type, text) by the PNG specification alone; iTXt must be uncompressed, without language."""
    texts = {}
    for kind, content in walk_chunks(data):
        if kind == "tEXt":
            keyword, _, text = content.partition(b"\0")
            texts[keyword.decode("latin-1")] = (kind, text.decode("latin-1"))
        elif kind == "iTXt":
            keyword, _, rest = content.partition(b"\0")
            assert rest[:4] == b"\0\0\0\0"  # not compressed, method 0, no language, no translated keyword
            texts[keyword.decode("latin-1")] = (kind, rest[4:].decode("utf-8"))
    return texts


def parse_as_civitai(text: str) -> tuple[str, str, dict[str, str]]:
    """(prompt, negative prompt, fields) by the rules that Civitai's parser follows.

    The first line that starts `Steps: ` is the details; what stands before it is parted at `Negative prompt:`; `Hashes`
    is an object without nested braces; the rest is parted at unquoted `,` and `:`, a quoted value being a JSON string.
    """
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Steps: "))
    assert at == len(lines) - 1, "a line of the prompt was taken for the details"
    before, details = "\n".join(lines[:at]), lines[at]
    parts = before.split("Negative prompt:")
    assert len(parts) <= 2, "a part of the prompt was taken for the negative prompt"
    fields = {}
    if hashes := re.search(r", Hashes: (\{[^{}]*\})", details):
        fields["Hashes"] = hashes[1]
        details = details.replace(hashes[0], "")
    for name, value in re.findall(r'([^:,"]+):\s*("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)', details):
        fields[name.strip()] = json.loads(value) if value.startswith('"') else value
    if len(parts) == 1:
        return before, "", fields
    return parts[0].removesuffix("\n"), parts[1].removeprefix(" "), fields


def read_in_order(data: bytes) -> tuple[str, str, str, dict[str, str]]:
    """(tool, prompt, negative prompt, fields) in the order in which SD Prompt Reader looks at a PNG.

    EXIF's model field is first, then the keywords, the first that is there; its A1111 part cuts at the first line that
    starts `Steps:`, with a blank or without, and before that at the first that starts `Negative prompt:`.
    """
    with Image.open(io.BytesIO(data)) as image:
        found, exif = image.info, image.getexif()
    assert 0x0110 not in exif
    order = ["parameters", "postprocessing", "negative_prompt", "invokeai_metadata", "sd-metadata", "Dream", "prompt"]
    keyword = next(name for name in [*order, "XML:com.adobe.xmp"] if name in found)
    assert keyword == "parameters"
    tool = "ComfyUI" if "prompt" in found else "A1111"
    text = found["parameters"]
    steps = text.find("\nSteps:")
    negative = text.find("\nNegative prompt:") if "Negative prompt:" in text else -1
    prompt = text[: steps if negative == -1 else negative]
    behind = text[negative + len("\nNegative prompt:") : steps] if negative != -1 else ""
    fields = dict(re.findall(r"\s*([^:,]+):\s*([^,]+)", text[steps:].strip()))
    return tool, prompt.strip(), behind.strip(), fields


def with_chunk(keyword: str, text: str) -> bytes:
    """A PNG with one text chunk."""
    chunks, stream = PngImagePlugin.PngInfo(), io.BytesIO()
    chunks.add_itxt(keyword, text)
    Image.fromarray(picture()).save(stream, format="PNG", pnginfo=chunks)
    return stream.getvalue()


@settings(max_examples=100, deadline=None)
@given(PROMPTS, PROMPTS)
def test_pixels_and_request_come_back_for_any_prompt(prompt: str, negative_prompt: str):
    given_info, pixels = info(prompt, negative_prompt), picture()
    found_pixels, record, parameters = read_png(encode_png(pixels, given_info))
    np.testing.assert_array_equal(found_pixels, pixels, strict=True)
    assert record.request == given_info.request
    assert (record.request_id, record.manifest) == (given_info.request_id, given_info.manifest)
    assert (record.model_set.name, record.model_set.digest) == ("picture-book", "b" * 64)
    assert parameters == format_parameters(given_info)


@pytest.mark.parametrize("prompt", HARD_PROMPTS, ids=range(len(HARD_PROMPTS)))
def test_a_hard_prompt_is_literal_in_the_own_chunk(prompt: str):
    texts = read_text_chunks(encode_png(picture(), info(prompt, prompt)))
    own = json.loads(texts["anima_batch"][1])
    assert (own["request"]["prompt"], own["request"]["negative_prompt"]) == (prompt, prompt)


@settings(max_examples=300, deadline=None)
@given(PROMPTS, PROMPTS)
@example("Steps: 20\nNegative prompt: x", "a\nSteps: 4, Seed: 1")
def test_no_prompt_is_misread_by_civitais_rules(prompt: str, negative_prompt: str):
    found, found_negative, fields = parse_as_civitai(format_parameters(info(prompt, negative_prompt)))
    assert found.replace(ZERO_WIDTH_SPACE, "") == prompt.replace(ZERO_WIDTH_SPACE, "")
    assert found_negative.replace(ZERO_WIDTH_SPACE, "") == negative_prompt.replace(ZERO_WIDTH_SPACE, "")
    assert (fields["Steps"], fields["Seed"]) == ("20", "7")


@pytest.mark.parametrize("prompt", HARD_PROMPTS, ids=range(len(HARD_PROMPTS)))
def test_a_hard_prompt_is_not_misread_by_civitais_rules(prompt: str):
    found, found_negative, fields = parse_as_civitai(format_parameters(info(prompt, prompt)))
    assert found.replace(ZERO_WIDTH_SPACE, "") == found_negative.replace(ZERO_WIDTH_SPACE, "") == prompt
    assert fields["Version"] == "anima-batch 0.1.0"


@settings(max_examples=100, deadline=None)
@given(PROMPTS, PROMPTS)
@example("a\nSteps:20", "Steps:\nNegative prompt:x")
def test_sd_prompt_readers_order_takes_it_for_a1111s_and_never_for_comfyuis(prompt: str, negative_prompt: str):
    data = encode_png(picture(), info(prompt, negative_prompt))
    tool, found, found_negative, fields = read_in_order(data)
    assert tool == "A1111"
    assert found.replace(ZERO_WIDTH_SPACE, "") == prompt.replace(ZERO_WIDTH_SPACE, "").strip()
    assert found_negative.replace(ZERO_WIDTH_SPACE, "") == negative_prompt.replace(ZERO_WIDTH_SPACE, "").strip()
    wanted = {
        "Seed": "7",
        "Steps": "20",
        "CFG scale": "4",
        "Size": "32x16",
        "Sampler": "Euler",
        "Model": "picture-book",
    }
    assert wanted.items() <= fields.items()


def test_the_parameters_text_is_as_published():
    assert format_parameters(info("a red house,\nat night", "blurry")) == (
        "a red house,\nat night\n"
        "Negative prompt: blurry\n"
        "Steps: 20, Sampler: Euler, Schedule type: Simple, CFG scale: 4, Seed: 7, Size: 32x16, Model hash: 0123456789, "
        'Model: picture-book, Shift: 3, Policy: full, Hashes: {"model":"0123456789"}, Version: anima-batch 0.1.0'
    )


def test_without_a_negative_prompt_its_line_is_left_out():
    assert "Negative prompt" not in format_parameters(info())


def test_without_a_source_digest_no_hash_is_written():
    fields = parse_as_civitai(format_parameters(info(source_sha256=None)))[2]
    assert "Model hash" not in fields
    assert "Hashes" not in fields
    assert fields["Model"] == "picture-book"


def test_numbers_are_not_rounded():
    request = ImageRequest(prompt="p", seed=2**64 - 1, width=32, height=16, guidance_scale=0.1 + 0.2, shift=2.5)
    fields = parse_as_civitai(format_parameters(info(request=request)))[2]
    assert (fields["CFG scale"], fields["Shift"], fields["Seed"]) == (
        "0.30000000000000004",
        "2.5",
        "18446744073709551615",
    )


def test_a_zero_width_space_stands_before_the_colon_of_a_misleading_keyword():
    text = format_parameters(info("Steps: 1\n \tSteps: 2\rSteps: 3\nno Steps: 4\nNegative prompt: x"))
    assert text.startswith(
        "Steps\u200b: 1\n \tSteps\u200b: 2\rSteps\u200b: 3\nno Steps: 4\nNegative prompt\u200b: x\nSteps: 20, "
    )


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example('a, "b": {c}\nSteps: 3')
@example(" padded ")
def test_any_model_name_comes_back_from_its_field(name: str):
    fields = parse_as_civitai(format_parameters(info(model_set_name=name)))[2]
    assert fields["Model"] == name
    assert fields["Hashes"] == '{"model":"0123456789"}'


def test_the_chunks_are_ours_alone_and_whole():
    data = encode_png(picture(), info())
    kinds = [kind for kind, _ in walk_chunks(data)]
    assert kinds == ["IHDR", "tEXt", "iTXt", "iTXt", "IDAT", "IEND"]
    texts = read_text_chunks(data)
    assert list(texts) == ["parameters", "anima_batch", "XML:com.adobe.xmp"]  # never ComfyUI's prompt or workflow
    header = dict(walk_chunks(data))["IHDR"]
    assert struct.unpack(">IIBBBBB", header) == (32, 16, 8, 2, 0, 0, 0)


def test_text_beyond_ascii_goes_as_utf8():
    texts = read_text_chunks(encode_png(picture(), info("café 雪")))
    assert texts["parameters"][0] == "iTXt"
    assert texts["parameters"][1].startswith("café 雪\n")


def test_the_own_chunk_is_canonical_json_with_every_parameter():
    given_info = info(request=ImageRequest(prompt="p", seed=1, width=32, height=16, policy=SpectrumPolicy()))
    kind, text = read_text_chunks(encode_png(picture(), given_info))["anima_batch"]
    assert kind == "iTXt"
    assert text == canonical_json(json.loads(text))
    assert json.loads(text) == {
        "schema_version": 1,
        "request_id": "a" * 64,
        "request": request_json(given_info.request),
        "model_set": {"name": "picture-book", "digest": "b" * 64},
        "manifest": given_info.manifest,
    }


def test_equal_input_has_equal_bytes():
    assert encode_png(picture(), info()) == encode_png(picture().copy(order="F"), info())


@pytest.mark.parametrize("prompt", HARD_PROMPTS[1:7], ids=range(6))
def test_exiftool_reads_every_text(tmp_path: Path, need_tool: Callable[[str], str], prompt: str):
    path = tmp_path / "a.png"
    path.write_bytes(encode_png(picture(), info(prompt, "bad")))
    command = [need_tool("exiftool"), "-j", "-G1", "-api", "structformat=json", path]
    (found,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found["PNG:Parameters"] == format_parameters(info(prompt, "bad"))
    assert json.loads(found["PNG:Anima_batch"])["request"]["prompt"] == prompt
    assert found["XMP-iptcExt:DigitalSourceType"] == SOURCE
    assert found["PNG:ImageWidth"] == 32
    assert "ExifTool:Warning" not in found


def test_a_metadata_edit_by_exiftool_changes_the_file_and_not_the_pixel_digest(
    tmp_path: Path, need_tool: Callable[[str], str]
):
    path = tmp_path / "a.png"
    data = encode_png(picture(), info("雪"))
    path.write_bytes(data)
    command = [need_tool("exiftool"), "-q", "-overwrite_original", "-XMP-dc:Title=mine", "-PNG:Comment=ours", path]
    subprocess.run(command, check=True)
    assert path.read_bytes() != data
    pixels, record, _ = read_png(path.read_bytes())
    assert pixel_sha256(pixels) == pixel_sha256(picture())
    assert record.request.prompt == "雪"


def test_the_pixel_digest_is_over_the_size_and_the_rgb_bytes():
    pixels = picture()
    wanted = hashlib.sha256(b"\0\0\0\x20\0\0\0\x10" + pixels.tobytes()).hexdigest()
    assert pixel_sha256(pixels) == pixel_sha256(np.asfortranarray(pixels)) == wanted
    assert pixel_sha256(pixels.reshape(32, 16, 3)) != wanted
    changed = pixels.copy()
    changed[15, 31, 2] ^= 1
    assert pixel_sha256(changed) != wanted


@pytest.mark.parametrize(
    ("mode", "options"),
    [("RGB", {"compress_level": 0}), ("RGBA", {"compress_level": 9}), ("P", {}), ("L", {}), ("1", {})],
)
def test_the_pixel_digest_survives_a_lossless_save(mode: str, options: dict[str, int]):
    pixels = picture(colours=2) * np.uint8(255)
    if mode in ("L", "1"):
        pixels = np.repeat(pixels[:, :, :1], 3, axis=2)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, format="PNG", **options)
    assert pixel_sha256(decode_pixels(stream.getvalue())) == pixel_sha256(pixels)


def test_a_picture_that_got_transparency_or_16_bits_is_not_ours():
    for image in (
        Image.fromarray(np.zeros((2, 2, 4), np.uint8)),
        Image.fromarray(np.zeros((2, 2), np.uint16)),
    ):
        stream = io.BytesIO()
        image.save(stream, format="PNG")
        with pytest.raises(CorruptError, match="not the picture that was made"):
            decode_pixels(stream.getvalue())


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2, 3), np.float32)],
    ids=["grey", "RGBA", "float"],
)
def test_pixels_of_another_kind_are_refused(pixels: np.ndarray):
    with pytest.raises(ValueError, match=r"pixels: must be \(height, width, 3\) uint8, got"):
        encode_png(pixels, info())
    with pytest.raises(ValueError, match=r"pixels: must be"):
        pixel_sha256(pixels)


def test_a_damaged_file_is_corrupt_and_named():
    data = encode_png(picture(), info())
    flipped = bytearray(data)
    flipped[data.index(b"IDAT") + 40] ^= 1
    for damaged in (b"", b"text", data[:100], data[: len(data) // 2], bytes(len(data)), bytes(flipped)):
        with pytest.raises(CorruptError, match=r"^outputs/a\.png: "):
            read_png(damaged, "outputs/a.png")


def pack_chunks(chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG of these chunks with right CRCs, whatever is in them."""
    packed = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


KINDS = st.sampled_from(
    [b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"tEXt", b"zTXt", b"iTXt", b"acTL", b"fcTL", b"eXIf"]
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_png_of_any_chunks_is_read_or_refused_as_corrupt(data: st.DataObject):
    """Right CRCs, so that the decoder's readers of each chunk are reached: some raise IndexError or AssertionError."""
    chunks = [(kind.encode(), content) for kind, content in walk_chunks(encode_png(picture(), info()))]
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(chunks) - 1))
        kind, content = chunks[index]
        match data.draw(st.integers(0, 3)):
            case 0:
                chunks[index] = (kind, content[: data.draw(st.integers(0, len(content)))])
            case 1:
                chunks[index] = (data.draw(KINDS), content)
            case 2:
                chunks.insert(index, (data.draw(KINDS), data.draw(st.binary(max_size=30))))
            case _:
                changed = bytearray(content) or bytearray(1)
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
                chunks[index] = (kind, bytes(changed))
    for read in (read_png, decode_pixels):
        with contextlib.suppress(CorruptError, NewerFormatError):
            read(pack_chunks(chunks), "a.png")


@pytest.mark.parametrize(
    "chunks",
    [
        [(b"tRNS", b""), (b"IDAT", b"")],
        [(b"IHDR", b""), (b"IDAT", b"")],
        [(b"IDAT", b""), (b"fdAT", b"")],
        [(b"IDAT", b""), (b"acTL", b"\0" * 8), (b"fcTL", b"")],
        [(b"iTXt", b"anima_batch\0\1\0"), (b"zTXt", b"a\0")],
    ],
    ids=range(5),
)
def test_short_chunks_are_corrupt(chunks: list[tuple[bytes, bytes]]):
    header = struct.pack(">IIBBBBB", 32, 16, 8, 2, 0, 0, 0)
    with pytest.raises(CorruptError, match=r"^a\.png: ") as caught:
        read_png(pack_chunks([(b"IHDR", header), *chunks, (b"IEND", b"")]), "a.png")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("width", "height"), [(100_000, 100_000), (10_000, 10_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_too_large_to_unpack_is_corrupt_before_it_is_unpacked(width: int, height: int):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    bomb = pack_chunks([(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")])
    for read in (read_png, decode_pixels):
        with pytest.raises(CorruptError, match=r"^a\.png: does not decode: Image size"):
            read(bomb, "a.png")


@pytest.mark.parametrize(("width", "height"), [(8193, 16), (1, 60_000)])
def test_a_picture_larger_than_any_request_is_corrupt_before_it_is_unpacked(width: int, height: int):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = pack_chunks([(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")])
    with pytest.raises(CorruptError, match=rf"^a\.png: must be at most 8192 pixels .*, got {width}x{height}$"):
        read_png(data, "a.png")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("manifest", "/dev/zero"),
        ("manifest", "../a.json"),
        ("manifest", "a\0"),
        ("request_id", "*"),
        ("request_id", "A" * 64),
    ],
)
def test_a_path_or_an_id_that_none_of_ours_has_is_refused(key: str, value: str):
    own = json.loads(read_text_chunks(encode_png(picture(), info()))["anima_batch"][1])
    with pytest.raises(CorruptError, match=rf"^a\.png: its anima_batch chunk: {key}: "):
        read_png(with_chunk("anima_batch", json.dumps({**own, key: value})), "a.png")


def test_a_file_without_the_own_chunk_says_what_else_to_use():
    with pytest.raises(CorruptError, match=r"^a\.png: no anima_batch chunk: .*use the manifest$"):
        read_png(with_chunk("parameters", "a house\nSteps: 20"), "a.png")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", ": "),
        ('{"schema_version": 1}', ": request_id: Field required"),
        ('{"schema_version": "1"}', ": schema_version: "),
    ],
    ids=["cut", "too deep", "a list", "a field missing", "a wrong type"],
)
def test_a_bad_own_chunk_is_refused_in_one_line(text: str, fault: str):
    with pytest.raises(CorruptError, match=rf"^a\.png: its anima_batch chunk ?{fault}") as caught:
        read_png(with_chunk("anima_batch", text), "a.png")
    assert "\n" not in str(caught.value)


def test_an_own_chunk_of_a_later_version_is_told_apart():
    with pytest.raises(NewerFormatError, match=r"^a\.png: schema_version: must be at most 1, got 2: "):
        read_png(with_chunk("anima_batch", '{"schema_version": 2, "new": true}'), "a.png")
