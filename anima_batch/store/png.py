"""PNG files with what made them: text for model sites, an own chunk for audits, and XMP that says "generated"."""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, ValidationError

from anima_batch.files import canonical_json, sha256_bytes
from anima_batch.job import ImageRequest, request_json
from anima_batch.paths import RelativePath
from anima_batch.store.integrity import CorruptError, describe_fault, refuse_newer
from anima_batch.store.records import MAX_PIXELS, Sha256

Pixels = npt.NDArray[np.uint8]  # (H, W, 3), RGB
T = TypeVar("T")

SCHEMA_VERSION = 1
OWN_KEYWORD = "anima_batch"
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"

_ZERO_WIDTH_SPACE = "\u200b"
# Readers part lines at \n or at all that Unicode calls a line's end, and some trim blanks before they look.
_LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_STEPS_LINE = re.compile(rf"((?:^|[{_LINE_ENDS}])(?:[^\S{_LINE_ENDS}]|\ufeff)*Steps)(?=:)")
_SAMPLERS = {"euler": "Euler", "ab2": "AB2", "dpmpp_2m": "DPM++ 2M"}
_SCHEDULES = {
    "simple": "Simple",
    "discrete": "Discrete",
    "sgm_uniform": "SGM Uniform",
    "normal": "Normal",
    "beta": "Beta",
}
_XMP = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/">
   <Iptc4xmpExt:DigitalSourceType>{DIGITAL_SOURCE_TYPE}</Iptc4xmpExt:DigitalSourceType>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""


@dataclass(frozen=True, kw_only=True)
class PngInfo:
    """What a PNG says of itself.

    `source_sha256` is of the transformer's original safetensors, which is what model sites know (None: no hash is
    written); `manifest` is the manifest's path relative to the workspace; `version` is anima-batch's.
    """

    request_id: str
    request: ImageRequest
    policy_name: str
    model_set_name: str
    model_set_digest: str
    source_sha256: str | None
    manifest: str
    version: str


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PngModelSet(_Record):
    """Which model set made the image."""

    name: str
    digest: Sha256


class PngRecord(_Record):
    """The content of the `anima_batch` chunk; never the manifest's digest, since the manifest holds the PNG's."""

    schema_version: Literal[1]
    request_id: Sha256
    request: ImageRequest
    model_set: PngModelSet
    manifest: RelativePath


class PngContent(NamedTuple):
    """A PNG as read: pixels (H, W, 3) uint8, the own chunk, and the `parameters` text ("" when it was taken out)."""

    pixels: Pixels
    record: PngRecord
    parameters: str


def encode_png(pixels: Pixels, info: PngInfo) -> bytes:
    """The file's bytes, equal for equal input and zlib; raises ValueError unless pixels are (H, W, 3) uint8."""
    _check_pixels(pixels)
    text = PngImagePlugin.PngInfo()
    parameters = format_parameters(info)
    # ASCII goes as tEXt, which every reader knows; Latin-1 does not, since some of them take tEXt for UTF-8.
    if parameters.isascii():
        text.add_text("parameters", parameters)
    else:
        text.add_itxt("parameters", parameters)
    text.add_itxt(OWN_KEYWORD, canonical_json(_own_content(info)))
    text.add_itxt("XML:com.adobe.xmp", _XMP)
    stream = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(stream, format="PNG", pnginfo=text, optimize=False, compress_level=6)
    return stream.getvalue()


def format_parameters(info: PngInfo) -> str:
    """The image's parameters as AUTOMATIC1111 writes them and Civitai reads them.

    Where a prompt holds `Steps:` at the start of a line, or `Negative prompt:` anywhere, a zero-width space stands
    before the colon, else it would be read as the next part: some readers want a blank behind it and some do not.
    The own chunk keeps the literal text.
    """
    request = info.request
    parts = [_defuse(request.prompt)]
    if request.negative_prompt:
        parts.append(f"Negative prompt: {_defuse(request.negative_prompt)}")
    fields: dict[str, str] = {
        "Steps": str(request.steps),
        "Sampler": _SAMPLERS[request.sampler],
        "Schedule type": _SCHEDULES[request.schedule],
        "CFG scale": _number(request.guidance_scale),
        "Seed": str(request.seed),
        "Size": f"{request.width}x{request.height}",
    }
    short_hash = info.source_sha256[:10] if info.source_sha256 else None
    if short_hash:
        fields["Model hash"] = short_hash
    fields |= {"Model": info.model_set_name, "Shift": _number(request.shift), "Policy": info.policy_name}
    line = [f"{name}: {_quote(value)}" for name, value in fields.items()]
    if short_hash:
        line.append(f'Hashes: {{"model":"{short_hash}"}}')
    line.append(f"Version: {_quote(f'anima-batch {info.version}')}")
    return "\n".join([*parts, ", ".join(line)])


def read_png(data: bytes, where: str = "PNG") -> PngContent:
    """Pixels, own chunk and `parameters` of a PNG of ours, also after a lossless re-save; `where` names it in errors.

    Raises CorruptError for a file that does not decode or has no valid own chunk, NewerFormatError for a later schema.
    """
    pixels, text = _decode(data, where)
    own = text.get(OWN_KEYWORD)
    if own is None:
        raise CorruptError(
            f"{where}: no {OWN_KEYWORD} chunk: not made by anima-batch, or its metadata was stripped: use the manifest"
        )
    return PngContent(pixels, _parse_own(own, where), text.get("parameters", ""))


def decode_pixels(data: bytes, where: str = "PNG") -> Pixels:
    """The pixels (H, W, 3) uint8 alone, whatever the metadata; raises CorruptError."""
    return _decode(data, where)[0]


def read_png_texts(data: bytes, where: str = "PNG") -> dict[str, str]:
    """The texts of any program's PNG by keyword, whatever its pixels are; raises CorruptError."""
    return _open_image(data, where, _read_texts)


def pixel_sha256(pixels: Pixels) -> str:
    """SHA-256 over width and height, each 4 bytes big-endian, then R, G, B of each pixel, row by row from the top left.

    It depends on nothing but the picture: not on compression, filters, metadata or the way a PNG stores the colours.
    """
    _check_pixels(pixels)
    height, width, _ = pixels.shape
    return sha256_bytes(struct.pack(">II", width, height) + pixels.tobytes())


def _check_pixels(pixels: Pixels) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"pixels: must be (height, width, 3) uint8, got {pixels.shape} {pixels.dtype}")


def _own_content(info: PngInfo) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "request_id": info.request_id,
        "request": request_json(info.request),
        "model_set": {"name": info.model_set_name, "digest": info.model_set_digest},
        "manifest": info.manifest,
    }


def _defuse(prompt: str) -> str:
    prompt = prompt.replace("Negative prompt:", f"Negative prompt{_ZERO_WIDTH_SPACE}:")
    return _STEPS_LINE.sub(rf"\1{_ZERO_WIDTH_SPACE}", prompt)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _quote(value: str) -> str:
    """The value as a JSON string when it holds anything that parts fields."""
    plain = value == value.strip() and not re.search(r'[,:"{}\\\x00-\x1f]', value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def _decode(data: bytes, where: str) -> tuple[Pixels, dict[str, str]]:
    """Pixels (H, W, 3) uint8 and the texts by keyword; raises CorruptError for whatever else the bytes are."""
    return _open_image(data, where, _read_image)


def _open_image(data: bytes, where: str, read: Callable[[PngImagePlugin.PngImageFile, str], T]) -> T:
    """What `read` makes of the opened image; raises CorruptError for whatever else the bytes are."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's advice on palettes and animation
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=("PNG",))
            assert isinstance(image, PngImagePlugin.PngImageFile)
            return read(image, where)
    except CorruptError:
        raise
    except Exception as error:  # Pillow's readers raise nearly anything on a bad file: IndexError, AssertionError, ...
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "is not a whole PNG" if unknown else f"does not decode: {str(error) or type(error).__name__}"
        raise CorruptError(f"{where}: {reason}: restore it or run the job again") from error


def _read_image(image: PngImagePlugin.PngImageFile, where: str) -> tuple[Pixels, dict[str, str]]:
    """The same colours from any way to store them; ours have no transparency, and 16 bits do not fit in 8."""
    if max(image.size) > MAX_PIXELS:
        width, height = image.size
        raise CorruptError(f"{where}: must be at most {MAX_PIXELS} pixels wide and high, got {width}x{height}")
    image.load()
    if image.mode not in ("RGB", "RGBA", "P", "L", "LA", "1"):
        raise CorruptError(f"{where}: must have 8 bits a channel, got mode {image.mode}: not the picture that was made")
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise CorruptError(f"{where}: must have no transparency: not the picture that was made")
    pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)
    return pixels, _read_texts(image, where)


def _read_texts(image: PngImagePlugin.PngImageFile, _where: str) -> dict[str, str]:
    return {keyword: str(text) for keyword, text in image.text.items()}


def _parse_own(text: str, where: str) -> PngRecord:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{where}: its {OWN_KEYWORD} chunk is not valid JSON: {error}: use the manifest") from error
    if isinstance(content, dict):
        refuse_newer(content.get("schema_version"), SCHEMA_VERSION, where)
    try:
        return PngRecord.model_validate_json(text)
    except ValidationError as error:
        raise CorruptError(f"{where}: its {OWN_KEYWORD} chunk: {describe_fault(error)}: use the manifest") from error
