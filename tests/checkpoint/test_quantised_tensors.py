"""Quantised matrices among a folder's tensors: which belong together, and what does not fit."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyllm_kernels.tensors import Array

from pyllm.checkpoint.huggingface import read_huggingface
from pyllm.errors import ConfigError
from tests.checkpoint.test_hostile import damaged
from tests.families.tiny_families import write_tiny_family
from tests.safetensors_arrays import load_file, save_file
from tests.tiny_model import write_tiny_model
from tests.tiny_mxfp4 import write_mxfp4
from tests.tiny_quantised import SIZES, VARIANTS, Variant, awq, fp8, gptq, int8, packed, write_quantised

Q_PROJ = "model.layers.0.self_attn.q_proj"
ACT_ORDER = gptq(act_order=True)


def quantised(folder: Path, variant: Variant, tied: bool = True) -> Path:
    source = write_tiny_model(folder / "tiny", **SIZES, tied=tied)
    return Path(write_quantised(source, folder / "quantised", variant))


def mxfp4(folder: Path) -> Path:
    source = write_tiny_family(folder / "tiny", "gpt-oss")
    return Path(write_mxfp4(source, folder / "quantised", folder / "floats"))


def edit(folder: Path, change: Callable[[dict[str, Array]], object]) -> None:
    """Change the tensors of the folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["awq", "gptq in act-order", "packed asymmetric", "int8", "fp8 of blocks"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_matrix_is_one_entry_of_all_its_tensors(tmp_path: Path, name: str, tied: bool) -> None:
    folder = quantised(tmp_path, VARIANTS[name][0], tied)
    checkpoint = read_huggingface(folder)
    entries = {entry.name: entry for entry in checkpoint.tensors}
    query = entries["layers.0.attention.query.weight"]
    assert (query.source.name, query.source.shape) == (f"{Q_PROJ}.weight", (128, 64))
    assert entries["embedding.weight"].quantised is None
    assert ("head.weight" in entries) is not tied
    tensors = load_file(folder / "model.safetensors")
    of_query = {tensor.name for tensor in query.file_tensors} - {query.source.name}
    unused = ("weight_shape", "bias", "input_scale", "qweight", "weight_packed", "weight")
    assert of_query == {
        tensor for tensor in tensors if tensor.startswith(Q_PROJ) and tensor.rpartition(".")[2] not in unused
    }
    assert checkpoint.spec.dtype == "float32"


def test_the_fingerprint_covers_scales(tmp_path: Path) -> None:
    folder = quantised(tmp_path, awq())
    before = read_huggingface(folder).fingerprint
    edit(folder, changed("scales", lambda found: 2 * found))
    assert read_huggingface(folder).fingerprint != before


def test_a_group_index_in_order_is_none(tmp_path: Path) -> None:
    checkpoint = read_huggingface(quantised(tmp_path, gptq()))
    assert all(entry.quantised is None or entry.quantised.groups is None for entry in checkpoint.tensors)
    checkpoint = read_huggingface(quantised(tmp_path, ACT_ORDER))
    assert all(entry.quantised is None or entry.quantised.groups is not None for entry in checkpoint.tensors)


def test_a_folder_may_have_several_schemes(tmp_path: Path) -> None:
    folder = quantised(tmp_path, packed())
    other = quantised(tmp_path / "other", packed(-1, bits=8))
    others = load_file(other / "model.safetensors")
    edit(folder, lambda tensors: tensors.update({name: others[name] for name in tensors if "down_proj" in name}))
    config = json.loads((folder / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = packed(-1, bits=8).config["config_groups"]["group_0"] | {"targets": ["re:.*down_proj"]}
    (folder / "config.json").write_text(json.dumps(config))
    found = {entry.name: entry.quantised.bits for entry in read_huggingface(folder).tensors if entry.quantised}
    assert found["layers.0.feed_forward.down.weight"] == 8
    assert found["layers.0.feed_forward.up.weight"] == 4


def mixed(folder: Path, groups: dict[str, Any], ignore: list[str] | None = None) -> Path:
    """A model whose attention is symmetric and whose feed-forward layers have zero points, with these groups."""
    made = quantised(folder, packed())
    others = load_file(quantised(folder / "other", packed(symmetric=False)) / "model.safetensors")
    edit(made, lambda tensors: tensors.update({name: others[name] for name in others if ".mlp." in name}))
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"] |= {"config_groups": groups} | ({"ignore": ignore} if ignore else {})
    (made / "config.json").write_text(json.dumps(config))
    return made


def group(targets: list[str], symmetric: bool) -> dict[str, Any]:
    return packed(symmetric=symmetric).config["config_groups"]["group_0"] | {"targets": targets}


@pytest.mark.parametrize(
    ("symmetric", "asymmetric"),
    [
        (["re:.*self_attn.*"], ["re:.*mlp.*"]),
        (["Linear"], ["re:.*mlp.*"]),  # names come before classes, whatever the order of the groups
        (["re:.*self_attn.*"], ["Linear"]),
        (["re:model.layers.*self_attn"], ["re:model.language_model.layers.*mlp", "lm_head"]),
        (["Linear"], [f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 1) for name in ("gate", "up", "down")]),
        (
            ["re:.*proj"],
            [f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 1) for name in ("gate", "up", "down")],
        ),  # as exact names do before patterns
        (["re:.*proj"], ["re:.*mlp.*proj"]),  # which go by their alphabet
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_targets_choose_the_scheme(tmp_path: Path, symmetric: list[str], asymmetric: list[str], is_first: bool) -> None:
    groups = [group(symmetric, True), group(asymmetric, False)]
    folder = mixed(tmp_path, {f"group_{at}": each for at, each in enumerate(groups if is_first else groups[::-1])})
    entries = [entry for entry in read_huggingface(folder).tensors if entry.quantised]
    has_zeros = {entry.name: entry.quantised.zeros is not None for entry in entries if entry.quantised}
    assert has_zeros == {name: "feed_forward" in name for name in has_zeros}
    assert len(has_zeros) == 14


def test_of_a_target_in_two_groups_the_last_wins(tmp_path: Path) -> None:
    groups = {"group_0": group(["re:.*self_attn.*", "Linear"], True), "group_1": group(["Linear"], False)}
    entries = [entry for entry in read_huggingface(mixed(tmp_path, groups)).tensors if entry.quantised]
    has_zeros = {entry.name: entry.quantised.zeros is not None for entry in entries if entry.quantised}
    assert has_zeros == {name: "feed_forward" in name for name in has_zeros}


@pytest.mark.parametrize("ignore", [None, ["re:.*mlp.*"]])
def test_a_matrix_that_no_group_targets_is_refused(tmp_path: Path, ignore: list[str] | None) -> None:
    targets = ["re:.*mlp.*"] if ignore else ["re:.*nothing.*"]
    groups = {"group_0": group(["re:.*self_attn.*"], True), "group_1": group(targets, False)}
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.\w+ is quantised, and config_groups have no scheme for it"):
        read_huggingface(mixed(tmp_path, groups, ignore))


def test_zero_points_of_a_symmetric_scheme_are_refused_unless_they_say_nothing(tmp_path: Path) -> None:
    folder = mixed(tmp_path, {"group_0": group(["Linear"], True)})
    with pytest.raises(ConfigError, match=r"weight_zero_point' has zero points, and the scheme .* is symmetric"):
        read_huggingface(folder)
    middle = int.from_bytes(b"\x88" * 4, "little", signed=True)

    def neutralise(tensors: dict[str, Array]) -> None:
        for zeros in (each for name, each in tensors.items() if name.endswith("zero_point")):
            zeros[:] = middle
            zeros[0] = zeros[-1] = 0  # Either says nothing, in any order.

    edit(folder, neutralise)
    assert all(entry.quantised is None or entry.quantised.zeros is None for entry in read_huggingface(folder).tensors)


def test_modules_that_are_left_out_are_floats(tmp_path: Path) -> None:
    folder = quantised(tmp_path, awq())
    plain = load_file(tmp_path / "tiny/model.safetensors")

    def leave_out(tensors: dict[str, Array]) -> None:
        for ending in ("qweight", "qzeros", "scales"):
            del tensors[f"{Q_PROJ}.{ending}"]
        tensors[f"{Q_PROJ}.weight"] = plain[f"{Q_PROJ}.weight"]

    edit(folder, leave_out)
    entries = {entry.name: entry for entry in read_huggingface(folder).tensors}
    assert entries["layers.0.attention.query.weight"].quantised is None
    assert entries["layers.0.attention.key.weight"].quantised is not None


def without(name: str) -> Callable[[dict[str, Array]], object]:
    return lambda tensors: tensors.pop(f"{Q_PROJ}.{name}")


def changed(name: str, change: Callable[[Array], Array]) -> Callable[[dict[str, Array]], object]:
    key = f"{Q_PROJ}.{name}"
    return lambda tensors: tensors.update({key: change(tensors[key])})


@pytest.mark.parametrize(
    ("variant", "change", "message"),
    [
        (awq(), without("qzeros"), "qweight' is quantised, and the files have no qzeros of it"),
        (awq(), without("qweight"), r"no tensor '.*q_proj\.weight', .*; they have .*qzeros \(I32\), .*scales \(F16\)"),
        (awq(), changed("scales", lambda found: found[1:]), r"\(1, 128\), and its matrix needs \(2, 128\)"),
        (awq(), changed("scales", np.int32), "has type I32, and must be F16 or BF16 or F32"),
        (awq(), changed("qweight", lambda found: found.reshape(-1)), "must be a matrix"),
        (awq(), changed("qweight", np.float32), "has type F32, and must be I32"),
        (gptq(), changed("qweight", lambda found: found[:4]), r"has the shape \(2, 128\), and its matrix needs \(1, "),
        (gptq(), changed("qzeros", lambda found: found[:, :3]), r"\(2, 3\), and its matrix needs \(2, 16\)"),
        (gptq(), changed("g_idx", lambda found: found[:3]), r"\(3,\), and its matrix needs \(64,\)"),
        (ACT_ORDER, changed("g_idx", lambda found: found + 1), "has groups 1 to 2: there are 0 to 1"),
        (ACT_ORDER, changed("g_idx", lambda found: found - 1), "has groups -1 to 0: there are 0 to 1"),
        (ACT_ORDER, without("g_idx"), "the files have no g_idx of it"),
        (packed(), without("weight_shape"), "no weight_shape of it"),
        (packed(), changed("weight_shape", lambda found: found * 2), r"does not hold 4 bits of a matrix of \(256, 128"),
        (packed(), changed("weight_shape", lambda found: -found), "does not hold 4 bits"),
        (packed(), changed("weight_shape", lambda found: found[:1]), r"has the shape \(1,\), and its matrix needs"),
        (packed(symmetric=False), without("weight_zero_point"), "no weight_zero_point of it"),
        (int8(), without("weight_scale"), "no weight_scale of it"),
        (int8(), changed("weight_scale", lambda found: found[:5]), r"\(5, 1\), and its matrix needs \(128, 1\)"),
        (int8(symmetric=False), without("weight_zero_point"), "is asymmetric, and the files have no weight_zero_point"),
        (int8(), changed("weight", np.uint8), "has type U8"),
        (fp8((48, 32)), without("weight_scale_inv"), "no weight_scale of it"),
        (fp8((48, 32)), changed("weight_scale_inv", np.transpose), r"\(2, 3\), and its matrix needs \(3, 2\)"),
        (fp8((1, 0)), changed("weight_scale", lambda found: found[:7]), r"\(7, 1\), and its matrix needs \(128, 1\)"),
        (fp8((0, 0)), changed("weight", lambda found: found[:, :0]), "must be a matrix"),
        (fp8((48, 32)), changed("weight", np.int8), "has type I8, and must be F8_E4M3"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, variant: Variant, change: Callable[[dict[str, Array]], object], message: str
) -> None:
    folder = quantised(tmp_path, variant)
    edit(folder, change)
    with pytest.raises(ConfigError, match=message):
        read_huggingface(folder)


def test_quantised_tensors_without_a_configuration_are_refused(tmp_path: Path) -> None:
    folder = quantised(tmp_path, awq())
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"no tensor '.*q_proj\.weight', .*; they have .*q_proj\.qweight \(I32\), .*"):
        read_huggingface(folder)


def test_a_bias_that_the_model_has_not_is_skipped(tmp_path: Path) -> None:
    folder = quantised(tmp_path, gptq())
    assert read_huggingface(folder).skipped == ()  # those of zeros, which programs for GPTQ write
    edit(folder, lambda tensors: tensors.update({f"{Q_PROJ}.bias": tensors[f"{Q_PROJ}.bias"] + 1}))
    assert read_huggingface(folder).skipped == (f"{Q_PROJ}.bias",)


@pytest.mark.parametrize("name", ["gptq in act-order", "packed asymmetric", "fp8 of blocks", "mxfp4"])
def test_damaged_headers_and_configurations(tmp_path: Path, name: str) -> None:
    folder = mxfp4(tmp_path) if name == "mxfp4" else quantised(tmp_path, VARIANTS[name][0])
    weights, config = folder / "model.safetensors", folder / "config.json"
    generator, refused = random.Random(2), 0
    for number in range(150):
        file = config if number % 3 else weights
        content = file.read_bytes()
        start = content.index(b"quantization_config") if file == config else 0
        header = len(content) - start if file == config else int.from_bytes(content[:8], "little") + 8
        file.write_bytes(content[:start] + damaged(content[start:], header, generator))
        try:
            read_huggingface(folder)
        except ConfigError:
            refused += 1
        file.write_bytes(content)
    assert refused > 20


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("down_proj_scales", None, "down_proj_blocks' is quantised, and the files have no .*down_proj_scales"),
        ("down_proj_blocks", None, r"no tensor '.*experts\.down_proj', .*; they have .*down_proj_scales \(U8\)"),
        ("down_proj_scales", lambda found: found[:, 1:], r"\(6, 31, 2\), and its matrix needs \(6, 32, 2\)"),
        ("down_proj_scales", np.int32, "has type I32, and must be U8"),
        ("down_proj_blocks", lambda found: found[..., :8], "must be blocks of 16 bytes"),
        ("down_proj_blocks", lambda found: found[0], "must be blocks of 16 bytes"),
        ("gate_up_proj_bias", None, "no tensor '.*gate_up_proj_bias', which its architecture needs"),
    ],
)
def test_tensors_of_mxfp4_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, change: Callable[[Array], Array] | None, message: str
) -> None:
    folder, key = mxfp4(tmp_path), f"model.layers.1.mlp.experts.{name}"

    def damage(tensors: dict[str, Array]) -> None:
        found = tensors.pop(key)
        if change is not None:
            tensors[key] = change(found)

    edit(folder, damage)
    with pytest.raises(ConfigError, match=message):
        read_huggingface(folder)
