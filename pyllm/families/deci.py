"""Llama whose layers a search has made unequal (Puzzle, arXiv 2411.19146): Nemotron Super and Ultra, DeciLM 7B.

Layers differ in the number of KV heads and in the size of feed-forward, or have no attention, or no feed-forward.
"""

from dataclasses import replace as replace_names
from typing import Any

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES

_MULTIPLE = 256  # of which the size of feed-forward is


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes; a matrix in place of attention or feed-forward is refused."""
    config.refuse_unless(attention_bias=False, mlp_bias=False)
    count, norm = num_layers(config), read_norm(config)
    blocks: list[Any] = [{}] * count
    if "block_configs" in config:
        blocks = config.items("block_configs", count)
    heads: list[Any] = [None] * count
    if "num_key_value_heads_per_layer" in config:
        heads = config.items("num_key_value_heads_per_layer", count)
    layers = []
    for block, kv_heads in zip(blocks, heads, strict=True):
        place = Config({"block_configs": block}, config.place).section("block_configs")
        own = config if kv_heads is None else config.replaced(num_key_value_heads=kv_heads)
        attention, feed_forward = _attention(own, place.section("attention")), _feed_forward(own, place.section("ffn"))
        layers.append(
            LayerSpec(
                attention=attention,
                feed_forward=feed_forward,
                attention_norm=None if attention is None else norm,
                feed_forward_norm=None if feed_forward is None else norm,
            )
        )
    first = layers[0]
    if first.attention is None and first.feed_forward is None:
        raise config.error("block_configs", blocks[0], "a first layer that computes something")
    size = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
    return read_model(config, layers, [read_rope(config, size)], norm=norm)


def _attention(config: Config, block: Config) -> AttentionSpec | None:
    block.refuse_unless(replace_with_linear=False, window_length=None, num_sink_tokens=None, sparsify=None)
    if block.flag("no_op", False):
        return None
    if "n_heads_in_group" in block:
        heads, group = config.integer("num_attention_heads"), block.integer("n_heads_in_group")
        if heads % group:
            raise block.error("n_heads_in_group", group, f"a divisor of num_attention_heads, {heads}")
        config = config.replaced(num_key_value_heads=heads // group)
    return read_attention(config)


def _feed_forward(config: Config, block: Config) -> FeedForwardSpec | None:
    block.refuse_unless(replace_with_linear=False, sparsify=None)
    if block.flag("no_op", False):
        return None
    if "ffn_mult" in block:
        size = int(2 * block.positive("ffn_mult") * config.integer("hidden_size") / 3)
        config = config.replaced(intermediate_size=-(-size // _MULTIPLE) * _MULTIPLE)
    if "size" in block:
        config = config.replaced(intermediate_size=block.integer("size"))
    return read_feed_forward(config)


def _complete(config: Config) -> Config:
    """Add the layers' own sizes, which llama.cpp's files have as lists; 0 where a layer lacks the part."""
    count = num_layers(config)
    lists = {}
    for name in ("heads", "kv_heads", "sizes"):
        value = config.value(name)
        lists[name] = config.items(name, count) if isinstance(value, list) else [value] * count
    heads = max(lists["heads"])
    blocks = []
    for own, kv_heads, size in zip(*lists.values(), strict=True):
        is_linear = bool(own) and not kv_heads  # a matrix in place of attention
        group = {"n_heads_in_group": heads // kv_heads} if kv_heads else {"no_op": True}
        feed_forward = {"size": size} if size else {"no_op": True}
        blocks.append({"attention": group | {"replace_with_linear": is_linear}, "ffn": feed_forward})
    return config.replaced(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=max(lists["sizes"]),
        block_configs=blocks,
    )


FAMILY = Family(
    architectures=("DeciLMForCausalLM",),
    read=read,
    gguf=GgufNames(
        architectures=("deci",),
        tensors=replace_names(GGUF_NAMES, interleaved=True),
        fields={
            "attention.head_count": "heads",
            "attention.head_count_kv": "kv_heads",
            "feed_forward_length": "sizes",
        },
        complete=_complete,
    ),
)
