"""One image of an expanded job: its request, its names, its file name and the [[exclude]] that drops it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anima_batch.job.problem import render_string
from anima_batch.job.request import ImageRequest, request_ids

SLUG_BYTES = 80


@dataclass(frozen=True, slots=True)
class JobImage:
    """What one image is asked to be, and the names by which the job speaks of it.

    `open_draw` is the position of a random seed that is not drawn yet: `request.seed` is void then, `seed` None.
    `include` is the index of its [[include]], None for a combination of [matrix].
    """

    request: ImageRequest
    prompt_name: str | None
    policy_name: str
    open_draw: int | None = None
    include: int | None = None

    @property
    def seed(self) -> int | None:
        """The seed; None while it waits to be drawn."""
        return self.request.seed if self.open_draw is None else None

    def stem(self, request_id: str) -> str:
        """`<slug>-<seed>-<policy>-<id12>`, the image's file name without its suffix."""
        return f"{make_slug(self.prompt_name or self.request.prompt)}-{self.seed}-{self.policy_name}-{request_id[:12]}"


def image_ids(images: Sequence[JobImage], model_set_digest: str) -> list[str | None]:
    """The request_id of each image, None where the seed is not drawn yet."""
    ids = request_ids((image.request for image in images), model_set_digest)
    return [known if image.open_draw is None else None for image, known in zip(images, ids, strict=True)]


def make_slug(text: str) -> str:
    """The text as part of a file name: letters and digits of any script, "-" for the rest, at most 80 bytes of UTF-8.

    Normalised to NFC. Marks stay with the letter that they follow; the cut falls before a letter, never before a mark.
    """
    pieces: list[str] = []
    # 80 bytes hold 80 characters at most; the rest of a long prompt is not looked at.
    for character in unicodedata.normalize("NFC", text):
        if len(pieces) > SLUG_BYTES:
            break
        follows = bool(pieces) and pieces[-1] != "-"
        if character.isalnum() or (follows and _is_mark(character)):
            pieces.append(character)
        elif follows:
            pieces.append("-")
    return _cut("".join(pieces)).strip("-") or "prompt"


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _cut(text: str) -> str:
    kept = text.encode("utf-8")[:SLUG_BYTES].decode("utf-8", "ignore")
    if len(kept) == len(text) or not _is_mark(text[len(kept)]):
        return kept
    whole = len(kept) - 1
    while whole > 0 and _is_mark(kept[whole]):
        whole -= 1
    return kept[:whole] or kept  # a single letter under more than 80 bytes of marks loses some of them


def exclude_for(image: JobImage, keys: Iterable[str]) -> str:
    """What to add to the job file, so that combinations like this image in the fields `keys` are not asked for.

    TOML text, ready to paste; for an [[include]], which no [[exclude]] reaches, the advice to change it.
    """
    names = list(keys)
    if image.include is not None:
        return f"change {' or '.join(names)} in include[{image.include}]"
    return exclude_text({name: _exclude_value(image, name) for name in names})


def exclude_text(fields: Mapping[str, Any]) -> str:
    """An [[exclude]] table of these fields as TOML text."""
    lines = [f"{name} = {render_string(value) if isinstance(value, str) else value}" for name, value in fields.items()]
    return "\n".join(["[[exclude]]", *lines])


def _exclude_value(image: JobImage, name: str) -> Any:  # noqa: ANN401 - any field
    if name == "policy":
        return image.policy_name
    if name == "prompt":
        return image.prompt_name or image.request.prompt
    return getattr(image.request, name)
