"""Finding, reading, verifying and sealing model sets, on copies of the built-in one."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.errors import ModelSetError, ModelSetNotFoundError, StorageError
from anima_batch.files import file_digests
from anima_batch.model_set import (
    ModelSet,
    ModelSetFile,
    built_in_folder,
    find_by_digest,
    find_model_set,
    load_model_set,
    scan_model_sets,
    seal_model_set,
    verify_model_set,
)

BUILT_IN = load_model_set(built_in_folder() / "picture-book")
COMPONENTS = [part.path for part in BUILT_IN.description.components]
CONTENT = json.loads((BUILT_IN.folder / "model_set.json").read_text())
HOSTILE_PATHS = [
    "../secret.onnx",
    "/etc/passwd",
    "/dev/zero",
    "qwen/../../x.onnx",
    "..",
    "",
    ".",
    "a\0b.onnx",
    "x" * 256,
    "x/" * 600,
    "é" * 5000,
]


@pytest.fixture
def copy_set(tmp_path):
    """Copies the built-in set to a folder of the workspace, with changes to the top level of its description."""

    def copy(folder="models/mine", **changes):
        target = tmp_path / folder
        shutil.copytree(BUILT_IN.folder, target)
        write(target, {**CONTENT, **changes})
        return target

    return copy


def write(folder, content):
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "model_set.json").write_text(text)


def flip_byte(path, position=-1):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def fault_of(folder):
    """The one line of the error, without the file's name that it must start with."""
    with pytest.raises(ModelSetError) as caught:
        load_model_set(folder)
    message, path = str(caught.value), folder / "model_set.json"
    assert caught.value.exit_code == 4
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_the_built_in_set_is_what_its_digests_say():
    assert verify_model_set(BUILT_IN, sha256=True) == []
    assert all((BUILT_IN.folder / part.path).stat().st_size == part.bytes for part in BUILT_IN.description.components)


def test_a_name_is_looked_for_in_the_workspace_then_among_the_built_in_sets_then_as_a_path(copy_set, tmp_path):
    assert find_model_set("picture-book", tmp_path).folder == BUILT_IN.folder
    by_path = copy_set("picture-book")
    assert find_model_set("picture-book", tmp_path).folder == BUILT_IN.folder
    own = copy_set("models/picture-book")
    assert find_model_set("picture-book", tmp_path).folder == own
    shutil.rmtree(own)
    assert find_model_set(str(by_path), tmp_path).folder == by_path


def test_a_relative_path_starts_at_the_workspace(copy_set, tmp_path):
    folder = copy_set("sets/other")
    assert find_model_set("sets/other", tmp_path).folder == folder


def test_an_unknown_name_lists_the_known_ones(copy_set, tmp_path):
    copy_set("models/mine")
    with pytest.raises(ModelSetNotFoundError) as caught:
        find_model_set("yours", tmp_path)
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        "model_set: must be one of mine, picture-book or a folder with model_set.json, got 'yours' "
        f"(looked in {tmp_path / 'models'}, then among the built-in ones)"
    )


def test_a_broken_neighbour_does_not_get_in_the_way_of_another_name(copy_set, tmp_path):
    write(copy_set("models/broken"), "{")
    assert find_model_set("picture-book", tmp_path).folder == BUILT_IN.folder
    with pytest.raises(ModelSetNotFoundError, match="one of broken, picture-book"):
        find_model_set("yours", tmp_path)


def test_a_folder_without_a_description_is_not_found(tmp_path):
    with pytest.raises(ModelSetNotFoundError) as caught:
        load_model_set(tmp_path)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{tmp_path}: no model set there (model_set.json is missing)")


@pytest.mark.parametrize("text", ["", "{", "[1", "\ufeff{}", "nothing", '{"a": 1}}'])
def test_bad_json_is_refused_with_the_files_name(text, copy_set):
    folder = copy_set()
    write(folder, text)
    assert fault_of(folder).startswith("the model set is not valid JSON: ")


def test_bytes_that_are_not_text_are_refused(copy_set):
    folder = copy_set()
    (folder / "model_set.json").write_bytes(b"\xff\xfe\x00")
    assert fault_of(folder).startswith("the model set is not valid JSON: ")


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), (0, "0"), ("1", "'1'"), (None, "None")])
def test_another_schema_version_is_refused(version, shown, copy_set):
    assert fault_of(copy_set(schema_version=version)).startswith(f"schema_version: must be 1, got {shown}: ")


@pytest.mark.parametrize("content", [[], "text", 1, {}])
def test_json_that_is_no_model_set_is_refused(content, copy_set):
    folder = copy_set()
    write(folder, json.dumps(content))
    assert fault_of(folder).startswith("schema_version: must be 1, got None: ")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"colour": "red"}, "colour"),
        ({"sizes": []}, "sizes"),
        ({"transformer": {**CONTENT["transformer"], "blocks": "many"}}, "transformer.blocks"),
        ({"text": {**CONTENT["text"], "empty_prompt": "nothing"}}, "text.empty_prompt"),
        ({"vae": {"latent_mean": [0.0]}}, "vae.latent_std"),
        ({"components": [{**CONTENT["components"][0], "size": 1}]}, "components.0.size"),
    ],
)
def test_an_unknown_a_missing_and_a_wrong_key_are_named(changes, key, copy_set):
    assert fault_of(copy_set(**changes)).startswith(f"{key}: ")


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_a_component_outside_the_folder_is_refused(path, copy_set):
    first, second, *rest = CONTENT["components"]
    fault = fault_of(copy_set(components=[first, {**second, "path": path}, *rest]))
    assert fault.startswith("components.1.path: must be a path below the folder: relative, no '..', no NUL, ")
    assert fault.endswith(": convert the model set again")
    assert len(fault) < 250


def test_a_role_that_is_there_twice_in_one_kind_is_refused(copy_set):
    parts = CONTENT["components"]
    folder = copy_set(components=[*parts, {**parts[-1], "path": "vae/other.onnx"}])
    assert fault_of(folder) == (
        "components: vae.decoder must be there once as .onnx, got 2 of it: convert the model set again"
    )


@pytest.mark.parametrize(
    ("table", "key", "value", "fault"),
    [
        ("transformer", "blocks", 0, "transformer.blocks: Input should be greater than or equal to 1, got 0"),
        ("transformer", "blocks", 10**9, "transformer.blocks: "),
        ("transformer", "head_dim", 9, "transformer.head_dim: Input should be a multiple of 2, got 9"),
        ("transformer", "head_dim", 6, "transformer.head_dim: "),
        ("transformer", "head_dim", 40, "transformer.head_dim: must divide hidden = 192, got 40"),
        ("transformer", "hidden", 0, "transformer.hidden: "),
        ("transformer", "context_dim", 0, "transformer.context_dim: "),
        ("transformer", "latent_channels", 8, "transformer.latent_channels: "),
        ("text", "context_rows", 0, "text.context_rows: "),
        ("text", "empty_token_id", -1, "text.empty_token_id: "),
        ("text", "head_dim", 0, "text.head_dim: "),
        ("text", "adapter_head_dim", 7, "text.adapter_head_dim: "),
        ("text", "rope_theta", 0.0, "text.rope_theta: "),
        ("text", "rope_theta", float("nan"), "text.rope_theta: Input should be a finite number, got nan"),
        ("text", "adapter_rope_theta", float("inf"), "text.adapter_rope_theta: "),
        ("vae", "latent_mean", [float("nan")] + [0.0] * 15, "vae.latent_mean.0: "),
        ("vae", "latent_std", [1.0] * 15 + [0.0], "vae.latent_std.15: Input should be greater than 0, got 0.0"),
        ("vae", "latent_std", [-1.0] * 16, "vae.latent_std.0: "),
        ("vae", "latent_mean", [0.0] * 15, "vae: latent_mean must have 16 values, one a latent channel, got 15"),
        ("vae", "latent_std", [1.0] * 17, "vae: latent_std must have 16 values, one a latent channel, got 17"),
        ("vae", "tile", 3, "vae.tile: "),
    ],
)
def test_a_value_that_nothing_could_run_with_is_refused(table, key, value, fault, copy_set):
    found = fault_of(copy_set(**{table: {**CONTENT[table], key: value}}))
    assert found.startswith(fault)
    assert found.endswith(": convert the model set again")


@pytest.mark.parametrize("size", [[0, 128], [128, -16], [100, 128], [128], [128, 128, 128]])
def test_a_size_that_is_no_multiple_of_16_is_refused(size, copy_set):
    assert fault_of(copy_set(sizes=[[128, 128], size])).startswith("sizes.1")


@pytest.mark.parametrize(
    ("key", "value"), [("sha256", "0" * 63), ("sha256", "A" * 64), ("xxh3_128", ""), ("bytes", -1)]
)
def test_a_digest_or_count_that_no_manifest_could_record_is_refused(key, value, copy_set):
    first, *rest = CONTENT["components"]
    assert fault_of(copy_set(components=[{**first, key: value}, *rest])).startswith(f"components.0.{key}: ")


def as_rknn(part):
    return {**part, "path": part["path"].replace(".onnx", ".rknn")}


def test_the_transformers_graphs_are_all_there_in_each_kind_in_which_any_is(copy_set):
    parts = CONTENT["components"]
    graphs = [part for part in parts if re.match(r"transformer\.\d", part["role"])]
    others = [part for part in parts if part not in graphs]
    extra = {**graphs[0], "role": "transformer.06.mlp", "path": "transformer/06.mlp.onnx"}
    prefix = "components: must be 6 x self_attn, cross_attn, mlp as"
    for number, (components, fault) in enumerate(
        [
            ([*others, *graphs[1:]], f"{prefix} .onnx: transformer.00.self_attn is missing"),
            ([*parts, extra], f"{prefix} .onnx: transformer.06.mlp is one too many"),
            ([*parts, {**extra, "role": "transformer.ffn"}], f"{prefix} .onnx: transformer.ffn is one too many"),
            ([*parts, as_rknn(graphs[0])], f"{prefix} .rknn: transformer.00.cross_attn is missing"),
        ]
    ):
        assert fault_of(copy_set(f"models/{number}", components=components)).startswith(fault)
    board = load_model_set(copy_set(components=[*others, *map(as_rknn, graphs)]))
    assert board.has(".rknn")


def test_a_role_or_kind_that_the_set_lacks_is_an_error_that_names_both():
    assert BUILT_IN.path("vae.decoder") == BUILT_IN.folder / "vae/decoder.onnx"
    assert BUILT_IN.has(".onnx")
    assert not BUILT_IN.has(".rknn")
    for role, suffix in (("vae.decoder", ".rknn"), ("vae.encoder", ".onnx")):
        with pytest.raises(ModelSetError) as caught:
            BUILT_IN.path(role, suffix)
        assert caught.value.exit_code == 4
        assert str(caught.value) == (
            f"{BUILT_IN.folder / 'model_set.json'}: no {suffix} component of role {role}: convert it first"
        )


def test_the_digest_is_the_same_under_other_names_sizes_licences_and_tools(copy_set):
    changed = load_model_set(
        copy_set(
            "models/renamed",
            name="other",
            license="none",
            sizes=[[64, 64]],
            sources=[],
            components=[{**part, "built_with": {}, "inputs": []} for part in reversed(CONTENT["components"])],
        )
    )
    assert changed.name == "other"
    assert changed.digest == BUILT_IN.digest


def change(value):
    """Another value of the same type."""
    match value:
        case "masked":
            return "token"
        case [first, *rest]:
            return (first + 0.5, *rest)
        case None:
            return 16
        case _:
            return value + 1


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table in ("transformer", "text", "vae") for key in CONTENT[table]]
)
def test_every_key_of_the_configuration_acts_on_the_digest(table, key):
    config = getattr(BUILT_IN.description, table)
    changed = config.model_copy(update={key: change(getattr(config, key))})
    description = BUILT_IN.description.model_copy(update={table: changed})
    assert ModelSet(BUILT_IN.folder, description).digest != BUILT_IN.digest


@settings(deadline=None)
@given(index=st.integers(0, len(COMPONENTS) - 1), digit=st.integers(0, 63))
def test_any_digit_of_any_components_sha256_acts_on_the_digest(index, digit):
    part = CONTENT["components"][index]
    other = "0" if part["sha256"][digit] != "0" else "1"
    changed = {**part, "sha256": part["sha256"][:digit] + other + part["sha256"][digit + 1 :]}
    parts = [*CONTENT["components"][:index], changed, *CONTENT["components"][index + 1 :]]
    description = ModelSetFile.model_validate({**CONTENT, "components": parts})
    assert type(BUILT_IN)(BUILT_IN.folder, description).digest != BUILT_IN.digest


def test_a_component_that_is_missing_or_serves_another_role_acts_on_the_digest(copy_set):
    first, second, *rest = CONTENT["components"]
    fewer = copy_set("models/fewer", components=[first, *rest])
    swapped = [{**first, "role": second["role"]}, {**second, "role": first["role"]}, *rest]
    digests = {load_model_set(folder).digest for folder in (fewer, copy_set("models/swapped", components=swapped))}
    assert len(digests | {BUILT_IN.digest}) == 3


def test_a_parts_digest_depends_on_its_own_components_in_each_of_their_kinds(copy_set):
    def with_rknn(sha256):
        more = {**CONTENT["components"][2], "path": "qwen/model.rknn", "sha256": sha256}
        folder = copy_set(f"models/{sha256}", components=[*CONTENT["components"], more])
        return load_model_set(folder).part_digest("qwen.")

    assert len({BUILT_IN.part_digest("qwen."), with_rknn("a" * 64), with_rknn("b" * 64)}) == 3
    assert BUILT_IN.part_digest("qwen.") != BUILT_IN.part_digest("qwen.", "t5.")
    parts = [{**part, "sha256": "0" * 64} if part["role"] == "vae.decoder" else part for part in CONTENT["components"]]
    other = load_model_set(copy_set(components=parts))
    assert other.part_digest("qwen.", "t5.") == BUILT_IN.part_digest("qwen.", "t5.")
    assert other.part_digest("vae.") != BUILT_IN.part_digest("vae.")


def test_a_parts_digest_sees_the_onnx_graph_beside_an_rknn_one(copy_set):
    """Prompts are encoded on the CPU, whatever lies beside its graphs: what is kept of them must follow those."""
    parts = CONTENT["components"]
    board = {**parts[2], "path": "qwen/model.rknn"}
    changed = [{**part, "sha256": "0" * 64} if part is parts[2] else part for part in parts]
    before = load_model_set(copy_set("models/before", components=[*parts, board]))
    after = load_model_set(copy_set("models/after", components=[*changed, board]))
    assert before.part_digest("qwen.") != after.part_digest("qwen.")


@pytest.mark.parametrize("path", COMPONENTS)
@pytest.mark.parametrize("sha256", [False, True])
def test_one_flipped_bit_in_a_component_is_found(path, sha256, copy_set):
    folder = copy_set()
    flip_byte(folder / path, len((folder / path).read_bytes()) // 2)
    (problem,) = verify_model_set(load_model_set(folder), sha256=sha256)
    part = next(part for part in CONTENT["components"] if part["path"] == path)
    got = file_digests(folder / path)[1]
    assert problem == f"{folder / path}: {part['role']}: xxh3_128 must be {part['xxh3_128']}, got {got}"


def test_a_component_whose_sha256_alone_is_wrong_is_found_when_it_is_asked_for(copy_set):
    first, *rest = CONTENT["components"]
    folder = copy_set(components=[{**first, "sha256": "0" * 64}, *rest])
    assert verify_model_set(load_model_set(folder)) == []
    (problem,) = verify_model_set(load_model_set(folder), sha256=True)
    assert f"sha256 must be {'0' * 64}, got {first['sha256']}" in problem


def test_every_missing_truncated_and_replaced_file_is_listed(copy_set):
    folder = copy_set()
    (folder / COMPONENTS[0]).unlink()
    (folder / COMPONENTS[3]).write_bytes((folder / COMPONENTS[3]).read_bytes()[:-1])
    (folder / COMPONENTS[-1]).unlink()
    (folder / COMPONENTS[-1]).mkdir()
    missing, cut, replaced = verify_model_set(load_model_set(folder))
    assert missing == f"{folder / COMPONENTS[0]}: qwen.tokenizer: No such file or directory"
    assert cut.startswith(f"{folder / COMPONENTS[3]}: t5.tokenizer: bytes must be ")
    assert replaced == f"{folder / COMPONENTS[-1]}: vae.decoder: must be a regular file"


def test_sealing_records_what_the_files_are_now_and_what_they_were(copy_set):
    folder = copy_set()
    flip_byte(folder / COMPONENTS[5])
    before = load_model_set(folder)
    sealed = seal_model_set(before)
    assert sealed.digest != before.digest
    assert load_model_set(folder) == sealed
    assert verify_model_set(sealed, sha256=True) == []
    for old, new in zip(before.description.components, sealed.description.components, strict=True):
        if old.path == COMPONENTS[5]:
            assert new.sha256 == file_digests(folder / old.path)[0] != old.sha256
            assert new.built_with == {**old.built_with, "sealed_over": old.sha256}
            assert (new.role, new.inputs, new.outputs) == (old.role, old.inputs, old.outputs)
        else:
            assert new == old


def test_sealing_an_unchanged_set_changes_nothing(copy_set):
    before = load_model_set(copy_set())
    assert seal_model_set(before) == before
    assert seal_model_set(seal_model_set(before)).digest == BUILT_IN.digest


def test_sealing_over_a_missing_file_is_refused_and_writes_nothing(copy_set):
    folder = copy_set()
    (folder / COMPONENTS[4]).unlink()
    before = (folder / "model_set.json").read_bytes()
    with pytest.raises(ModelSetError) as caught:
        seal_model_set(load_model_set(folder))
    assert str(caught.value) == (
        f"{folder / COMPONENTS[4]}: adapter.embedding: No such file or directory: restore it, then seal again"
    )
    assert (folder / "model_set.json").read_bytes() == before


def test_a_description_that_cannot_be_written_is_a_storage_error(copy_set):
    folder = copy_set()
    flip_byte(folder / COMPONENTS[0])
    (folder / "model_set.json.tmp").mkdir()
    with pytest.raises(StorageError) as caught:
        seal_model_set(load_model_set(folder))
    assert caught.value.exit_code == 5


def test_a_renamed_set_is_found_by_its_digest(copy_set, tmp_path):
    folder = copy_set("models/mine")
    flip_byte(folder / COMPONENTS[0])
    digest = seal_model_set(load_model_set(folder)).digest
    renamed = folder.rename(tmp_path / "models" / "another name")
    assert [found.folder for found in find_by_digest(digest, tmp_path)] == [renamed]
    assert find_by_digest("0" * 64, tmp_path) == ()
    copy = copy_set("models/copy")
    assert [found.folder for found in find_by_digest(BUILT_IN.digest, tmp_path)] == [copy, BUILT_IN.folder]


def test_sets_are_listed_by_name_the_workspaces_first(copy_set, tmp_path):
    folders = [copy_set(f"models/{name}") for name in ("b", "a")]
    (tmp_path / "models" / "empty").mkdir()
    listed = [found.folder for found in scan_model_sets(tmp_path).sets]
    assert listed[:2] == folders[::-1]
    assert BUILT_IN.folder in listed[2:]
    assert Path(tmp_path / "models" / "empty") not in listed


def test_a_broken_set_hides_no_other_and_is_told_in_one_line(copy_set, tmp_path):
    write(copy_set("models/a"), "{")
    (tmp_path / "models" / "b" / "model_set.json").mkdir(parents=True)
    whole = copy_set("models/c")
    scan = scan_model_sets(tmp_path)
    assert [found.folder for found in scan.sets] == [whole, BUILT_IN.folder]
    first, second = scan.problems
    assert first.startswith(f"{tmp_path / 'models/a/model_set.json'}: the model set is not valid JSON")
    assert second.startswith(f"{tmp_path / 'models/b'}: no model set there")
    assert find_by_digest(BUILT_IN.digest, tmp_path)[0].folder == whole


def test_models_that_is_a_file_holds_no_sets(tmp_path):
    (tmp_path / "models").write_text("")
    assert [found.folder for found in scan_model_sets(tmp_path).sets] == [BUILT_IN.folder]


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "", ".."])
def test_a_name_that_no_folder_can_have_is_not_found(name, tmp_path):
    with pytest.raises(ModelSetNotFoundError):
        find_model_set(name, tmp_path)


def test_a_component_that_is_a_device_is_not_read(copy_set):
    folder = copy_set()
    (folder / COMPONENTS[0]).unlink()
    (folder / COMPONENTS[0]).symlink_to("/dev/zero")
    assert verify_model_set(load_model_set(folder)) == [
        f"{folder / COMPONENTS[0]}: qwen.tokenizer: must be a regular file"
    ]


def test_a_sources_digest_is_known_by_its_role():
    assert BUILT_IN.source_sha256("vae") == CONTENT["sources"][2]["sha256"]
    assert BUILT_IN.source_sha256("nothing") is None
