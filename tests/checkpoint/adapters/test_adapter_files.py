"""Adapters as peft and llama.cpp write them: what is read, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm.checkpoint.adapters.adapter_files import find_lora, read_lora
from pyllm.checkpoint.adapters.peft_folder import CONFIG, WEIGHTS
from pyllm.checkpoint.hub import Hub
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from pyllm.families.tensors import Deinterleave
from tests.checkpoint.adapters.lora_folder import write_lora
from tests.hub_server import HubServer
from tests.tiny_model import write_tiny_model

QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_checkpoint(str(write_tiny_model(tmp_path_factory.mktemp("model")))).spec


@pytest.fixture
def shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    attention, feed_forward = spec.layers[0].attention, spec.layers[1].feed_forward
    assert attention is not None
    assert feed_forward is not None
    hidden = spec.hidden_size
    return {QUERY: (attention.query_size, hidden), DOWN: (hidden, feed_forward.size)}


def test_a_folder_of_peft_names_the_parameters_that_it_changes(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]
) -> None:
    adapter = read_lora(write_lora(tmp_path, shapes, rank=3, changes={"lora_alpha": 6}), spec)
    assert [each.entry.name for each in adapter.matrices] == [
        "layers.0.attention.query.weight",
        "layers.1.feed_forward.down.weight",
    ]
    assert adapter.rank == 3
    assert {each.scale for each in adapter.matrices} == {2.0}


def test_scales_follow_patterns_and_rank_stabilised_lora(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]
) -> None:
    changes = {"lora_alpha": 6, "use_rslora": True, "alpha_pattern": {"q_proj": 12}}
    adapter = read_lora(write_lora(tmp_path, shapes, rank=4, changes=changes), spec)
    assert [each.scale for each in adapter.matrices] == [6.0, 3.0]


def test_the_digest_is_of_all_bytes(tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]) -> None:
    digests = [
        read_lora(write_lora(tmp_path / name, shapes, seed=seed, changes=changes), spec).digest
        for name, seed, changes in (("a", 0, {}), ("b", 0, {}), ("c", 1, {}), ("d", 0, {"lora_alpha": 9}))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "VERA"}, "VERA"),
        ({"bias": "all"}, "bias all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "experts"),
        ({"trainable_token_indices": [1]}, "embeddings"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]], changes: dict[str, Any], named: str
) -> None:
    folder = write_lora(tmp_path, shapes, changes=changes)
    with pytest.raises(ConfigError, match=named):
        read_lora(folder, spec)


def test_modules_and_shapes_of_other_models_are_named(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]
) -> None:
    with pytest.raises(
        ConfigError, match=r"1 modules are no linear layer of LlamaForCausalLM's layers: model\.lm_head"
    ):
        read_lora(write_lora(tmp_path / "head", shapes | {"model.lm_head": (290, 48)}), spec)
    rows, columns = shapes[QUERY]
    with pytest.raises(ConfigError, match=rf"q_proj.weight' has the shape \({rows}, {columns + 1}\)"):
        read_lora(write_lora(tmp_path / "wide", {QUERY: (rows, columns + 1)}), spec)


def test_damaged_folders_say_what_is_wrong(tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]) -> None:
    folder = write_lora(tmp_path / "adapter", shapes)
    tensors = load_file(folder / WEIGHTS)
    half = {name: tensor for name, tensor in tensors.items() if not (QUERY in name and "lora_B" in name)}
    save_file(half, folder / WEIGHTS)
    with pytest.raises(ConfigError, match=f"{QUERY} has only one of its two matrices"):
        read_lora(folder, spec)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(ConfigError, match="is damaged"):
        read_lora(folder, spec)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(ConfigError, match="may run code"):
        read_lora(folder, spec)
    (folder / CONFIG).write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match="is damaged"):
        read_lora(folder, spec)


def test_a_missing_folder_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no adapter"):
        find_lora(str(tmp_path / "missing"), Hub())


def test_a_repository_of_the_hub_gives_the_files_of_its_adapter(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]
) -> None:
    folder = write_lora(tmp_path / "adapter", shapes)
    for other in ("README.md", "tokenizer.json", "optimizer.pt"):
        (folder / other).write_bytes(b"not needed")
    converted, pickled = tmp_path / "converted", tmp_path / "pickled"
    converted.mkdir()
    write_gguf_lora(converted / "style-F16.gguf", shapes)
    pickled.mkdir()
    (pickled / CONFIG).write_bytes((folder / CONFIG).read_bytes())
    (pickled / "adapter_model.bin").write_bytes(b"")
    with HubServer() as server:
        hub = Hub(endpoint=server.endpoint, cache_dir=str(tmp_path / "cache"), offline=False)
        for name, files in (("me/style", folder), ("me/style-GGUF", converted), ("me/pickled", pickled)):
            server.add(name, files)
        found = read_lora(find_lora("me/style", hub), spec)
        assert found.digest == read_lora(folder, spec).digest
        assert sorted(server.downloaded()) == [CONFIG, WEIGHTS]
        assert read_lora(find_lora("me/style-GGUF", hub), spec).rank == 4
        with pytest.raises(ConfigError, match="may run code"):
            find_lora("me/pickled", hub)
        with pytest.raises(ConfigError, match="me/missing"):
            find_lora("me/missing", hub)
    kept = Hub(endpoint="http://127.0.0.1:9", cache_dir=hub.cache_dir, offline=True)
    assert read_lora(find_lora("me/style", kept), spec).digest == found.digest


def write_gguf_lora(path: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """An adapter as llama.cpp's converter writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, module in (("blk.0.attn_q", QUERY), ("blk.1.ffn_down", DOWN)):
        rows, columns = shapes[module]
        writer.add_tensor(f"{name}.weight.lora_a", np.ones((4, columns), np.float32))
        writer.add_tensor(f"{name}.weight.lora_b", np.ones((rows, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_llama_cpps_files_have_its_names_and_alpha(
    tmp_path: Path, spec: ModelSpec, shapes: dict[str, tuple[int, int]]
) -> None:
    path = tmp_path / "adapter.gguf"
    write_gguf_lora(path, shapes)
    adapter = read_lora(path, spec)
    query, down = adapter.matrices
    assert (query.entry.name, query.scale) == ("layers.0.attention.query.weight", 2.0)
    assert any(isinstance(transform, Deinterleave) for transform in query.entry.transforms)
    assert not down.entry.transforms


def test_a_model_is_no_adapter(tmp_path: Path, spec: ModelSpec) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="is it a model"):
        read_lora(path, spec)
