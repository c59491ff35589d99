"""A decoder-only model, or an encoder, as data: the computation of each layer. Knows no family, no file and no torch.

The specs travel to every process with the checkpoint. `pyllm/workers/decoder.py` builds the model from them.
"""

import math
from collections.abc import Iterator
from itertools import chain
from typing import Literal

import msgspec

from pyllm.errors import ConfigError

Shape = tuple[int, ...]
ModelImpl = Literal["auto", "native", "transformers"]
"""Who computes a model: a family of ours, or transformers; "auto" takes a family where there is one."""
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"]
XIELU_BETA = 0.5  # of every model with this activation
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""The kernels' names of what `hidden_act` names in a config.json; not of xIELU, which has parameters (Apertus)."""


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
    """Root mean square norm (arXiv 1910.07467), or layer norm (arXiv 1607.06450), which may have a bias.

    With `unit_offset` the scale is `1 + w` (Gemma), and the sum is kept in float32. Without `weight` it is 1 (OLMo).
    """

    epsilon: float
    kind: Literal["rms", "layer"] = "rms"
    unit_offset: bool = False
    weight: bool = True
    bias: bool = False


class QueryScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Multiplies the query at position p by `1 + beta * log(1 + floor((p + first) / original_length))` (Llama 4)."""

    beta: float
    original_length: int
    first: int = 0


class IndexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of the tokens that a token attends to, `count` at most (arXiv 2512.02556).

    Heads of an index, of `size` numbers, score earlier tokens by one key of each, which is normalised (layer norm) and
    cached behind the latent; both are rotated like the latent's rotary part. With `interleaved` the file has the pairs
    of this rotation side by side. With a `source` the layer has the choice of an earlier one, and no index.
    """

    heads: int
    size: int
    count: int
    norm: NormSpec
    interleaved: bool = False
    source: int | None = None


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of latent attention (arXiv 2405.04434).

    A token has one latent of `rank` numbers, normalised by `norm`; its product with a matrix for each head is the
    head's key without positions, of `key_size` numbers, and the one with another matrix is its value. All heads share a
    rotary part of the key, of `rope_size` numbers.

    - `query_rank`: queries follow from a normalised vector of so many numbers; None: from the layer's input.
    - `absorbed`: the file has the matrix of each head's key transposed, as it is applied to the query.
    - `index`: chooses tokens, from the normalised vector that queries follow from; None: all are attended to.
    """

    rank: int
    rope_size: int
    key_size: int
    value_size: int
    norm: NormSpec
    query_rank: int | None = None
    absorbed: bool = False
    index: IndexSpec | None = None

    @property
    def size(self) -> int:
        """Numbers of a token that heads attend to: the rotary part and the latent."""
        return self.rope_size + self.rank

    @property
    def cached_size(self) -> int:
        """Numbers that the cache keeps of a token: those, and the key of an index."""
        return self.size + (0 if self.index is None else self.index.size)

    @property
    def query_size(self) -> int:
        """Features of a query head."""
        return self.key_size + self.rope_size

    @property
    def key_shape(self) -> tuple[int, int]:
        """The shape of the matrix of a head's key in the file."""
        return (self.rank, self.key_size) if self.absorbed else (self.key_size, self.rank)


class RelativeBiasSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A learned bias for each head and bucket of distances, added to scaled scores (T5, arXiv 1910.10683).

    Half of the buckets are for keys after the query. A sequence has at most `length` tokens.
    """

    length: int
    buckets: int


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention (arXiv 2305.13245).

    - `rope`: the index in `ModelSpec.ropes`; None for a layer without positions.
    - `window`: the number of positions that a token attends to, its own included; None for all.
    - `bidirectional`: it attends to as many positions after it, too, or to all of its sequence (arXiv 1810.04805).
    - `query_key_norm`: applied to query and key before the rotation, over each head or over all heads together; with
      `norm_after_rotation` after it, over each head.
    - `soft_cap`: scores become `cap * tanh(score / cap)`.
    - `sinks`: each head has a learned logit that takes a share of the softmax (gpt-oss).
    - `slopes`: the scores of each head fall by its slope for each position of distance (ALiBi, arXiv 2108.12409).
    - `relative_bias`: each head adds a learned bias to its scores, by distance.
    - `clip`: query, key and value are brought into the range from `-clip` to `clip` before norms and rotation (MPT).
    - `output_gate`: the heads' outputs are multiplied by a function of another projection (arXiv 2505.06708).
    - `head_gate`: the same with one number for each head.
    - `gate_function`: the function of the gate.
    - `value_norm`: a norm without weights over each head of the value.
    - `output_norm`: a norm over the outputs of all heads together, before the last projection (BitNet).
    - `values_are_keys`: the value is the key before its norm and rotation; it needs a `value_norm`.
    - `value_size`: the numbers of a head's value and output, where they are fewer than those of its key (MiMo V2).
    - `value_scale`: multiplies values.
    - `kv_source`: an earlier layer whose keys and values it reads, instead of its own (arXiv 2405.12981).
    - `latent`: keys and values are latents, one head of `LatentSpec.cached_size` for all query heads. Its `bias` is
      that of the projections of the layer's input to vectors of a rank.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    rope: int | None = 0
    window: int | None = None
    bidirectional: bool = False
    query_key_norm: NormSpec | None = None
    norm_over: Literal["head", "all"] = "head"
    norm_after_rotation: bool = False
    bias: bool = False
    output_bias: bool = False
    soft_cap: float | None = None
    query_scaling: QueryScaling | None = None
    sinks: bool = False
    slopes: tuple[float, ...] | None = None
    relative_bias: RelativeBiasSpec | None = None
    clip: float | None = None
    output_gate: bool = False
    head_gate: bool = False
    gate_function: Literal["sigmoid", "softplus"] = "sigmoid"
    value_norm: NormSpec | None = None
    output_norm: NormSpec | None = None
    values_are_keys: bool = False
    value_size: int | None = None
    value_scale: float = 1.0
    kv_source: int | None = None
    latent: LatentSpec | None = None

    @property
    def cached_vectors(self) -> int:
        """The vectors that the cache keeps of a token for each KV head: a key and a value, or a latent alone."""
        return 2 if self.latent is None else 1

    @property
    def value_start(self) -> int:
        """The first number of a cached latent that belongs to its value; 0 where values are vectors of their own."""
        return 0 if self.latent is None else self.latent.rope_size

    @property
    def query_size(self) -> int:
        """Features of all query heads."""
        return self.heads * (self.head_size if self.latent is None else self.latent.size)

    @property
    def kv_size(self) -> int:
        """Features of all key heads."""
        return self.kv_heads * self.head_size

    @property
    def value_head_size(self) -> int:
        """Features of a value head, and of the output of a query head."""
        return self.value_size or self.head_size

    @property
    def output_size(self) -> int:
        """Features of the outputs of all heads."""
        return self.heads * self.value_head_size

    @property
    def index(self) -> IndexSpec | None:
        """The choice of the tokens that it attends to; None: all."""
        return None if self.latent is None else self.latent.index

    @property
    def source(self) -> int | None:
        """The earlier layer whose keys and values, or choice of tokens, it reads."""
        return self.kv_source if self.index is None else self.index.source

    @property
    def projections(self) -> dict[str, int]:
        """The projections of the layer's input to heads, with their features; not those of latents."""
        own = {"key": self.kv_size} if self.kv_source is None else {}
        own |= {"value": self.kv_heads * self.value_head_size} if own and not self.values_are_keys else {}
        gate = {"gate": self.output_size} if self.output_gate else {"gate": self.heads} if self.head_gate else {}
        return {"query": self.query_size} | own | gate

    def kv_heads_of_rank(self, ranks: int) -> int:
        """The number of KV heads on each of `ranks`; with more ranks than heads, some ranks hold the same one."""
        return max(1, self.kv_heads // ranks)


_NO_ATTENTION = AttentionSpec(heads=0, kv_heads=0, head_size=0, scale=1.0)


class ExpertGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of equal size, `count` in number: a token takes experts of the `active` best groups alone.

    A group's score is the sum of its `best` largest: 1 in DeepSeek V2 (arXiv 2405.04434), 2 in V3 (arXiv 2412.19437).
    """

    count: int
    active: int
    best: int


class SharedExpertSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A feed-forward layer beside the experts, without biases, that every token goes through; outputs are added.

    With `gated` its output is multiplied by the sigmoid of a number for each token, which is linear in the input;
    and by `factor`, in every case. `limit` is that of `FeedForwardSpec`.
    """

    size: int
    gated: bool = False
    factor: float = 1.0
    limit: float | None = None


class RoutingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Mixture of experts: each token goes through the `active` of the `experts` with the largest scores.

    - `scores`: a softmax over the router's logits (arXiv 1701.06538), the sigmoid of each (arXiv 2412.19437), or a
      softmax over those that are left and near enough to their largest (arXiv 2409.12136), which are a part of
      `tolerance` away at most. The scores of the chosen experts are their weights.
    - `normalised`: the weights sum to 1.
    - `factor`: multiplies the weights.
    - `weighs_inputs`: the weights multiply the inputs of the experts, not their outputs (Llama 4).
    - `correction`: each expert has a bias that is added to its score for the choice alone.
    - `groups`: limits the choice to some groups.
    - `float32`: the logits are computed in float32, whatever the dtype of the model.
    - `shared`: an expert that every token goes through.
    - `expert_factors`: each expert has a factor of its weight (Gemma 4).
    """

    experts: int
    active: int
    normalised: bool = True
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    tolerance: float = 0.0
    factor: float = 1.0
    weighs_inputs: bool = False
    correction: bool = False
    groups: ExpertGroups | None = None
    float32: bool = False
    shared: SharedExpertSpec | None = None
    expert_factors: bool = False


class ClampedGate(msgspec.Struct, frozen=True, kw_only=True):
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gate is at most `limit`, up from `-limit` to `limit` (gpt-oss)."""

    limit: float
    alpha: float


class FeedForwardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`down(activation(gate(x)) * up(x))` (arXiv 2002.05202), or `down(activation(up(x)))` if it is not gated.

    `output_bias` is one of the last projection alone. With `routing` the layer has experts of this size, and `bias`
    also applies to the router. `clamped_gate` replaces the activation. With a `cutoff` the gate becomes its part above
    its mean and so many standard deviations (arXiv 2506.06644), before the activation. `inner_norm` is a norm before
    the last projection, of a layer without experts. With a `limit` the gate, activated by SiLU, is at most that, and up
    from `-limit` to `limit` (Step 3.5).
    `xielu` has the learned factors of this activation, as files store them (`apertus.py`); None: the weights have them.
    """

    size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    output_bias: bool = False
    routing: RoutingSpec | None = None
    clamped_gate: ClampedGate | None = None
    limit: float | None = None
    cutoff: float | None = None
    inner_norm: NormSpec | None = None
    xielu: tuple[float, float] | None = None


class ShortConvolutionSpec(msgspec.Struct, frozen=True, kw_only=True, tag="short_convolution"):
    """A causal convolution of each feature over the last `width` tokens, between two gates (LFM2, arXiv 2511.23404)."""

    size: int
    width: int
    bias: bool = False

    @property
    def convolved(self) -> tuple[int, ...]:
        """The features of each part of the convolution's input."""
        return (self.size,)

    @property
    def inputs(self) -> dict[str, int]:
        """The projections of the layer's input, with their features; those that are convolved come first."""
        return {"input_gate": self.size, "output_gate": self.size, "value": self.size}

    @property
    def output_size(self) -> int:
        """Features before the last projection."""
        return self.size

    @property
    def has_convolution_bias(self) -> bool:
        """Whether the convolution has a bias."""
        return self.bias

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of features or heads that ranks share equally."""
        return (self.size,)

    def convolved_features(self, ranks: int) -> int:
        """Features of the convolution on each of `ranks`."""
        return self.size // ranks

    def memory(self, ranks: int) -> Shape:
        """The shape of the state beside that of the convolution, on each of `ranks`; empty: there is none."""
        return ()


class GatedDeltaSpec(msgspec.Struct, frozen=True, kw_only=True, tag="gated_delta"):
    """The gated delta rule (arXiv 2412.06464) after a causal convolution over `width` tokens.

    Its output is normalised over each head, and gated. A value head has a matrix [key_size, value_size] as its state;
    several may have the query and the key of one head: adjacent ones, or if `is_tiled` those at equal distances, as in
    llama.cpp's files of Qwen 3.5.

    - `row_decays`: each row of a state has a decay of its own (Kimi's delta attention, arXiv 2510.26692).
    - `rank`: decays and the output's gate are products with two matrices, of so many features between them.
    - `gate`: the function of the output's gate.
    - `are_convolutions_apart`: the file has the convolutions of queries, keys and values in a tensor each.
    - `greatest_share`, `strongest_decay`: see `gated_delta_rule` in `pyllm_kernels`.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    width: int
    epsilon: float
    is_tiled: bool = False
    row_decays: bool = False
    rank: int | None = None
    gate: Literal["silu", "sigmoid"] = "silu"
    are_convolutions_apart: bool = False
    greatest_share: float = 1.0
    strongest_decay: float | None = None

    @property
    def convolved(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        keys = self.key_heads * self.key_size
        return keys, keys, self.value_heads * self.value_size

    @property
    def inputs(self) -> dict[str, int]:
        """See `ShortConvolutionSpec`."""
        query, key, value = self.convolved
        inputs = {"query": query, "key": key, "value": value}
        if self.rank is not None:
            return inputs | {"beta": self.value_heads}
        return inputs | {"gate": value, "beta": self.value_heads, "decay": self.decays}

    @property
    def low_rank(self) -> dict[str, int]:
        """The projections that are products of two matrices, with their features."""
        return {} if self.rank is None else {"decay": self.decays, "gate": self.output_size}

    @property
    def decays(self) -> int:
        """The number of decays of a token."""
        return self.value_heads * (self.key_size if self.row_decays else 1)

    @property
    def output_size(self) -> int:
        """See `ShortConvolutionSpec`."""
        return self.value_heads * self.value_size

    @property
    def has_convolution_bias(self) -> bool:
        """See `ShortConvolutionSpec`."""
        return False

    @property
    def parts(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return (1,) if self.is_tiled else (self.key_heads, self.value_heads)

    def convolved_features(self, ranks: int) -> int:
        """See `ShortConvolutionSpec`."""
        return sum(self.convolved) // ranks

    def memory(self, ranks: int) -> Shape:
        """See `ShortConvolutionSpec`."""
        return self.value_heads // ranks, self.key_size, self.value_size


class StateSpaceSpec(msgspec.Struct, frozen=True, kw_only=True, tag="state_space"):
    """Mamba-2's state space (arXiv 2405.21060) after a causal convolution over `width` tokens.

    Each head has a matrix [head_size, state_size] as its state; heads of a group have the same input and readout.

    - `bias`, `has_convolution_bias`: of the projections, and of the convolution.
    - `step_limits`: the least and the largest step.
    - `norm_groups`: groups of features whose gated output is normalised, over each alone; 0: it is gated alone.
    - `gate_first`: the norm is of the gated output; otherwise the gate is a factor of the normalised output.
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    width: int
    epsilon: float
    bias: bool = False
    has_convolution_bias: bool = True
    step_limits: tuple[float, float] = (0.0, math.inf)
    norm_groups: int = 1
    gate_first: bool = True

    @property
    def convolved(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return self.output_size, self.groups * self.state_size, self.groups * self.state_size

    @property
    def inputs(self) -> dict[str, int]:
        """See `ShortConvolutionSpec`."""
        value, read, written = self.convolved
        return {"value": value, "input": read, "readout": written, "gate": value, "step": self.heads}

    @property
    def output_size(self) -> int:
        """See `ShortConvolutionSpec`."""
        return self.heads * self.head_size

    @property
    def parts(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return (self.heads, self.groups) if self.groups > 1 else (self.heads,)  # ranks may share the only group

    def convolved_features(self, ranks: int) -> int:
        """See `ShortConvolutionSpec`."""
        groups = max(1, self.groups // ranks)
        return self.output_size // ranks + 2 * groups * self.state_size

    def memory(self, ranks: int) -> Shape:
        """See `ShortConvolutionSpec`."""
        return self.heads // ranks, self.head_size, self.state_size


class SelectiveScanSpec(msgspec.Struct, frozen=True, kw_only=True, tag="selective_scan"):
    """Mamba's selective scan (arXiv 2312.00752) after a causal convolution over `width` tokens.

    Each of `size` features has a vector of `state_size` numbers as its state; all have the same input and readout. The
    step of each follows from `step_rank` numbers.

    - `bias`, `has_convolution_bias`: of the projections into the layer and out of it, and of the convolution.
    - `norm`: of those numbers, of the input and of the readout, over each alone (Jamba, arXiv 2403.19887).
    """

    size: int
    state_size: int
    step_rank: int
    width: int
    bias: bool = False
    has_convolution_bias: bool = True
    norm: NormSpec | None = None

    @property
    def convolved(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return (self.size,)

    @property
    def inputs(self) -> dict[str, int]:
        """See `ShortConvolutionSpec`."""
        return {"value": self.size, "gate": self.size}

    @property
    def output_size(self) -> int:
        """See `ShortConvolutionSpec`."""
        return self.size

    @property
    def parts(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return (self.size,)

    @property
    def norms(self) -> dict[str, tuple[NormSpec, int]]:
        """The norms within the layer, and their features."""
        sizes = {"rate_norm": self.step_rank, "input_norm": self.state_size, "readout_norm": self.state_size}
        return {} if self.norm is None else {name: (self.norm, size) for name, size in sizes.items()}

    def convolved_features(self, ranks: int) -> int:
        """See `ShortConvolutionSpec`."""
        return self.size // ranks

    def memory(self, ranks: int) -> Shape:
        """See `ShortConvolutionSpec`."""
        return self.size // ranks, self.state_size


class LightningSpec(msgspec.Struct, frozen=True, kw_only=True, tag="lightning"):
    """Lightning attention (arXiv 2401.04658): linear attention whose state fades by a constant factor of each head.

    Each head has a matrix [head_size, head_size] as its state. There is no convolution. The output is normalised, and
    multiplied by the sigmoid of another projection.

    - `slopes`: a token multiplies the state of a head by `exp(-slope)`.
    - `scale`: multiplies the queries.
    - `activated`: queries, keys and values go through SiLU (MiniMax-01).
    - `query_key_norm`: over each head, before the rotation, as in attention.
    - `rope`: the index in `ModelSpec.ropes`; None for a layer without positions.
    - `norm_groups`: groups of features whose output is normalised, over each alone.
    """

    heads: int
    head_size: int
    slopes: tuple[float, ...]
    epsilon: float
    scale: float = 1.0
    activated: bool = False
    query_key_norm: NormSpec | None = None
    rope: int | None = None
    norm_groups: int = 1

    @property
    def convolved(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`: nothing is convolved."""
        return ()

    @property
    def inputs(self) -> dict[str, int]:
        """The projections of the layer's input, with their features."""
        return dict.fromkeys(("query", "key", "value", "gate"), self.output_size)

    @property
    def output_size(self) -> int:
        """See `ShortConvolutionSpec`."""
        return self.heads * self.head_size

    @property
    def parts(self) -> tuple[int, ...]:
        """See `ShortConvolutionSpec`."""
        return (self.heads,)

    def memory(self, ranks: int) -> Shape:
        """See `ShortConvolutionSpec`."""
        return self.heads // ranks, self.head_size, self.head_size


ConvolvedSpec = ShortConvolutionSpec | GatedDeltaSpec | StateSpaceSpec | SelectiveScanSpec
"""A layer with a state and a convolution."""
RecurrenceSpec = ConvolvedSpec | LightningSpec
"""A layer that keeps a state of all tokens before: a convolution's last inputs, and maybe numbers for each head."""


def convolution_tensors(recurrence: ConvolvedSpec) -> dict[str, int]:
    """The tensors of a convolution, with their features."""
    if isinstance(recurrence, GatedDeltaSpec) and recurrence.are_convolutions_apart:
        parts = zip(recurrence.inputs, recurrence.convolved, strict=False)
        return {f"{name}_convolution": size for name, size in parts}
    return {"convolution": sum(recurrence.convolved)}


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention, then feed-forward; each may have a norm before it, and one after it, before the residual addition.

    In place of attention a layer may have a recurrence, or both on one input, whose outputs are added (Falcon-H1), or
    neither; it may have no feed-forward layer.

    With `parallel` both take the same input, and their outputs are added: normalised by the first norm (Cohere), or
    each by its own one (GPT-NeoX). For a layer that transformers computes only the attention is known, and its
    feed-forward layer has the size 0.

    `experts` are beside the feed-forward layer (Gemma 4): their router and they themselves take the residual stream,
    each with a norm of its own. Both outputs are normalised by `experts_norm`, too, and added.

    `factors` multiply parameters of the layer when they are loaded, by the parameters' names (Falcon-H1).

    With a `post_norm_factor` the residual stream is what the norms give (BERT, MiniMax-01): the output of attention is
    added to its normalised input times this factor, the output of feed-forward to its own times `residual_multiplier`.
    """

    attention: AttentionSpec | None = None
    recurrence: RecurrenceSpec | None = None
    feed_forward: FeedForwardSpec | None = None
    attention_norm: NormSpec | None = None
    attention_output_norm: NormSpec | None = None
    feed_forward_norm: NormSpec | None = None
    feed_forward_output_norm: NormSpec | None = None
    experts: FeedForwardSpec | None = None
    experts_norm: NormSpec | None = None
    parallel: bool = False
    factors: dict[str, float] = msgspec.field(default_factory=dict)
    post_norm_factor: float | None = None

    @property
    def own_attention(self) -> AttentionSpec:
        """The attention of a layer that has some."""
        assert self.attention is not None, "a layer without attention"
        return self.attention

    @property
    def routing(self) -> RoutingSpec | None:
        """The routing of its experts, if it has some."""
        feed_forward = self.feed_forward if self.experts is None else self.experts
        return None if feed_forward is None else feed_forward.routing

    @property
    def norms(self) -> dict[str, NormSpec]:
        """The norms of this layer, by their names."""
        norms = {
            "attention_norm": self.attention_norm,
            "attention_output_norm": self.attention_output_norm,
            "feed_forward_norm": self.feed_forward_norm,
            "feed_forward_output_norm": self.feed_forward_output_norm,
            **dict.fromkeys(("router_norm", "experts_norm", "experts_output_norm", "dense_norm"), self.experts_norm),
        }
        return {name: norm for name, norm in norms.items() if norm is not None}


class StreamsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Residual streams, `count` in number, of which each layer computes the one with the index `active` (AltUp, arXiv
    2301.13310). All streams are predicted before a layer, and corrected by its result.

    The first stream is the embedding, and the others are its projections, of the same magnitude. Their mean is the
    result, after another projection of each but the first. Beside attention a layer has a product of two matrices of
    `augmented_rank` (LAuReL, arXiv 2411.07501). With `scaled` a learned vector multiplies the stream that the per-layer
    input is gated by. All norms are `norm`.
    """

    count: int
    active: int
    augmented_rank: int
    scaled: bool
    norm: NormSpec


class PerLayerInputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A vector of `size` numbers of each token for each layer, beside the residual stream (Gemma 3n and 4).

    It comes from the token, by an embedding with `vocab_size` rows (row 0 for tokens beyond), and from the embedding of
    the model, by a projection with a norm; both are added, and divided by the square root of 2. At its end, a layer
    gates it with a projection of the residual stream, and adds its projection, normalised. All norms are `norm`.
    """

    size: int
    vocab_size: int
    activation: Activation
    norm: NormSpec


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


DenseActivation = Literal["identity", "tanh", "gelu", "relu"]


class DenseSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`activation(weight @ pooled + bias)` of a pooled state, as in sentence-transformers, and its `norm`, if any.

    With `tokens` the matrix has the rows of these one or two tokens in the model's head, the lower one first.
    """

    in_features: int
    out_features: int
    bias: bool = False
    activation: DenseActivation = "identity"
    norm: NormSpec | None = None
    tokens: tuple[int, ...] | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model. `dtype` is the dtype of the file: float32, bfloat16 or float16; float32 for a quantised file.

    The position embedding has `positions` rows, which are added to the embedding of tokens (GPT-2); 0 if there is none.
    With `sinusoids` no file has it: its rows are sines and cosines, from that position on (arXiv 1706.03762). The first
    of `token_types` vectors is added, too (BERT); a model that `tells_texts_apart` adds the second one to the tokens of
    a pair's second text. `embedding_norm` is a norm before the first layer. With `layer_scales` each layer has a number
    that multiplies the residual stream after it. The layers in `dense` follow the pooling of an embedding, or give the
    scores of a classifier's classes (`is_classifier`).

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
    positions: int = 0
    sinusoids: int | None = None
    token_types: int = 0
    tells_texts_apart: bool = False
    embedding_norm: NormSpec | None = None
    head_bias: bool = False
    per_layer_input: PerLayerInputSpec | None = None
    streams: StreamsSpec | None = None
    layer_scales: bool = False
    dense: tuple[DenseSpec, ...] = ()
    is_classifier: bool = False
    transformers: TransformersSpec | None = None

    @property
    def embedding_size(self) -> int:
        """The numbers of an embedding of a text, or of its scores."""
        return self.dense[-1].out_features if self.dense else self.hidden_size

    @property
    def num_positions(self) -> int:
        """Rows of the position embedding; twice as many if texts are told apart, as a row includes the token type."""
        return self.positions * (1 + self.tells_texts_apart)

    @property
    def second_text_offset(self) -> int:
        """The number added to the ids of a pair's second text if texts are told apart: no token types are sent."""
        return self.vocab_size if self.tells_texts_apart else 0

    @property
    def attention(self) -> AttentionSpec:
        """The attention of the first layer that has some.

        Without such a layer, attention with no heads of no size.
        """
        return next(self.attentions, _NO_ATTENTION)

    @property
    def attentions(self) -> Iterator[AttentionSpec]:
        """The attention of each layer that has some."""
        return (layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def per_layer_features(self) -> int:
        """The numbers of a token for all layers, beside the residual stream."""
        return 0 if self.per_layer_input is None else self.per_layer_input.size * len(self.layers)

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """The features of the tensors that a pipeline stage sends to the next one for each token.

        They are the pending output and the residual stream, or their scaled sum, or all streams; then numbers for each
        layer.
        """
        streams = (self.hidden_size,) * (1 if self.layer_scales else 2)
        if self.streams is not None:
            streams = (self.hidden_size * self.streams.count,)
        return (*streams, self.per_layer_features) if self.per_layer_features else streams

    @property
    def tied_layers(self) -> frozenset[int]:
        """The layers that must be on the pipeline stage of the layer before."""
        sources = enumerate(None if layer.attention is None else layer.attention.source for layer in self.layers)
        return frozenset(
            layer for index, source in sources if source is not None for layer in range(source + 1, index + 1)
        )

    @property
    def query_scaling(self) -> QueryScaling | None:
        """The query scaling of the layers that have some, which is the same in all of them."""
        return next((found for attention in self.attentions if (found := attention.query_scaling) is not None), None)

    @property
    def is_bidirectional(self) -> bool:
        """Whether tokens attend to later ones, so that the model embeds whole texts and generates none."""
        return any(attention.bidirectional for attention in self.attentions)

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state."""
        return any(layer.recurrence is not None for layer in self.layers)


EXPERT_FEATURES = 32
"""A rank's part of an expert has a multiple of so many features."""
HEAD_FEATURES = 32
"""The latent and the values of latent attention have a multiple of so many features."""


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
    recurrences = (layer.recurrence for layer in spec.layers if layer.recurrence is not None)
    parts = chain.from_iterable(recurrence.parts for recurrence in recurrences)
    common = math.gcd(*(attention.heads for attention in spec.attentions), *parts)
    divisors = [size for size in range(1, common + 1) if common % size == 0]
    sizes = [str(size) for size in divisors if not _unevenly_cut(spec, size, by_expert)]
    raise ConfigError(
        f"tensor_parallel_size {ranks} does not divide {' and '.join(uneven)}; "
        f"sizes that work here: {', '.join(sizes) or 'none'}"
    )


def _unevenly_cut(spec: ModelSpec, ranks: int, by_expert: bool) -> list[str]:
    parts = {}
    for attention in spec.attentions:
        parts[f"{attention.heads} attention heads"] = attention.heads % ranks == 0
        # transformers splits a KV head where there are more ranks than heads.
        is_repeated = spec.transformers is None and ranks % attention.kv_heads == 0
        parts[f"{attention.kv_heads} key/value heads"] = attention.kv_heads % ranks == 0 or is_repeated
    for layer in spec.layers:
        for size in () if layer.recurrence is None else layer.recurrence.parts:
            parts[f"{size} parts of a recurrence"] = size % ranks == 0
        for feed_forward in filter(None, (layer.feed_forward, layer.experts)):
            parts |= _parts_of_feed_forward(feed_forward, ranks, by_expert)
    for linear in () if spec.transformers is None else chain.from_iterable(spec.transformers.linears):
        if linear.split != "whole":
            size = linear.shape[linear.split == "inputs"]
            parts[f"{size} {linear.split} of {linear.name}"] = size % ranks == 0
    return [name for name, is_even in parts.items() if not is_even]


def _parts_of_feed_forward(spec: FeedForwardSpec, ranks: int, by_expert: bool) -> dict[str, bool]:
    """The parts of a feed-forward layer that ranks share, and whether each rank has as much."""
    if (routing := spec.routing) is None:
        return {f"{spec.size} columns of the feed-forward layer": spec.size % ranks == 0}
    shared = (
        {} if routing.shared is None else {f"{routing.shared.size} columns of the shared expert": routing.shared.size}
    )
    parts = {name: size % ranks == 0 for name, size in shared.items()}
    if by_expert:
        is_even = routing.experts % ranks == 0 and spec.size % EXPERT_FEATURES == 0
        return parts | {f"{routing.experts} experts": is_even}
    name = f"{spec.size} features of an expert into multiples of {EXPERT_FEATURES}"
    return parts | {name: spec.size % (EXPERT_FEATURES * ranks) == 0}
