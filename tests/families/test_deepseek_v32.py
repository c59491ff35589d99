"""DeepSeek V3.2 and GLM-5: which layers choose tokens, and when an index may read the cache."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyllm_kernels import AttentionMetadata
from pyllm_kernels.tensors import Array
from transformers import GlmMoeDsaConfig

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.rope import at_context
from pyllm.workers.kv.kv_cache import CachedLayer
from tests.families.test_oracle import Sequences
from tests.families.tiny_families import PROMPT, write_tiny_family
from tests.plans import Row
from tests.workers.engine import loaded_runner


def changed(folder: Path, **fields: Any) -> str:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in (config | fields).items() if value is not None}))
    return str(folder)


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    return Path(write_tiny_family(tmp_path, "glm-5"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"index_topk_pattern": "FFSS"},
        {"index_topk_pattern": ["full", "shared", "shared", "full"]},
        {"index_topk_freq": 2},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
    ],
)
def test_the_layers_that_choose_are_those_of_transformers(glm: Path, fields: dict[str, Any]) -> None:
    expected = GlmMoeDsaConfig(num_hidden_layers=4, **fields).indexer_types
    checkpoint = read_checkpoint(changed(glm, indexer_types=None, **fields), has_dummy_weights=True)
    latents = [layer.own_attention.latent for layer in checkpoint.spec.layers]
    indices = [latent.index for latent in latents if latent is not None and latent.index is not None]
    assert ["full" if index.source is None else "shared" for index in indices] == expected
    full = [number for number, kind in enumerate(expected) if kind == "full"]
    for number, index in enumerate(indices):
        assert index.source is None or index.source == max(own for own in full if own < number)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"indexer_types": ["shared", "full", "full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full", ["full"], "full", "full"]}, "indexer_types"),
        ({"indexer_types": None, "index_topk_pattern": "FXFF"}, "index_topk_pattern"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"index_topk": 0}, "index_topk"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
    ],
)
def test_what_an_index_cannot_be_is_refused(glm: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_checkpoint(changed(glm, **fields), has_dummy_weights=True)


def test_no_more_tokens_are_chosen_than_the_context_has(glm: Path) -> None:
    spec = read_checkpoint(changed(glm, index_topk=1 << 30), has_dummy_weights=True).spec
    for layer in at_context(spec, 100).layers:
        latent = layer.own_attention.latent
        assert latent is not None
        assert latent.index is not None
        assert latent.index.count == 100


class LoadingHook:
    """A connector that loads a layer's blocks when it waits for them; before that they are zeros."""

    def __init__(self) -> None:
        self.keys: dict[int, Array] = {}
        self.saved: dict[int, Array] = {}

    def before_attention(self, layer: int) -> None:
        if layer in self.saved:
            self.keys[layer][...] = self.saved.pop(layer)

    def after_attention(self, layer: int, output: Array, cached: CachedLayer, metadata: AttentionMetadata) -> Array:
        self.keys[layer] = cached.keys
        return output

    def unload(self) -> None:
        for layer, keys in self.keys.items():
            self.saved[layer] = keys.copy()
            keys[...] = 0


def test_an_index_waits_for_blocks_that_a_connector_loads(glm: Path) -> None:
    runner, hook = loaded_runner(str(glm), num_blocks=256, max_model_len=128), LoadingHook()
    sequences = Sequences(runner)
    sequences.start(0)
    whole = sequences.logits(Row(0, PROMPT))[0]
    runner.add_attention_hook(hook)
    sequences.start(1)
    sequences.logits(Row(1, PROMPT[:60]))
    hook.unload()
    np.testing.assert_array_equal(sequences.logits(Row(1, PROMPT[60:]))[1], whole[60:])
    assert not hook.saved
