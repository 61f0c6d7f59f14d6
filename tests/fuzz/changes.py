"""Changes of valid files as Hypothesis strategies: of bytes, of JSON's structure, of a PNG's chunks, of a container."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fuzz.seals import pack_body, read_chunks, seal_png, split_body, wrap_tensors, write_chunks
from hypothesis import strategies as st

PLACE = st.integers(0, 2**16 - 1)  # of a length, in 65536ths
DEEP = 100_000


class Raw(bytes):
    """What is written into JSON as it is."""


class Pairs(list):
    """A JSON object as its (key, value) pairs: a key may be there twice."""


HOSTILE_TEXTS = [
    "",
    " ",
    "\0",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "a\nb\r\nc\u2028d",
    "\u202eevil",
    "[red]x[/red] :cat:",
    "\ud800",
    "\U0010ffff\ufffe",
    "e\u0301" * 300,
    "..",
    ".",
    "/",
    "../../../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "a//b/./c",
    "C:\\x",
    "-rf",
    "x" * 300,
    "x/" * 1000,
    "x" * 200_000,
    "0" * 64,
    "f" * 64,
    "done",
    "failed",
    "{message}{0}%s%n",
]
HOSTILE_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -0.0,
    -1,
    0.5,
    1e308,
    -1e308,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    10**30,
    Raw(b"9" * 400),
    Raw(b"9" * 5000),
    Raw(b"1e400"),
    Raw(b"NaN"),
    Raw(b"-Infinity"),
    Raw(b"1" + b"0" * 20 + b".0"),
    Raw(b'"\\ud800\\udc00\\ud800"'),
    Raw(b"[" * DEEP),
    Raw(b"[" * 500 + b"]" * 500),
    Raw(b'{"a":' * 900 + b"1" + b"}" * 900),
    [],
    Pairs(),
    [[]] * 50,
    [0] * 1000,
    *HOSTILE_TEXTS,
]
TOKENS = [
    *(text.encode("utf-8", "surrogatepass") for text in HOSTILE_TEXTS),
    *(bytes(value) for value in HOSTILE_VALUES if isinstance(value, Raw)),
    *(bytes([byte]) for byte in b"[]{}()\"'\\,:=.#\n\r\t\0\x7f\x80\xff"),
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"a." * 50_000,
    b"[[x]]\n" * 10_000,
    b'"schema_version": 99, ',
    b"schema_version = 99\n",
    b"\0" * 4096,
]


# A change of bytes: (data, place, other place, token, another valid file) -> changed data.
def _at(data: bytes, place: int) -> int:
    return place * (len(data) + 1) >> 16


def _range(data: bytes, a: int, b: int) -> tuple[int, int]:
    start, end = sorted((_at(data, a), _at(data, b)))
    return start, end


def _flip_bit(data: bytes, a: int, b: int, _token: bytes, _other: bytes) -> bytes:
    at = min(_at(data, a), len(data) - 1)
    return data if not data else data[:at] + bytes([data[at] ^ 1 << (b & 7)]) + data[at + 1 :]


def _cut_end(data: bytes, a: int, _b: int, _token: bytes, _other: bytes) -> bytes:
    return data[: _at(data, a)]


def _cut_out(data: bytes, a: int, b: int, _token: bytes, _other: bytes) -> bytes:
    start, end = _range(data, a, b)
    return data[:start] + data[end:]


def _zero_end(data: bytes, a: int, _b: int, _token: bytes, _other: bytes) -> bytes:
    at = _at(data, a)
    return data[:at] + bytes(len(data) - at)


def _insert(data: bytes, a: int, _b: int, token: bytes, _other: bytes) -> bytes:
    at = _at(data, a)
    return data[:at] + token + data[at:]


def _replace(data: bytes, a: int, b: int, token: bytes, _other: bytes) -> bytes:
    start = _at(data, a)
    return data[:start] + token + data[start + (b & 15) :]


def _splice(data: bytes, a: int, b: int, _token: bytes, other: bytes) -> bytes:
    return data[: _at(data, a)] + other[_at(other, b) :]


def _repeat(data: bytes, a: int, b: int, _token: bytes, _other: bytes) -> bytes:
    at = _at(data, a)
    return data[:at] + data[at : at + (b & 63)] * (b >> 4) + data[at:]


def pick(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of the values; unlike that of `sampled_from` its repr does not show them, and they are long."""
    return st.integers(0, len(values) - 1).map(values.__getitem__)


BYTE_CHANGES: list[Callable[[bytes, int, int, bytes, bytes], bytes]] = [
    *(_flip_bit, _cut_end, _cut_out, _zero_end, _insert, _replace, _splice, _repeat)
]


def change_bytes(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the files after one to three changes that know nothing of its format."""
    change = st.tuples(st.sampled_from(BYTE_CHANGES), PLACE, PLACE, pick(TOKENS), pick(seeds))

    def apply(data: bytes, changes: list[tuple[Any, int, int, bytes, bytes]]) -> bytes:
        for alter, *arguments in changes:
            data = alter(data, *arguments)
        return data

    return st.builds(apply, pick(seeds), st.lists(change, min_size=1, max_size=3))


# A change of JSON: each takes the list or Pairs that holds the value, and the value's index there.
def _set(holder: Any, index: int, value: Any) -> None:
    key = holder[index][0] if isinstance(holder, Pairs) else None
    holder[index] = value if key is None else (key, value)


def _get(holder: Any, index: int) -> Any:
    return holder[index][1] if isinstance(holder, Pairs) else holder[index]


def _put(holder: Any, index: int, value: Any, _text: str) -> None:
    _set(holder, index, value)


def _delete(holder: Any, index: int, _value: Any, _text: str) -> None:
    del holder[index]


def _rename(holder: Any, index: int, _value: Any, text: str) -> None:
    if isinstance(holder, Pairs):
        holder[index] = (text, holder[index][1])


def _add(holder: Any, index: int, value: Any, text: str) -> None:
    holder.insert(index, (text, value) if isinstance(holder, Pairs) else value)


def _double(holder: Any, index: int, value: Any, _text: str) -> None:
    holder.append((holder[index][0], value) if isinstance(holder, Pairs) else holder[index])


def _wrap(holder: Any, index: int, _value: Any, _text: str) -> None:
    _set(holder, index, [_get(holder, index)])


def _multiply(holder: Any, index: int, _value: Any, _text: str) -> None:
    value = _get(holder, index)
    if isinstance(value, list) and not isinstance(value, Pairs) and len(value) < 100:
        _set(holder, index, value * 100)


JSON_CHANGES: list[Callable[[Any, int, Any, str], None]] = [
    *(_put, _put, _put, _delete, _rename, _add, _double, _wrap, _multiply)
]


def read_tree(text: bytes | str) -> Any:
    return json.loads(text, object_pairs_hook=Pairs)


def write_tree(tree: Any, indent: int = 0) -> bytes:
    """JSON as the project writes it, indented, but of any content."""
    if isinstance(tree, Raw):
        return bytes(tree)
    inner, outer = b"\n" + b"  " * (indent + 1), b"\n" + b"  " * indent
    if isinstance(tree, Pairs):
        parts = [_text(key) + b": " + write_tree(value, indent + 1) for key, value in tree]
        return b"{" + inner + (b"," + inner).join(parts) + outer + b"}" if parts else b"{}"
    if isinstance(tree, list):
        parts = [write_tree(value, indent + 1) for value in tree]
        return b"[" + inner + (b"," + inner).join(parts) + outer + b"]" if parts else b"[]"
    return _text(tree) if isinstance(tree, str) else json.dumps(tree).encode()


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


class _Change(NamedTuple):
    alter: Callable[[Any, int, Any, str], None]
    place: int
    value: Any
    text: str


def change_json(texts: Sequence[bytes | str]) -> st.SearchStrategy[bytes]:
    """One of the JSON texts after one to three changes of its values, keys and nesting."""
    change = st.builds(
        _Change, st.sampled_from(JSON_CHANGES), PLACE, pick(HOSTILE_VALUES).map(copy.deepcopy), pick(HOSTILE_TEXTS)
    )

    def apply(text: bytes | str, changes: list[_Change]) -> bytes:
        tree = [read_tree(text)]
        for alter, place, value, key in changes:
            holders = list(_walk(tree))
            holder, index = holders[place * len(holders) >> 16]
            alter(holder, index, value, key)
            tree = tree or [value]
        return write_tree(tree[0]) + b"\n"

    return st.builds(apply, pick(texts), st.lists(change, min_size=1, max_size=3))


def _walk(holder: Any) -> Iterator[tuple[Any, int]]:
    for index in range(len(holder)):
        yield holder, index
        value = _get(holder, index)
        if isinstance(value, list):
            yield from _walk(value)


def change_container(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A container with a right digest over a changed header, changed metadata or changed array bytes."""
    parts = [(data.partition(b" sha256:")[0], *split_body(data.partition(b"\n")[2])) for data in seeds]
    headers = [header for _, header, _ in parts]
    metas = [json.loads(header)["__metadata__"]["meta"] for header in headers]

    def rewrap(number: int, changed: bytes, *, inner: bool) -> bytes:
        name, header, arrays = parts[number]
        if inner:
            content = json.loads(header)
            content["__metadata__"]["meta"] = changed.decode("utf-8", "surrogatepass")
            changed = json.dumps(content).encode()
        return wrap_tensors(name, pack_body(changed, arrays))

    numbers = st.sampled_from(range(len(seeds)))
    of_header = numbers.flatmap(lambda n: change_json([headers[n]]).map(lambda text: rewrap(n, text, inner=False)))
    of_meta = numbers.flatmap(lambda n: change_json([metas[n]]).map(lambda text: rewrap(n, text, inner=True)))
    return of_header | of_meta


def _bomb(size: int) -> bytes:
    """So many zero bytes, compressed."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    parts = [packer.compress(block) for _ in range(size >> 20)]
    return b"".join(parts) + packer.flush()


def _header(width: int, height: int, depth: int = 8, colour: int = 2, interlace: int = 0) -> tuple[bytes, bytes]:
    content = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, interlace])
    return b"IHDR", content


def hostile_chunks() -> list[tuple[bytes, bytes]]:
    """Chunks that a PNG of ours does not have: bombs of 4 MiB, other colours and depths, animation, huge sizes."""
    bomb = _bomb(4 << 20)
    return [
        (b"iCCP", b"profile\0\0" + bomb),
        (b"zTXt", b"parameters\0\0" + bomb),
        (b"zTXt", b"anima_batch\0\0" + bomb),
        (b"iTXt", b"anima_batch\0\1\0\0\0" + bomb),
        (b"iTXt", b"anima_batch\0\0\0\0\0" + b"[" * DEEP),
        (b"tEXt", b"anima_batch\0" + b"x" * 1_000_000),
        (b"tEXt", b"anima_batch"),
        (b"tEXt", b"\0\0\0"),
        (b"IDAT", bomb),
        (b"fdAT", b"\0\0\0\1" + bomb),
        (b"acTL", (2**31 - 1).to_bytes(4, "big") + bytes(4)),
        (b"fcTL", bytes(26)),
        (b"PLTE", bytes(768)),
        (b"tRNS", bytes(6)),
        (b"gAMA", bytes(4)),
        (b"cHRM", b"\xff" * 32),
        (b"eXIf", b"MM\0*" + b"\xff" * 64),
        (b"sBIT", b""),
        (b"pHYs", b"\xff" * 9),
        (b"IEND", b""),
        _header(0, 0),
        _header(2**31 - 1, 2**31 - 1),
        _header(2**31, 1),
        _header(9000, 9000),
        _header(100_000, 100_000, 1, 0),
        _header(16, 8, 16, 6),
        _header(16, 8, 1, 3, 1),
        _header(16, 8, 99, 99, 99),
    ]


def change_png(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A PNG with right checksums over changed chunks, or over a changed `anima_batch` chunk."""
    files = [read_chunks(data) for data in seeds]
    chunks = [*hostile_chunks(), *(chunk for file in files for chunk in file)]
    kinds = st.sampled_from(["insert", "replace", "delete"])
    change = st.tuples(kinds, PLACE, pick(chunks))

    def apply(file: list[tuple[bytes, bytes]], changes: list[tuple[str, int, tuple[bytes, bytes]]]) -> bytes:
        file = list(file)
        for kind, place, chunk in changes:
            at = place * (len(file) + 1) >> 16
            file[at : at + (kind != "insert")] = [chunk] if kind != "delete" else []
        return write_chunks(file)

    def with_own(file: list[tuple[bytes, bytes]], text: bytes) -> bytes:
        return write_chunks(
            [(b"iTXt", _OWN + text) if content.startswith(_OWN) else (kind, content) for kind, content in file]
        )

    own = [content.removeprefix(_OWN) for file in files for _, content in file if content.startswith(_OWN)]
    by_chunk = st.builds(apply, pick(files), st.lists(change, min_size=1, max_size=3))
    by_own = st.builds(with_own, pick(files), change_json(own))
    return by_chunk | by_own | change_bytes(seeds).map(seal_png)


_OWN = b"anima_batch\0\0\0\0\0"
