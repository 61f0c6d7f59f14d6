"""Job files made from a grammar: valid TOML, mostly, whose keys and values are right, nearly right or absurd."""

from __future__ import annotations

import json

from hypothesis import strategies as st

_FIELDS = [
    *("prompt", "negative_prompt", "seed", "width", "height", "steps", "guidance_scale", "shift", "schedule"),
    *("sampler", "noise", "policy", "preset", "zip", "kind", "forecast", "window_size", "history", "degree", "name"),
    *("tail_steps", "stop_fraction", "warmup_steps", "blend", "staging", "pinned", "threads", "core_mask", "stpes"),
]
_TABLES = [
    *("[defaults]", "[matrix]", "[[exclude]]", "[[include]]", "[run]", "[policy.gentle]", "[policy.full]"),
    *("[policy]", "[policy.'a b']", "[policy.x.y]", "[[policy]]", "[other]", "[defaults.prompt]", "[[matrix.seed]]"),
]
_WORDS = [
    *("a boat", "owl", "", "full", "spectrum", "gentle", "balanced", "euler", "ab2", "dpmpp_2m", "simple", "beta"),
    *("torch", "numpy", "auto", "1..3", "0..49", "3..1", "0..18446744073709551615", "0..18446744073709551616"),
    *("1..99999999999999999999999999999999999999999", "..", "prompts.txt", "../prompts.txt", "/dev/zero", "jobs"),
    *("\x1b[31m", "\u202e", "\u5915", "a\nb", "e\u0301" * 50, "features", "sigma", "a" * 300, "a" * 100_001),
]
_LITERALS = [
    *("0", "1", "3", "6", "16", "128", "192", "500", "-1", "2", "4.0", "0.5", "-0.0", "1e308", "1e400", "nan", "-inf"),
    *("true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "0xff", "9223372036854775808", "1_000"),
    *(
        "18446744073709551615",
        "18446744073709551616",
        "9" * 400,
        "9" * 5000,
        "'''",
        "[",
        "{",
        '"',
        "[" * 300 + "]" * 300,
    ),
]

_scalar = st.sampled_from(_LITERALS) | st.sampled_from(_WORDS).map(lambda word: json.dumps(word, ensure_ascii=True))
_inline = st.sampled_from(
    [
        *('{ name = "owl", text = "an owl" }', '{ name = "", text = "x" }', "{ text = 1 }", '{ file = "prompts.txt" }'),
        *('{ file = "none" }', '{ file = "jobs" }', '{ file = "" }', "{ random = 2 }", "{ random = 0 }", "{}"),
        *("{ random = 99999999999 }", '[["width", "height"]]', '[["seed", "prompt"], ["seed"]]', "{ a = { a = {} } }"),
    ]
)
_value = _scalar | _inline | st.lists(_scalar | _inline, max_size=4).map(lambda values: f"[{', '.join(values)}]")
_line = st.builds(lambda key, value: f"{key} = {value}", st.sampled_from(_FIELDS), _value)
_table = st.builds(
    lambda header, lines: "\n".join([header, *lines]), st.sampled_from(_TABLES), st.lists(_line, max_size=4)
)
_top = st.sampled_from(
    [
        *('schema_version = 1\nmodel_set = "mine"\nmax_images = 50', "schema_version = 1", "schema_version = 2", ""),
        *('schema_version = 1\nmodel_set = "../models/mine"\nname = "a b"', "schema_version = true"),
        *('schema_version = 1\nmodel_set = "mine"\nname = "../x"', "schema_version = 1\nmax_images = 0"),
    ]
)
_sound = '[defaults]\nprompt = "a boat"\nseed = 1'

JOB_TEXTS = st.builds(
    lambda top, sound, tables: "\n".join([top, *([_sound] if sound else []), *tables]) + "\n",
    _top,
    st.booleans(),
    st.lists(_table, max_size=4),
).map(lambda text: text.encode("utf-8"))

PROMPT_FILES = st.lists(
    st.sampled_from([word.encode() for word in _WORDS] + [b"\0", b"\xff", b"\xef\xbb\xbf", b"#", b"\r", b" ", b"\x85"]),
    max_size=8,
).map(b"\n".join)
