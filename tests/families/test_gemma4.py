"""Heads, sharing and refusals of Gemma 4, from the forms that its configurations have."""

import pytest

from pyllm.errors import ConfigError
from pyllm.families import gemma4
from pyllm.families.config import Config

GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
}


def test_the_heads_of_full_attention_are_in_a_list_or_in_fields_of_their_own() -> None:
    fields = GEMMA4 | {"attention_k_eq_v": True, "global_head_dim": 32, "num_global_key_value_heads": 2}
    heads = {"head_dim": 32, "num_key_value_heads": 2}
    listed = GEMMA4 | {"attention_k_eq_v": True, "per_layer_config": {"2": heads, "5": heads}}
    spec = gemma4.read_gemma4(Config(fields))
    assert spec == gemma4.read_gemma4(Config(listed))
    assert [(a.kv_heads, a.head_size, a.kv_source) for a in spec.attentions] == [
        *[(4, 16, None), (4, 16, None), (2, 32, None)],
        *[(4, 16, 1), (4, 16, 1), (2, 32, 2)],
    ]
    assert [attention.values_are_keys for attention in spec.attentions] == [False, False, True, False, False, False]
    assert spec.tied_layers == frozenset({2, 3, 4, 5})
    # Without keys and values of the layers' own type there is nothing to share.
    with pytest.raises(ConfigError, match="must be fewer: no earlier layer has full_attention"):
        gemma4.read_gemma4(Config(fields | {"num_kv_shared_layers": 4}))


def test_attention_of_all_tokens_is_refused_and_that_of_images_is_not() -> None:
    assert gemma4.read_gemma4(Config(GEMMA4 | {"use_bidirectional_attention": "vision"}))
    with pytest.raises(ConfigError, match="use_bidirectional_attention = 'all' is not supported"):
        gemma4.read_gemma4(Config(GEMMA4 | {"use_bidirectional_attention": "all"}))
