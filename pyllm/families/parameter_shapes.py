"""The parameters of a model: their names and shapes. Knows no file."""

import math
from collections.abc import Container, Mapping

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
    matrices["attention.output"] = (hidden, attention.output_size)
    biased = set(matrices) - {"attention.output"} if attention.bias else set()
    shapes = _matrices(matrices, biased | ({"attention.output"} if attention.output_bias else set()))
    if attention.sinks:
        shapes["attention.sinks.weight"] = (attention.heads,)
    if attention.output_norm is not None:
        shapes |= _of_norm("attention.output_norm", attention.output_norm, attention.output_size)
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
    if (index := latent.index) is not None and index.source is None:
        matrices["attention.index_query"] = (index.heads * index.size, latent.query_rank or hidden)
        matrices["attention.index_key"] = (index.size, hidden)
        matrices["attention.index_weights"] = (index.heads, hidden)
        norms |= _of_norm("attention.index_norm", index.norm, index.size)
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
    biased |= {"feed_forward.down"} if feed_forward.output_bias else set()
    shapes = _matrices(matrices, biased)
    if routing is not None and routing.correction:
        shapes["feed_forward.correction.bias"] = (routing.experts,)
    if routing is not None and routing.expert_factors:
        shapes["feed_forward.expert_factors.weight"] = (routing.experts,)
    if feed_forward.inner_norm is not None:
        shapes |= _of_norm("feed_forward.inner_norm", feed_forward.inner_norm, feed_forward.size)
    if feed_forward.activation == "xielu" and feed_forward.xielu is None:
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
    if (relative := spec.attention.relative_bias) is not None:
        shapes["relative_bias.weight"] = (relative.buckets, spec.attention.heads)
    if spec.token_types:
        shapes["type_embedding.weight"] = (1 + spec.tells_texts_apart, spec.hidden_size)
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
    for index, dense in enumerate(spec.dense):
        name = f"dense.{index}"
        shapes |= _matrices({name: (dense.out_features, dense.in_features)}, (name,) if dense.bias else ())
        if dense.norm is not None:
            shapes |= _of_norm(f"{name}.norm", dense.norm, dense.out_features)
    return shapes


def _of_norm(name: str, norm: NormSpec, size: int) -> dict[str, Shape]:
    return {f"{name}.{kind}": (size,) for kind, has in (("weight", norm.weight), ("bias", norm.bias)) if has}


def num_parameters(spec: ModelSpec) -> int:
    """The number of parameters of the model."""
    if spec.transformers is not None:
        return spec.transformers.num_parameters
    shapes = [shape for layer in spec.layers for shape in parameters_of_layer(spec, layer).values()]
    return sum(map(math.prod, (*parameters_around_layers(spec).values(), *shapes)))
