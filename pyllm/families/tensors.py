"""The map from the tensors of a file to the parameters of a model, with the transforms between them.

Knows no format: readers list the tensors of a file (`FileTensor`), and loaders follow the entries that it returns.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.spec import (
    AttentionSpec,
    FeedForwardSpec,
    GatedDeltaSpec,
    LatentSpec,
    LayerSpec,
    LightningSpec,
    ModelSpec,
    NormSpec,
    RecurrenceSpec,
    SelectiveScanSpec,
    Shape,
    StateSpaceSpec,
    StreamsSpec,
    convolution_tensors,
)
from pyllm.families.transformers_probe import Probed


class MissingTensorError(ConfigError):
    """A model's files lack a tensor that its architecture needs."""


class FileTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor in a file. `shape` is in torch's order."""

    name: str
    type: str  # F32, F16, BF16, Q4_0, Q4_1, Q8_0 ...
    shape: Shape
    file: int  # index into `Checkpoint.files`
    offset: int  # bytes from the start of the file
    num_bytes: int


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Rows `start:stop:step` of a tensor that several parameters share."""

    start: int
    stop: int
    step: int = 1


class Deinterleave(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Reorders the first `rotary_size` rows of each head: rows 0, 2, 4 ... first, then 1, 3, 5 ...

    A file may have the pairs of RoPE side by side; the kernels pair the two halves of a head.
    """

    head_size: int
    rotary_size: int


class GroupRows(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Rows `start:stop` of every `group` rows: the part of each head in a tensor that has query, key and value."""

    group: int
    start: int
    stop: int


class LastFirst(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Moves the last `count` rows of every `group` rows before the others."""

    group: int
    count: int


class Transpose(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Swaps rows and columns. Only for floats: quantised blocks lie along rows."""


class Add(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Adds a number to each element."""

    value: float


class LogOfMagnitude(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The logarithm of the element without its sign.

    llama.cpp's files have `-exp` of the decays of a state, or `exp`.
    """


class Scale(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Multiplies each element by a number."""

    value: float


Transform = Rows | Deinterleave | GroupRows | LastFirst | Transpose | Add | LogOfMagnitude | Scale


class Quantised(msgspec.Struct, frozen=True, array_like=True):
    """The quantisation of a matrix of integers or small floats: a weight is `scale * (element - zero point)`.

    `layout` is the layout of the elements in their tensor. "bytes" is [out_features, in_features], one byte an element.
    "packed", "gptq" and "awq" pack integers into int32, the first in the lowest bits: "packed" along rows, "gptq" along
    columns, both in order, and "awq" along columns in the order 0, 2, 4, 6, 1, 3, 5, 7. "gptq" and "awq" have a column
    an output, and scales [groups, out_features]. "ternary" has one scale, and for -1, 0 and 1 the integers from 0 up
    in 2 bits: a byte has those of four rows, each a quarter of the rows apart. "mxfp4" has floats of 4 bits (E2M1), two
    a byte, the first in the low half, and scales that are exponents (E8M0).
    """

    layout: Literal["bytes", "packed", "gptq", "awq", "ternary", "mxfp4"]
    bits: int  # of the integers that the kernels multiply
    block: tuple[int, int]  # rows and columns that share a scale
    scales: FileTensor
    zeros: FileTensor | None = None  # None: the middle of the integers, or 0 in "bytes"
    zero_offset: int = 0  # is added to each stored zero point
    groups: FileTensor | None = None  # int32 [in_features]; None: consecutive groups
    inverse_scales: bool = False  # weights are divided by what the file has


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One parameter of the model: its name and shape, the tensor that fills it, and the transforms in their order.

    The shape of a `quantised` source is the shape of the dequantised matrix.
    """

    name: str
    shape: Shape
    source: FileTensor
    transforms: tuple[Transform, ...] = ()
    quantised: Quantised | None = None

    @property
    def file_tensors(self) -> tuple[FileTensor, ...]:
        """The source and the tensors of its quantisation."""
        if self.quantised is None:
            return (self.source,)
        beside = (self.quantised.scales, self.quantised.zeros, self.quantised.groups)
        return (self.source, *(tensor for tensor in beside if tensor is not None))


LLAMA_PARTS = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward.router": "mlp.gate",
    "feed_forward.correction": "mlp.gate.e_score_correction",
    "feed_forward.experts.gate": "mlp.experts.{}.gate_proj",
    "feed_forward.experts.up": "mlp.experts.{}.up_proj",
    "feed_forward.experts.down": "mlp.experts.{}.down_proj",
    "feed_forward.shared.gate": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.up": "mlp.shared_experts.up_proj",
    "feed_forward.shared.down": "mlp.shared_experts.down_proj",
}
"""The parts of a layer, in transformers' names for Llama, which most families share."""

PER_LAYER_PARTS = {
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.projection": "per_layer_projection",
    "per_layer.norm": "post_per_layer_input_norm",
}
"""The parts of per-layer inputs, in transformers' names."""

POST_NORM_PARTS = LLAMA_PARTS | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""The same for layers with a norm after attention and after feed-forward alone (OLMo 2)."""

GGUF_PARTS = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "attention_output_norm": "post_attention_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.experts.gate": "ffn_gate_exps",
    "feed_forward.experts.up": "ffn_up_exps",
    "feed_forward.experts.down": "ffn_down_exps",
    "feed_forward.correction": "exp_probs_b",
    "feed_forward.shared.gate": "ffn_gate_shexp",
    "feed_forward.shared.up": "ffn_up_shexp",
    "feed_forward.shared.down": "ffn_down_shexp",
    "feed_forward.shared_gate": "ffn_gate_inp_shexp",
    "feed_forward_output_norm": "post_ffw_norm",
}
"""The parts of a layer, in llama.cpp's names."""

GGUF_PER_LAYER_PARTS = {
    "per_layer.gate": "inp_gate",
    "per_layer.projection": "proj",
    "per_layer.norm": "post_norm",
}
"""The parts of per-layer inputs, in llama.cpp's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The names that a kind of file gives to a family's tensors.

    - `skipped_positions`: rows of the position embedding before that of the first token.
    - `parts`: an expert's name has its number at {}, or names a tensor [experts, rows, columns].
    - `roots`: possible prefixes of the embedding, the norm and the layers; the first that fits is used.
    - `stacked`: tensors that hold several parts of a layer, stacked by rows; in files without a tensor of each.
    - `alternating`: the `stacked` tensors whose parts have interleaved rows.
    - `grouped`: the `stacked` tensors that have, for each key head, all that belongs to it: its query heads, itself and
      its value heads; or for each query head the query and its gate. With `groups` there are so many, of equal size.
    - `aliases`: other names of tensors of a layer, in files without the first one: of a part, or of its weight or bias
      (`part.weight`).
    - `bare`: tensors of a layer without `.weight` after the name, and with `_bias` in place of `.bias`.
    - `interleaved`: query and key have the pairs of RoPE side by side.
    - `offset_added`: the scales of norms with `unit_offset` already include the 1.
    - `has_negative_decays`: `recurrence.decay_scale` is `-exp` of what transformers has.
    - `transposed`: parts of a layer whose float matrices have one column an output, as in GPT-2's Conv1D.
    - `derived`: endings of tensors that follow from the configuration and are left out.
    - `are_all`: a tensor that is no parameter means a feature that is not supported, and is refused as in llama.cpp.
      Otherwise such tensors are skipped as in transformers: a vision tower, heads and masks left from training, layers
      beyond num_hidden_layers.
    """

    roots: tuple[str, ...] = ("model.", "")
    embedding: str = "embed_tokens"
    position_embedding: str = "embed_positions"
    skipped_positions: int = 0
    embedding_norm: str = "embed_norm"
    norm: str = "norm"
    per_layer_embedding: str = "embed_tokens_per_layer"
    per_layer_projection: str = "per_layer_model_projection"
    per_layer_norm: str = "per_layer_projection_norm"
    streams_in: str = "altup_projections"
    streams_out: str = "altup_unembed_projections"
    heads: tuple[str, ...] = ("lm_head",)
    layer: str = "layers.{}."
    parts: Mapping[str, str] = field(default_factory=lambda: LLAMA_PARTS)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alternating: frozenset[str] = frozenset()
    grouped: frozenset[str] = frozenset()
    groups: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    bare: frozenset[str] = frozenset({LLAMA_PARTS["feed_forward.correction"]})
    interleaved: bool = False
    offset_added: bool = False
    has_negative_decays: bool = False
    transposed: frozenset[str] = frozenset()
    derived: tuple[str, ...] = (
        *(".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"),
        *(".position_ids", ".masked_bias"),
    )
    are_all: bool = False

    def of_files(self, tensors: Container[str], prefix: str) -> "TensorNames":
        """These names, for a layer of files whose parts may be in tensors of their own, or in one.

        transformers 5 keeps all experts of a layer in one tensor.
        """
        alone = {
            name
            for name, parts in self.stacked.items()
            if all(f"{prefix}{self.parts.get(part)}.weight" in tensors for part in parts)
        }
        if alone:
            kept = {name: parts for name, parts in self.stacked.items() if name not in alone}
            return replace(self, stacked=kept).of_files(tensors, prefix)
        experts, _, _ = self.parts.get("feed_forward.experts.down", "").partition(".{}.")
        gate_up, down = f"{experts}.gate_up_proj", f"{experts}.down_proj"
        if f"{prefix}{gate_up}" not in tensors:
            return self
        return replace(
            self,
            parts={**self.parts, "feed_forward.experts.down": down},
            stacked={**self.stacked, gate_up: ("feed_forward.experts.gate", "feed_forward.experts.up")},
            bare=self.bare | {gate_up, down},
        )

    def source_of(self, part: str) -> tuple[str, tuple[str, ...]]:
        """The name of the tensor that holds a part of a layer, and all parts that it holds, in their order."""
        for name, parts in self.stacked.items():
            if part in parts:
                return name, parts
        return self.parts[part], (part,)

    def tensor_of(self, source: str, kind: str) -> str:
        """The whole name of the weight or the bias of a source."""
        if source not in self.bare:
            return f"{source}.{kind}"
        return source if kind == "weight" else f"{source}_{kind}"


HUGGINGFACE_NAMES = TensorNames()

TEXT_MODEL_NAMES = TensorNames(
    roots=("model.", "language_model.model.", "model.language_model.", ""),
    heads=("lm_head", "language_model.lm_head"),
)
"""transformers' names for a model alone, or for the text model within one with images."""

GATE_UP = ("feed_forward.gate", "feed_forward.up")
"""Parts that many files stack in one tensor."""

QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")
"""The same of attention."""

GGUF_NAMES = TensorNames(
    roots=("",),
    embedding="token_embd",
    position_embedding="position_embd",
    embedding_norm="token_embd_norm",
    norm="output_norm",
    per_layer_embedding="per_layer_token_embd",
    per_layer_projection="per_layer_model_proj",
    per_layer_norm="per_layer_proj_norm",
    streams_in="altup_proj",
    streams_out="altup_unembd_proj",
    heads=("output",),
    layer="blk.{}.",
    parts=GGUF_PARTS,
    offset_added=True,
    has_negative_decays=True,
    derived=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    are_all=True,
)
"""llama.cpp's names for a whole model."""


def parameters_of_layer(spec: ModelSpec, layer: LayerSpec) -> dict[str, Shape]:
    """The name and the shape of each parameter of a layer."""
    shapes: dict[str, Shape] = {}
    if (attention := layer.attention) is not None:
        latent = attention.latent
        if latent is None:
            shapes |= _of_attention(attention, spec.hidden_size)
        else:
            shapes |= _of_latent_attention(attention, latent, spec.hidden_size)
    if layer.recurrence is not None:
        shapes |= _of_recurrence(layer.recurrence, spec.hidden_size)
    for feed_forward in (layer.feed_forward, layer.experts):
        if feed_forward is not None:
            shapes |= _of_feed_forward(feed_forward, spec.hidden_size)
    for name, norm in layer.norms.items():
        shapes |= _of_norm(name, norm, spec.hidden_size)
    if (inputs := spec.per_layer_input) is not None:
        gate, projection = (inputs.size, spec.hidden_size), (spec.hidden_size, inputs.size)
        shapes |= _matrices({"per_layer.gate": gate, "per_layer.projection": projection}, ())
        shapes |= _of_norm("per_layer.norm", inputs.norm, spec.hidden_size)
    if spec.layer_scales:
        shapes["scale.weight"] = (1,)
    return shapes if spec.streams is None else shapes | _of_streams(spec.streams, spec.hidden_size)


def _of_streams(streams: StreamsSpec, hidden: int) -> dict[str, Shape]:
    count, rank = streams.count, streams.augmented_rank
    matrices = {
        "streams.predict": (count * count, count),
        "streams.correct": (count, count),
        "streams.router": (count, hidden),
        "augmented.left": (rank, hidden),
        "augmented.right": (hidden, rank),
    }
    shapes = _matrices(matrices, ()) | ({"streams.scale.weight": (hidden,)} if streams.scaled else {})
    norms = (_of_norm(name, streams.norm, hidden) for name in ("streams.router_norm", "augmented.norm"))
    return shapes | {name: shape for norm in norms for name, shape in norm.items()}


def _of_attention(attention: AttentionSpec, hidden: int) -> dict[str, Shape]:
    matrices = {f"attention.{name}": (size, hidden) for name, size in attention.projections.items()}
    matrices["attention.output"] = (hidden, attention.query_size)
    biased = set(matrices) - {"attention.output"} if attention.bias else set()
    shapes = _matrices(matrices, biased | ({"attention.output"} if attention.output_bias else set()))
    if attention.sinks:
        shapes["attention.sinks.weight"] = (attention.heads,)
    if attention.output_norm is not None:
        shapes |= _of_norm("attention.output_norm", attention.output_norm, attention.query_size)
    if (norm := attention.query_key_norm) is not None:
        over_all = attention.norm_over == "all"
        shapes |= _of_norm("attention.query_norm", norm, attention.query_size if over_all else attention.head_size)
        if attention.kv_source is None:
            shapes |= _of_norm("attention.key_norm", norm, attention.kv_size if over_all else attention.head_size)
    return shapes


def _of_latent_attention(attention: AttentionSpec, latent: LatentSpec, hidden: int) -> dict[str, Shape]:
    heads, (key_rows, key_columns) = attention.heads, latent.key_shape
    matrices = {
        "attention.query": (heads * latent.query_size, latent.query_rank or hidden),
        "attention.latent": (latent.size, hidden),
        "attention.key": (heads * key_rows, key_columns),
        "attention.value": (heads * latent.value_size, latent.rank),
        "attention.output": (hidden, heads * latent.value_size),
    }
    if attention.head_gate:
        matrices["attention.gate"] = (heads, hidden)
    norms = _of_norm("attention.latent_norm", latent.norm, latent.rank)
    if latent.query_rank is not None:
        matrices["attention.query_down"] = (latent.query_rank, hidden)
        norms |= _of_norm("attention.query_norm", latent.norm, latent.query_rank)
    biased = {"attention.latent", "attention.query_down"} if attention.bias else set()
    return _matrices(matrices, biased | ({"attention.output"} if attention.output_bias else set())) | norms


def _of_recurrence(recurrence: RecurrenceSpec, hidden: int) -> dict[str, Shape]:
    matrices = {f"recurrence.{name}": (size, hidden) for name, size in recurrence.inputs.items()}
    matrices["recurrence.output"] = (hidden, recurrence.output_size)
    if isinstance(recurrence, LightningSpec):
        return _matrices(matrices, ()) | _norms_of_lightning(recurrence)
    has_bias = not isinstance(recurrence, GatedDeltaSpec) and recurrence.bias
    shapes = _matrices(matrices, set(matrices) if has_bias else set())
    for name, channels in convolution_tensors(recurrence).items():
        shapes[f"recurrence.{name}.weight"] = (channels, recurrence.width)
        if recurrence.has_convolution_bias:
            shapes[f"recurrence.{name}.bias"] = (channels,)
    match recurrence:
        case GatedDeltaSpec():
            for name, size in recurrence.low_rank.items():
                assert recurrence.rank is not None, "the spec has projections of a rank"
                pair = {
                    f"recurrence.{name}_down": (recurrence.rank, hidden),
                    f"recurrence.{name}": (size, recurrence.rank),
                }
                shapes |= _matrices(pair, ())
            shapes["recurrence.decay_scale.weight"] = (recurrence.value_heads,)
            shapes["recurrence.decay_bias.weight"] = (recurrence.decays,)
            shapes["recurrence.norm.weight"] = (recurrence.value_size,)
        case StateSpaceSpec():
            for name in ("decay_scale", "step_bias", "skip"):
                shapes[f"recurrence.{name}.weight"] = (recurrence.heads,)
            if recurrence.norm_groups:
                shapes["recurrence.norm.weight"] = (recurrence.output_size,)
        case SelectiveScanSpec():
            size, state_size, rank = recurrence.size, recurrence.state_size, recurrence.step_rank
            matrices = {
                "recurrence.rate": (rank, size),
                "recurrence.selection": (2 * state_size, size),
                "recurrence.step": (size, rank),
            }
            shapes |= _matrices(matrices, {"recurrence.step"})
            shapes["recurrence.decay_scale.weight"] = (size, state_size)
            shapes["recurrence.skip.weight"] = (size,)
            for name, (norm, features) in recurrence.norms.items():
                shapes |= _of_norm(f"recurrence.{name}", norm, features)
    return shapes


def _norms_of_lightning(lightning: LightningSpec) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"recurrence.norm.weight": (lightning.output_size,)}
    if (norm := lightning.query_key_norm) is not None:
        for name in ("query_norm", "key_norm"):
            shapes |= _of_norm(f"recurrence.{name}", norm, lightning.head_size)
    return shapes


def _of_feed_forward(feed_forward: FeedForwardSpec, hidden: int) -> dict[str, Shape]:
    matrices, sizes = {}, {"feed_forward": feed_forward.size}
    if (routing := feed_forward.routing) is not None:
        matrices["feed_forward.router"] = (routing.experts, hidden)
        sizes = {f"feed_forward.experts.{expert}": feed_forward.size for expert in range(routing.experts)}
        if routing.shared is not None:
            sizes["feed_forward.shared"] = routing.shared.size
            if routing.shared.gated:
                matrices["feed_forward.shared_gate"] = (1, hidden)
    for prefix, size in sizes.items():
        if feed_forward.gated:
            matrices[f"{prefix}.gate"] = (size, hidden)
        matrices[f"{prefix}.up"] = (size, hidden)
        matrices[f"{prefix}.down"] = (hidden, size)
    biased = {name for name in matrices if feed_forward.bias and not name.startswith("feed_forward.shared")}
    shapes = _matrices(matrices, biased)
    if routing is not None and routing.correction:
        shapes["feed_forward.correction.bias"] = (routing.experts,)
    if routing is not None and routing.expert_factors:
        shapes["feed_forward.expert_factors.weight"] = (routing.experts,)
    if feed_forward.inner_norm is not None:
        shapes |= _of_norm("feed_forward.inner_norm", feed_forward.inner_norm, feed_forward.size)
    if feed_forward.activation == "xielu":
        shapes |= {"feed_forward.positive.weight": (1,), "feed_forward.negative.weight": (1,)}
    return shapes


def _matrices(matrices: Mapping[str, Shape], biased: Container[str]) -> dict[str, Shape]:
    """The weights of matrices, and the biases of some."""
    shapes: dict[str, Shape] = {}
    for name, shape in matrices.items():
        shapes[f"{name}.weight"] = shape
        if name in biased:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def parameters_around_layers(spec: ModelSpec) -> dict[str, Shape]:
    """The name and the shape of each parameter before the layers and after them."""
    assert spec.norm is not None, "the model is one of transformers"
    shapes: dict[str, Shape] = {"embedding.weight": (spec.vocab_size, spec.hidden_size)}
    if spec.positions and spec.sinusoids is None:
        shapes["position_embedding.weight"] = (spec.positions, spec.hidden_size)
    if spec.embedding_norm is not None:
        shapes |= _of_norm("embedding_norm", spec.embedding_norm, spec.hidden_size)
    if (inputs := spec.per_layer_input) is not None:
        shapes["per_layer_embedding.weight"] = (inputs.vocab_size, spec.per_layer_features)
        shapes["per_layer_projection.weight"] = (spec.per_layer_features, spec.hidden_size)
        shapes |= _of_norm("per_layer_norm", inputs.norm, inputs.size)
    if spec.streams is not None:
        for stream in range(spec.streams.count - 1):
            for name in ("streams_in", "streams_out"):
                shapes[f"{name}.{stream}.weight"] = (spec.hidden_size, spec.hidden_size)
    shapes |= _of_norm("norm", spec.norm, spec.hidden_size)
    if not spec.tie_word_embeddings:
        shapes["head.weight"] = shapes["embedding.weight"]
    if spec.head_bias:
        shapes["head.bias"] = (spec.vocab_size,)
    return shapes


def _of_norm(name: str, norm: NormSpec, size: int) -> dict[str, Shape]:
    return {f"{name}.{kind}": (size,) for kind, has in (("weight", norm.weight), ("bias", norm.bias)) if has}


def map_tensors(
    spec: ModelSpec,
    names: TensorNames,
    found: Sequence[FileTensor],
    quantised: Mapping[str, Quantised] = MappingProxyType({}),
) -> tuple[tuple[TensorEntry, ...], tuple[str, ...]]:
    """The entry of every parameter of a model, and the names of the tensors that were skipped.

    `quantised` describes the quantised tensors of `found`, by their names.

    Raises:
        ConfigError: a tensor is missing, has another shape or type than the model needs, or is one too many.
    """
    tensors = {tensor.name: tensor for tensor in found}
    if len(tensors) != len(found):
        raise ConfigError("the model's files have several tensors of one name")
    root, head = _root_and_head(names, tensors)
    embedding = f"{root}{names.embedding}"
    if spec.tie_word_embeddings and f"{embedding}.weight" not in tensors and f"{head}.weight" in tensors:
        embedding = head  # the same matrix
    around: tuple[str, ...] = ("position_embedding", "embedding_norm", "norm", "streams_in", "streams_out")
    around += ("per_layer_embedding", "per_layer_projection", "per_layer_norm")
    modules = {name: f"{root}{getattr(names, name)}" for name in around} | {"embedding": embedding, "head": head}
    entries = []
    for name, shape in parameters_around_layers(spec).items():
        module, _, kind = name.partition(".")
        source = f"{modules[module]}.{kind}"
        skipped = names.skipped_positions if module == "position_embedding" else 0
        matrix = None
        if module in {"streams_in", "streams_out"} and source not in tensors and spec.streams is not None:
            matrix = (int(kind.partition(".")[0]), spec.streams.count - 1)  # llama.cpp has all in one tensor.
            source = f"{modules[module]}.weight"
        place = _Place(source, Rows(skipped, skipped + shape[0]), skipped + shape[0], matrix=matrix)
        entry = _with_quantised(_entry(tensors, name, shape, place), quantised.get(source))
        entries.append(_with_transforms(entry, _offset(spec.norm, names) if name == "norm.weight" else ()))
    for index in range(len(spec.layers)):
        own = names.of_files(tensors, f"{root}{names.layer.format(index)}")
        for parameter in _parameters_in_files(spec, index, own, root, tensors):
            place = parameter.place
            if place.source in quantised:
                place = place._replace(is_transposed=False)
            plain = _with_transforms(_entry(tensors, parameter.name, parameter.shape, place), parameter.transforms)
            entries.append(_with_quantised(plain, quantised.get(place.source), place.matrix))
    for entry in entries:
        if not names.are_all and entry.source.type not in (*_FLOATS, "F64") and entry.source.name not in quantised:
            raise ConfigError(
                f"tensor {entry.source.name!r} has type {entry.source.type}, and its architecture needs {_LISTED}; a "
                "matrix of others needs a quantization_config in config.json that is for it"
            )
    used = {entry.source.name for entry in entries} | ({f"{head}.weight"} if spec.tie_word_embeddings else set())
    return tuple(entries), _left_over(spec, names, tensors, used, _keys_and_values_of_others(spec, names, root))


def map_modules(spec: ModelSpec, names: TensorNames, shapes: Mapping[str, Shape]) -> tuple[TensorEntry, ...]:
    """The entries of the matrices in layers that some modules of a file's names compute, such as an adapter's.

    `shapes` are those of the modules' matrices [out_features, in_features], by the modules' names. An entry's source is
    the weight that the module has, which need not be in any file; it is not transposed.

    Raises:
        ConfigError: a module is none of these, or has another shape.
    """
    tensors = {f"{name}.weight": FileTensor(f"{name}.weight", "F32", shape, 0, 0, 0) for name, shape in shapes.items()}
    before = names.layer.partition("{}")[0]
    root = next(
        (root for root in names.roots for name in tensors if name.startswith(f"{root}{before}")), names.roots[0]
    )
    entries: dict[str, TensorEntry] = {}
    alone = _alone(names)
    for index in range(len(spec.layers)):
        for own in (names, alone) if alone != names else (names,):
            for parameter in _parameters_in_files(spec, index, own, root, tensors):
                place, name = parameter.place._replace(is_transposed=False), parameter.name
                is_matrix = len(parameter.shape) == 2 and place.matrix is None
                if is_matrix and place.source in tensors and name not in entries:
                    entry = _entry(tensors, name, parameter.shape, place)
                    entries[name] = _with_transforms(entry, parameter.transforms)
    used = {entry.source.name for entry in entries.values()}
    if unknown := sorted(tensors.keys() - used):
        listed = ", ".join(name.removesuffix(".weight") for name in unknown[:5])
        raise ConfigError(f"{len(unknown)} modules are no linear layer of {spec.architecture}'s layers: {listed}")
    return tuple(entries.values())


def _alone(names: TensorNames) -> TensorNames:
    """The names of files that have a tensor of each part, where the family has such names."""
    stacked = {source: parts for source, parts in names.stacked.items() if not names.parts.keys() >= set(parts)}
    return replace(names, stacked=stacked)


class _Parameter(NamedTuple):
    """A parameter of a layer, and its place in the files."""

    name: str
    shape: Shape
    place: "_Place"
    transforms: tuple[Transform, ...]


def _parameters_in_files(
    spec: ModelSpec, index: int, names: TensorNames, root: str, tensors: Mapping[str, FileTensor]
) -> Iterator[_Parameter]:
    """The parameters of a layer, with their places in files that have `tensors`."""
    layer, prefix = spec.layers[index], f"{root}{names.layer.format(index)}"
    shapes = parameters_of_layer(spec, layer)
    for name, shape in shapes.items():
        part, _, kind = name.rpartition(".")
        part, expert = _expert_of(part)
        source, parts = names.source_of(part)
        of_expert = "" if expert is None else f".{expert}"
        sizes = [shapes[f"{other.replace('.experts', f'.experts{of_expert}')}.{kind}"][0] for other in parts]
        groups = names.groups or _num_groups(parts, layer) if source in names.grouped else 1
        rows = _rows(names, source, sizes, parts.index(part), groups)
        matrix = None
        if expert is not None and "{}" in source:
            source = source.format(expert)
        elif expert is not None and (routing := layer.routing) is not None:
            matrix = (expert, routing.experts)
        tensor = f"{prefix}{_name_in_files(names, tensors, prefix, source, kind)}"
        place = _Place(tensor, rows, sum(sizes), part in names.transposed and len(shape) == 2, matrix)
        transforms = _transforms(spec, layer, f"{part}.{kind}", names)
        if (factor := layer.factors.get(name)) is not None:
            transforms += (Scale(factor),)
        yield _Parameter(f"layers.{index}.{name}", shape, place, transforms)


def _name_in_files(names: TensorNames, tensors: Mapping[str, FileTensor], prefix: str, source: str, kind: str) -> str:
    """The name of a part's tensor: its own, or an alias of the part or of the one tensor if the files have none."""
    name = names.tensor_of(source, kind)
    if f"{prefix}{name}" in tensors:
        return name
    if (alias := names.aliases.get(source)) is not None:
        return names.tensor_of(alias, kind)
    return names.aliases.get(f"{source}.{kind}", name)


_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # and their bytes
_LISTED = "F32, F16 and BF16"
_BUFFERS = ("F64", "I64", "I32", "I16", "I8", "U8", "BOOL")  # which are no parameters
UNMAPPED = "unmapped "
"""Before the name of a tensor that is no parameter of ours: transformers takes it."""


def map_probed(
    probed: Probed, found: Sequence[FileTensor], quantised: Mapping[str, Quantised] = MappingProxyType({})
) -> tuple[TensorEntry, ...]:
    """The entries of a transformers model: parameters of pyllm's layers, then tensors that transformers loads itself.

    Raises:
        ConfigError: a tensor has numbers of a type that its layer cannot take.
    """
    tensors = {tensor.name: tensor for tensor in found}
    entries = []
    for parameter, name in probed.sources.items():
        tensor, transforms = tensors[name], (Transpose(),) if parameter in probed.transposed else ()
        if tensor.type not in _FLOATS and name not in quantised:
            raise ConfigError(f"tensor {name!r} has numbers of type {tensor.type}, and its layer takes {_LISTED}")
        shape = tensor.shape[::-1] if transforms else tensor.shape
        entries.append(_with_quantised(TensorEntry(parameter, shape, tensor, transforms), quantised.get(name)))
    for name in probed.others:
        if name in quantised or tensors[name].type not in (*_FLOATS, *_BUFFERS):
            kind = "quantised numbers" if name in quantised else f"numbers of type {tensors[name].type}"
            raise ConfigError(f"tensor {name!r} has {kind}, and transformers takes {_LISTED}: use an unquantised model")
        entries.append(TensorEntry(f"{UNMAPPED}{name}", tensors[name].shape, tensors[name]))
    return tuple(entries)


def tied_matrices(
    spec: ModelSpec, names: TensorNames, found: Sequence[FileTensor]
) -> tuple[FileTensor, FileTensor] | None:
    """The embedding and the head of a model with a tied head whose files have both matrices; otherwise None."""
    tensors = {tensor.name: tensor for tensor in found}
    root, head = _root_and_head(names, tensors)
    embedding = f"{root}{names.embedding}.weight"
    if not spec.tie_word_embeddings or not {embedding, f"{head}.weight"} <= tensors.keys():
        return None
    return tensors[embedding], tensors[f"{head}.weight"]


def has_own_head(names: TensorNames, found: Sequence[FileTensor]) -> bool:
    """Whether the files have a head beside the embedding."""
    return bool({f"{head}.weight" for head in names.heads} & {tensor.name for tensor in found})


def without_head(spec: ModelSpec) -> ModelSpec:
    """A copy with a tied head, for an embedding model whose files have no head."""
    return msgspec.structs.replace(spec, tie_word_embeddings=True)


def dummy_entries(spec: ModelSpec, kind: str) -> tuple[TensorEntry, ...]:
    """The entries of dummy weights, which no file has; `kind` is their type of floats."""
    shapes = parameters_around_layers(spec)
    for index, layer in enumerate(spec.layers):
        parameters = parameters_of_layer(spec, layer)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in parameters.items()}
    sizes = {name: math.prod(shape) * _FLOATS[kind] for name, shape in shapes.items()}
    return tuple(
        TensorEntry(name, shape, FileTensor(name, kind, shape, 0, 0, sizes[name])) for name, shape in shapes.items()
    )


def num_parameters(spec: ModelSpec) -> int:
    """The number of parameters of the model."""
    if spec.transformers is not None:
        return spec.transformers.num_parameters
    shapes = [shape for layer in spec.layers for shape in parameters_of_layer(spec, layer).values()]
    return sum(map(math.prod, (*parameters_around_layers(spec).values(), *shapes)))


def _root_and_head(names: TensorNames, tensors: Container[str]) -> tuple[str, str]:
    """The prefix of the layers' names in these files, and the name of the head."""
    kept = (names.embedding, names.norm)
    found = (root for name in kept for root in names.roots if f"{root}{name}.weight" in tensors)
    root = next(found, names.roots[0])
    head = next((head for head in names.heads if f"{head}.weight" in tensors), names.heads[0])
    return root, head


def _expert_of(part: str) -> tuple[str, int | None]:
    """The name of a part without the number of the expert, and that number."""
    before, experts, after = part.partition(".experts.")
    if not experts:
        return part, None
    number, _, name = after.partition(".")
    return f"{before}{experts}{name}", int(number)


class _Place(NamedTuple):
    """A tensor, and the rows of it that fill the parameter; all rows unless `num_rows` is larger than the parameter.

    `matrix`: the index and number of matrices, or vectors, in a tensor that holds one for each expert.
    """

    source: str
    rows: Rows | GroupRows = Rows(0, 0)
    num_rows: int = 0
    is_transposed: bool = False
    matrix: tuple[int, int] | None = None


def _entry(tensors: Mapping[str, FileTensor], parameter: str, shape: Shape, place: _Place) -> TensorEntry:
    tensor = tensors.get(place.source)
    if tensor is not None and len(shape) == 1 and tensor.shape == (1, *shape):
        tensor = _matrix_of(tensor, (0, 1))  # ERNIE 4.5 has a matrix with one row.
    num_rows = place.num_rows or shape[0]
    needed: Shape = (num_rows, *shape[1:])
    if place.is_transposed:
        needed = needed[::-1]
    if place.matrix is not None:
        needed = (place.matrix[1], *needed)
    if tensor is None:
        module = place.source.rpartition(".")[0]
        beside = [f"{found.name} ({found.type})" for name, found in tensors.items() if name.startswith(f"{module}.")]
        instead = f"; they have {', '.join(sorted(beside)[:4])}" if module and beside else ""
        text = f"the model's files have no tensor {place.source!r}, which its architecture needs{instead}"
        raise MissingTensorError(text)
    # In llama.cpp's files vectors may have a row for each head or group; a matrix may have further dimensions for each
    # head there, and for the weights of a convolution. DBRX has the experts' matrices in one of two dimensions.
    is_vector = len(needed) == 1 and math.prod(tensor.shape) == needed[0]
    is_matrix = len(tensor.shape) > 2 and (math.prod(tensor.shape[:-1]), tensor.shape[-1]) == needed
    are_matrices = len(needed) == 3 and tensor.shape == (needed[0] * needed[1], needed[2])
    if is_vector or is_matrix or are_matrices:
        tensor = msgspec.structs.replace(tensor, shape=needed)
    if tensor.shape != needed:
        raise ConfigError(f"tensor {place.source!r} has the shape {tensor.shape}, and its architecture needs {needed}")
    transforms: tuple[Transform, ...] = (Transpose(),) if place.is_transposed else ()
    if num_rows != shape[0]:
        transforms += (place.rows,)
    return TensorEntry(parameter, shape, _matrix_of(tensor, place.matrix), transforms)


def _rows(names: TensorNames, source: str, sizes: Sequence[int], at: int, groups: int) -> Rows | GroupRows:
    """The rows of a stacked tensor that fill one of its parts, which have `sizes`."""
    if source in names.alternating:
        return Rows(at, sum(sizes), len(sizes))
    start, stop = sum(sizes[:at]), sum(sizes[: at + 1])
    if source in names.grouped:
        return GroupRows(sum(sizes) // groups, start // groups, stop // groups)
    return Rows(start, stop)


def _num_groups(parts: Sequence[str], layer: LayerSpec) -> int:
    """The heads for each of which a grouped tensor has all its parts."""
    if parts[0].startswith("recurrence."):
        if isinstance(layer.recurrence, GatedDeltaSpec):
            return layer.recurrence.key_heads
        assert isinstance(layer.recurrence, LightningSpec), "no other recurrence has such tensors"
        return layer.recurrence.heads
    assert layer.attention is not None, "query, key and value are of attention"
    is_by_query_head = "attention.gate" in parts or layer.attention.latent is not None
    return layer.attention.heads if is_by_query_head else layer.attention.kv_heads


def _matrix_of(tensor: FileTensor, matrix: tuple[int, int] | None) -> FileTensor:
    """One of the matrices that a tensor holds one after another."""
    if matrix is None:
        return tensor
    (index, count), shape = matrix, tensor.shape[1:]
    num_bytes = tensor.num_bytes // count
    offset = tensor.offset + index * num_bytes
    return msgspec.structs.replace(tensor, shape=shape, offset=offset, num_bytes=num_bytes)


def _transforms(spec: ModelSpec, layer: LayerSpec, parameter: str, names: TensorNames) -> tuple[Transform, ...]:
    part, _, kind = parameter.rpartition(".")
    if (attention := layer.attention) is not None:
        if attention.latent is not None and part in {"attention.query", "attention.latent"}:
            return _rotary_part_first(attention.latent, part, names)
        if part in {"attention.query", "attention.key"} and attention.latent is None and names.interleaved:
            return (Deinterleave(attention.head_size, _rotary_size(spec, attention)),)
        if part in {"attention.query_norm", "attention.key_norm"}:
            return _offset(attention.query_key_norm, names) if kind == "weight" else ()
    if part == "recurrence.decay_scale" and names.has_negative_decays:
        return (LogOfMagnitude(),)
    return _offset(layer.norms.get(part), names) if kind == "weight" else ()


def _rotary_part_first(latent: LatentSpec, part: str, names: TensorNames) -> tuple[Transform, ...]:
    size = latent.query_size if part == "attention.query" else latent.size
    moved = LastFirst(size, latent.rope_size)
    return (moved, Deinterleave(size, latent.rope_size)) if names.interleaved else (moved,)


def _rotary_size(spec: ModelSpec, attention: AttentionSpec) -> int:
    # Without positions the order within a head does not matter, as long as query and key have the same order.
    return attention.head_size if attention.rope is None else spec.ropes[attention.rope].rotary_size


def _offset(norm: NormSpec | None, names: TensorNames) -> tuple[Transform, ...]:
    return (Add(1.0),) if norm is not None and norm.unit_offset and not names.offset_added else ()


def _with_transforms(entry: TensorEntry, transforms: tuple[Transform, ...]) -> TensorEntry:
    return msgspec.structs.replace(entry, transforms=entry.transforms + transforms) if transforms else entry


def _with_quantised(
    entry: TensorEntry, quantised: Quantised | None, matrix: tuple[int, int] | None = None
) -> TensorEntry:
    if quantised is None:
        return entry
    if len(entry.shape) != 2 or any(isinstance(transform, Transpose | Add | Scale) for transform in entry.transforms):
        raise ConfigError(f"tensor {entry.source.name!r} is quantised, and its architecture needs it to be floats")
    scales = _matrix_of(quantised.scales, matrix)
    return msgspec.structs.replace(entry, quantised=msgspec.structs.replace(quantised, scales=scales))


def _left_over(
    spec: ModelSpec, names: TensorNames, tensors: Mapping[str, FileTensor], used: set[str], unread: Container[str]
) -> tuple[str, ...]:
    """The tensors that are not used and do not follow from the configuration; the model has no use for `unread`.

    Raises:
        ConfigError: there are others, and the names are those of all tensors (`are_all`).
    """
    rest = tensors.keys() - used
    rest = {name for name in rest if not name.endswith(names.derived)}
    skipped = tuple(sorted(rest))
    unknown = [name for name in skipped if name not in unread]
    unknown = [name for name in unknown if not _is_of_further_layer(name, names, len(spec.layers))]
    if unknown and names.are_all:
        raise ConfigError(
            f"{len(unknown)} tensors belong to no layer of {spec.architecture}: {', '.join(unknown[:5])}; the model "
            "needs a feature that is not supported, or the files are of another model"
        )
    return skipped


def _keys_and_values_of_others(spec: ModelSpec, names: TensorNames, root: str) -> set[str]:
    """Tensors left from the training of layers that read the keys and values of other layers (Gemma 3n and 4)."""
    shared = (
        f"{root}{names.layer.format(index)}"
        for index, layer in enumerate(spec.layers)
        if layer.attention is not None and layer.attention.kv_source is not None
    )
    parts = [names.parts.get(part, part) for part in ("attention.key", "attention.value", "attention.key_norm")]
    return {f"{prefix}{part}.{kind}" for prefix in shared for part in parts for kind in ("weight", "bias")}


def _is_of_further_layer(name: str, names: TensorNames, num_layers: int) -> bool:
    """Whether a tensor is of a layer after those of the model, which predicts further tokens (GLM-4.5)."""
    before, _, after = names.layer.partition("{}")
    rests = (name.removeprefix(f"{root}{before}") for root in names.roots if name.startswith(f"{root}{before}"))
    number = next(rests, "").partition(after)[0]
    return number.isdigit() and int(number) >= num_layers
