"""A decoder-only model as data: the computation of each layer. Knows no family, no file and no torch.

The specs travel to every process with the checkpoint. `pyllm/workers/decoder.py` builds the model from them.
"""

import math
from itertools import chain
from typing import Literal

import msgspec

from pyllm.errors import ConfigError

ModelImpl = Literal["auto", "native", "transformers"]
"""Who computes a model: a family of ours, or transformers; "auto" takes a family where there is one."""
Activation = Literal["silu", "gelu_tanh", "gelu"]
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""The kernels' names of what `hidden_act` names in a config.json."""


class DynamicRope(msgspec.Struct, frozen=True, kw_only=True, tag="dynamic"):
    """NTK-aware scaling: a context beyond `original_length` raises the base (`families/rope.py`)."""

    theta: float
    factor: float
    original_length: int


class LongRope(msgspec.Struct, frozen=True, kw_only=True, tag="longrope"):
    """Other frequencies for a context beyond `original_length` (LongRoPE, arXiv 2402.13753)."""

    inverse_frequencies: tuple[float, ...]
    original_length: int


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embeddings (arXiv 2104.09864) of the first `rotary_size` dimensions of each head.

    The two halves of these dimensions form the pairs. `attention_factor` multiplies cosines and sines (YaRN).
    `longer` replaces the frequencies if `max_model_len` exceeds the original context.
    """

    rotary_size: int
    inverse_frequencies: tuple[float, ...]  # [rotary_size / 2]
    attention_factor: float = 1.0
    longer: DynamicRope | LongRope | None = None


class NormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Root mean square norm (arXiv 1910.07467), or a layer norm without bias (arXiv 1607.06450).

    With `unit_offset` the scale is `1 + w` (Gemma), and the sum is kept in float32.
    """

    epsilon: float
    kind: Literal["rms", "layer"] = "rms"
    unit_offset: bool = False


class QueryScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Multiplies the query at position p by `1 + beta * log(1 + floor(p / original_length))` (Llama 4)."""

    beta: float
    original_length: int


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention (arXiv 2305.13245).

    - `rope`: the index in `ModelSpec.ropes`; None for a layer without positions.
    - `window`: the number of positions that a token attends to, its own included; None for all.
    - `query_key_norm`: applied to query and key before the rotation, over each head or over all heads together; with
      `norm_after_rotation` after it, over each head.
    - `soft_cap`: scores become `cap * tanh(score / cap)`.
    - `sinks`: each head has a learned logit that takes a share of the softmax (gpt-oss).
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    rope: int | None = 0
    window: int | None = None
    query_key_norm: NormSpec | None = None
    norm_over: Literal["head", "all"] = "head"
    norm_after_rotation: bool = False
    bias: bool = False
    output_bias: bool = False
    soft_cap: float | None = None
    query_scaling: QueryScaling | None = None
    sinks: bool = False

    @property
    def query_size(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Features of all key heads; all value heads have as many."""
        return self.kv_heads * self.head_size

    def kv_heads_of_rank(self, ranks: int) -> int:
        """The number of KV heads on each of `ranks`; with more ranks than heads, some ranks hold the same one."""
        return max(1, self.kv_heads // ranks)


class ExpertGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of equal size, `count` in number: a token takes experts of the `active` best groups alone.

    A group's score is the sum of its `best` largest: 1 in DeepSeek V2 (arXiv 2405.04434), 2 in V3 (arXiv 2412.19437).
    """

    count: int
    active: int
    best: int


class SharedExpertSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A feed-forward layer beside the experts, without biases, that every token goes through; outputs are added.

    With `gated` its output is multiplied by the sigmoid of a number for each token, which is linear in the input.
    """

    size: int
    gated: bool = False


class RoutingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Mixture of experts: each token goes through the `active` of the `experts` with the largest scores.

    - `scores`: a softmax over the router's logits (arXiv 1701.06538), or the sigmoid of each (arXiv 2412.19437). The
      scores of the chosen experts are their weights.
    - `normalised`: the weights sum to 1.
    - `factor`: multiplies the weights.
    - `correction`: each expert has a bias that is added to its score for the choice alone.
    - `groups`: limits the choice to some groups.
    - `float32`: the logits are computed in float32, whatever the dtype of the model.
    - `shared`: an expert that every token goes through.
    """

    experts: int
    active: int
    normalised: bool = True
    scores: Literal["softmax", "sigmoid"] = "softmax"
    factor: float = 1.0
    correction: bool = False
    groups: ExpertGroups | None = None
    float32: bool = False
    shared: SharedExpertSpec | None = None


class ClampedGate(msgspec.Struct, frozen=True, kw_only=True):
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gate is at most `limit`, up from `-limit` to `limit` (gpt-oss)."""

    limit: float
    alpha: float


class FeedForwardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`down(activation(gate(x)) * up(x))` (arXiv 2002.05202), or `down(activation(up(x)))` if it is not gated.

    With `routing` the layer has experts of this size, and `bias` also applies to the router. `clamped_gate` replaces
    the activation.
    """

    size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    routing: RoutingSpec | None = None
    clamped_gate: ClampedGate | None = None


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention, then feed-forward; each may have a norm before it, and one after it, before the residual addition.

    With `parallel` both take the same normalised input, and their outputs are added (Cohere). For a layer that
    transformers computes only the attention is known, and its feed-forward layer has the size 0.
    """

    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    attention_norm: NormSpec | None = None
    attention_output_norm: NormSpec | None = None
    feed_forward_norm: NormSpec | None = None
    feed_forward_output_norm: NormSpec | None = None
    parallel: bool = False

    @property
    def norms(self) -> dict[str, NormSpec]:
        """The norms of this layer, by their names."""
        norms = {
            "attention_norm": self.attention_norm,
            "attention_output_norm": self.attention_output_norm,
            "feed_forward_norm": self.feed_forward_norm,
            "feed_forward_output_norm": self.feed_forward_output_norm,
        }
        return {name: norm for name, norm in norms.items() if norm is not None}


class LinearSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer of a transformers model that pyllm's layer replaces; `name` is its path there.

    `split`: each rank has the whole layer, some of its outputs, or some of its inputs.
    """

    name: str
    shape: tuple[int, int]  # outputs, inputs
    bias: bool = False
    split: Literal["whole", "outputs", "inputs"] = "whole"


class TransformersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that transformers computes.

    - `config`: the text of its config.json.
    - `linears`: groups of layers that take the same input, in the order of their calls.
    - `base`: the path of the module that returns the hidden states.
    - `first_position`: the model's position of a sequence's first token.
    - `embedding`, `head`: paths of the layers that pyllm's replace; empty if they stay.
    - `tensor_parallel_refusal`: the reason why ranks cannot share it; empty if they can.
    - `num_parameters`: counts the matrix of a tied head once.
    - `num_torch_parameters`: parameters of matrices that torch multiplies, such as experts.
    """

    config: str
    version: str  # of transformers
    base: str
    first_position: int
    linears: tuple[tuple[LinearSpec, ...], ...]
    embedding: str
    head: str
    tensor_parallel_refusal: str
    num_parameters: int
    num_torch_parameters: int

    @property
    def torch_computes(self) -> bool:
        """Whether torch multiplies enough to need its own threads: more than a tenth of the parameters."""
        return self.num_torch_parameters * 10 > self.num_parameters


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model. `dtype` is the dtype of the file: float32, bfloat16 or float16; float32 for a quantised file.

    With `transformers` that package computes the model: there is one layer for each call of attention, and the other
    fields of layers, norms and multipliers are unused.
    """

    architecture: str  # the name in config.json, such as LlamaForCausalLM
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None
    ropes: tuple[RopeSpec, ...]
    tie_word_embeddings: bool
    dtype: str = "float32"
    embedding_scale: float = 1.0
    residual_multiplier: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    transformers: TransformersSpec | None = None

    @property
    def attention(self) -> AttentionSpec:
        """The attention of the first layer: its heads and sizes are the same in every layer."""
        return self.layers[0].attention


EXPERT_FEATURES = 32
"""A rank's part of an expert has a multiple of so many features."""


def check_tensor_parallel(spec: ModelSpec, ranks: int, by_expert: bool = False) -> None:
    """Refuse a tensor-parallel size that would cut through an attention head or leave the ranks unequal.

    KV heads are the exception: where there are more ranks than KV heads, several ranks hold the same one. `by_expert`:
    each rank has some whole experts.

    Raises:
        ConfigError: with the sizes that would work.
    """
    if ranks > 1 and spec.transformers is not None and spec.transformers.tensor_parallel_refusal:
        raise ConfigError(f"tensor_parallel_size {ranks} is not possible: {spec.transformers.tensor_parallel_refusal}")
    if not (uneven := _unevenly_cut(spec, ranks, by_expert)):
        return
    common = math.gcd(*(layer.attention.heads for layer in spec.layers))
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    sizes = [str(size) for size in divisors if not _unevenly_cut(spec, size, by_expert)]
    raise ConfigError(
        f"tensor_parallel_size {ranks} does not divide {' and '.join(uneven)}; "
        f"sizes that work here: {', '.join(sizes) or 'none'}"
    )


def _unevenly_cut(spec: ModelSpec, ranks: int, by_expert: bool) -> list[str]:
    parts = {}
    for layer in spec.layers:
        attention, size = layer.attention, layer.feed_forward.size
        parts[f"{attention.heads} attention heads"] = attention.heads % ranks == 0
        # transformers splits a KV head where there are more ranks than heads.
        is_repeated = spec.transformers is None and ranks % attention.kv_heads == 0
        parts[f"{attention.kv_heads} key/value heads"] = attention.kv_heads % ranks == 0 or is_repeated
        if (routing := layer.feed_forward.routing) is None:
            parts[f"{size} columns of the feed-forward layer"] = size % ranks == 0
            continue
        if (shared := routing.shared) is not None:
            parts[f"{shared.size} columns of the shared expert"] = shared.size % ranks == 0
        if by_expert:
            parts[f"{routing.experts} experts"] = routing.experts % ranks == 0 and size % EXPERT_FEATURES == 0
        else:
            parts[f"{size} features of an expert into multiples of {EXPERT_FEATURES}"] = (
                size % (EXPERT_FEATURES * ranks) == 0
            )
    for linear in () if spec.transformers is None else chain.from_iterable(spec.transformers.linears):
        if linear.split != "whole":
            size = linear.shape[linear.split == "inputs"]
            parts[f"{size} {linear.split} of {linear.name}"] = size % ranks == 0
    return [name for name, is_even in parts.items() if not is_even]
