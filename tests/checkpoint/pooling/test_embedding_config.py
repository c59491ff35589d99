"""How a model's files say that embeddings are made; what is not supported is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import check_unchanged
from pyllm.errors import ConfigError
from pyllm.families.spec import DenseSpec
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

# As sentence-transformers writes them; Qwen3-Embedding has these.
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
IDENTITY = "torch.nn.modules.linear.Identity"


def write_dense(folder: Path, **fields: Any) -> None:
    """Write a Dense module of 48 inputs and 8 outputs, with other `fields` in its config.json."""
    folder.mkdir(exist_ok=True)
    config = {"in_features": 48, "out_features": 8, "bias": False, "activation_function": IDENTITY}
    (folder / "config.json").write_text(json.dumps(config | fields))
    save_file({"linear.weight": np.eye(8, 48, dtype=np.float32)}, folder / "model.safetensors")


def read(
    path: Path, pooling: Any = None, modules: Any = MODULES, config: dict[str, Any] | None = None
) -> EmbeddingSpec:
    folder = Path(write_tiny_model(path))
    write_dense(folder / "2_Dense")
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | (config or {})))
    return read_checkpoint(str(folder)).embedding


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (None, "last"),
        ({"word_embedding_dimension": 48}, "last"),
        ({"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_of_a_folder(tmp_path: Path, pooling: Any, expected: str) -> None:
    assert read(tmp_path / "tiny", pooling) == EmbeddingSpec(pooling=expected, is_main_use=True)  # type: ignore[arg-type]
    assert not read(tmp_path / "text", pooling, modules=[]).is_main_use


def test_a_model_may_be_trained_for_fewer_dimensions(tmp_path: Path) -> None:
    found = read(tmp_path / "any", config={"is_matryoshka": True})
    assert found == EmbeddingSpec(is_matryoshka=True, is_main_use=True)
    some = EmbeddingSpec(is_matryoshka=True, dimensions=(8, 16), is_main_use=True)
    assert read(tmp_path / "some", config={"matryoshka_dimensions": [16, 8]}) == some


@pytest.mark.parametrize(
    ("pooling", "modules", "text"),
    [
        ({"pooling_mode_max_tokens": True}, MODULES, "pooling by 'max' is not supported"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, MODULES, r"'cls_token\+mean'"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, MODULES, "'mean_sqrt_len'"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, MODULES, r"'mean\+max'"),
        ({"pooling_mode": "weightedmean"}, MODULES, "'weightedmean'"),
        (None, [{"type": "sentence_transformers.models.CNN"}], "the module CNN is not supported"),
        (None, [MODULES[0], DENSE, MODULES[1]], "Dense after Transformer is not supported, only after Pooling"),
        (None, [*MODULES, DENSE], "Dense after Normalize is not supported, only after Pooling"),
        (None, {"type": "x"}, r"modules\.json is damaged"),
        ({"pooling_mode_mean_tokens": "yes"}, MODULES, r"1_Pooling/config\.json is damaged"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, pooling: Any, modules: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(tmp_path / "tiny", pooling, modules)


def test_texts_in_lower_case_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/sentence_bert_config.json").write_text('{"max_seq_length": null, "do_lower_case": true}')
    with pytest.raises(ConfigError, match="do_lower_case is not supported"):
        read(tmp_path / "tiny")


def test_layers_after_pooling_belong_to_the_model(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    plain = read_checkpoint(str(folder))
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], DENSE, MODULES[2]]))
    write_dense(folder / "2_Dense")
    found = read_checkpoint(str(folder))
    assert (found.spec.dense, found.spec.embedding_size) == ((DenseSpec(in_features=48, out_features=8),), 8)
    assert (plain.spec.dense, plain.spec.embedding_size) == ((), 48)
    assert found.files == (*plain.files, str(folder / "2_Dense/model.safetensors"))
    save_file({"linear.weight": np.ones((8, 48), np.float32)}, folder / "2_Dense/model.safetensors")
    with pytest.raises(ConfigError, match="not those that pyllm was started with"):
        check_unchanged(found)
    assert read_checkpoint(str(folder), has_dummy_weights=True).spec.dense == found.spec.dense


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "the activation GELU of a Dense module"),
        ({"module_input_name": "token_embeddings"}, "a Dense module for token_embeddings is not supported"),
        ({"in_features": 32}, "takes 32 features, and gets 48"),
        ({"out_features": 16}, r"'dense_2\.weight' has the shape"),
        ({"bias": True}, r"dense_2\.bias"),
        ({"out_features": 0}, r"2_Dense/config\.json is damaged"),
    ],
)
def test_what_is_not_supported_after_pooling_is_named(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], DENSE]))
    write_dense(folder / "2_Dense", **fields)
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(str(folder))


def test_pickled_layers_after_pooling_are_refused(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], DENSE]))
    write_dense(folder / "2_Dense")
    (folder / "2_Dense/model.safetensors").rename(folder / "2_Dense/pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"there is no .*2_Dense/model\.safetensors; a pickle may run code"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(("number", "expected"), [(0, "last"), (1, "mean"), (2, "cls"), (3, "last")])
def test_of_a_gguf_file(tmp_path: Path, number: int, expected: str) -> None:
    source = write_tiny_model(tmp_path / "tiny")
    path = write_tiny_gguf(source, tmp_path / "tiny.gguf", fields={"llama.pooling_type": number})
    assert read_checkpoint(path).embedding.pooling == expected


@pytest.mark.parametrize(("number", "text"), [(4, "no head for classes"), (9, "pooling by '9' is not supported")])
def test_of_a_gguf_file_that_pools_otherwise(tmp_path: Path, number: int, text: str) -> None:
    source = write_tiny_model(tmp_path / "tiny")
    path = write_tiny_gguf(source, tmp_path / "tiny.gguf", fields={"llama.pooling_type": number})
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(path)
