"""Tensor-parallel sizes of a spec: what divides, and KV heads that several ranks hold."""

import msgspec
import pytest

from pyllm.errors import ConfigError
from pyllm.families import llama
from pyllm.families.config import Config
from pyllm.families.spec import LayerSpec, ModelSpec, RoutingSpec, SelectiveScanSpec, check_tensor_parallel


def spec(heads: int, kv_heads: int, size: int) -> ModelSpec:
    sizes = {"hidden_size": heads * 16, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "num_hidden_layers": 2,
        "intermediate_size": size,
    }
    return llama.read(Config(sizes | fields | {"max_position_embeddings": 64}))


@pytest.mark.parametrize(("kv_heads", "ranks", "held"), [(4, 2, 2), (4, 4, 1), (2, 4, 1), (1, 8, 1), (8, 8, 1)])
def test_kv_heads_are_replicated_over_more_ranks(kv_heads: int, ranks: int, held: int) -> None:
    model = spec(heads=8, kv_heads=kv_heads, size=64)
    check_tensor_parallel(model, ranks)
    assert model.attention.kv_heads_of_rank(ranks) == held


@pytest.mark.parametrize("place", ["feed_forward", "experts"])  # in place of the dense layer, or beside it
def test_experts_are_cut_into_parts_or_given_out_whole(place: str) -> None:
    model = spec(heads=8, kv_heads=4, size=64)
    layer = msgspec.structs.replace(model.layers[0].feed_forward, routing=RoutingSpec(experts=6, active=2))
    model = msgspec.structs.replace(
        model, layers=tuple(msgspec.structs.replace(each, **{place: layer}) for each in model.layers)
    )
    check_tensor_parallel(model, 2)
    check_tensor_parallel(model, 2, by_expert=True)
    with pytest.raises(ConfigError, match=r"does not divide 64 features of an expert into multiples of 32; .*: 1, 2$"):
        check_tensor_parallel(model, 4)
    with pytest.raises(ConfigError, match=r"4 does not divide 6 experts; .*: 1, 2$"):
        check_tensor_parallel(model, 4, by_expert=True)


@pytest.mark.parametrize(
    ("sizes", "ranks", "message"),
    [
        ((9, 3, 96), 2, "2 does not divide 9 attention heads and 3 key/value heads; .*: 1, 3$"),
        ((8, 8, 60), 8, "8 does not divide 60 columns of the feed-forward layer; .*: 1, 2, 4$"),
        ((12, 4, 96), 6, "6 does not divide 4 key/value heads; .*: 1, 2, 4, 12$"),
    ],
)
def test_others_are_refused_with_those_that_work(sizes: tuple[int, int, int], ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_tensor_parallel(spec(*sizes), ranks)


def test_a_model_without_attention_is_cut_by_the_features_of_its_states() -> None:
    recurrence = SelectiveScanSpec(size=12, state_size=4, step_rank=1, width=4)
    model = msgspec.structs.replace(spec(8, 4, 64), layers=(LayerSpec(recurrence=recurrence),))
    check_tensor_parallel(model, 3)
    with pytest.raises(ConfigError, match=r"5 does not divide 12 parts of a recurrence; .*: 1, 2, 3, 4, 6, 12$"):
        check_tensor_parallel(model, 5)
