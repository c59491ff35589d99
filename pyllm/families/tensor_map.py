"""The map from the tensors of a file to the parameters of a model, with the transforms between them.

Knows no format: readers list the tensors of a file (`FileTensor`), and loaders follow the entries that it returns.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.parameter_shapes import parameters_around_layers, parameters_of_layer
from pyllm.families.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LatentSpec,
    LayerSpec,
    LightningSpec,
    ModelSpec,
    NormSpec,
    Shape,
)
from pyllm.families.tensor_names import TensorNames
from pyllm.families.tensors import (
    Add,
    Deinterleave,
    FileTensor,
    GroupRows,
    LastFirst,
    LogOfMagnitude,
    Quantised,
    Rows,
    Scale,
    TensorEntry,
    Transform,
    Transpose,
)
from pyllm.families.transformers_probe import Probed


class MissingTensorError(ConfigError):
    """A model's files lack a tensor that its architecture needs."""


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
    around: tuple[str, ...] = ("position_embedding", "type_embedding", "relative_bias", "embedding_norm", "norm")
    around += ("streams_in", "streams_out", "per_layer_embedding", "per_layer_projection", "per_layer_norm")
    modules = {name: f"{root}{getattr(names, name)}" for name in around} | {"embedding": embedding, "head": head}
    if names.end_norm:
        modules["norm"] = f"{root}{_norm_before(names, len(spec.layers))}"
    entries = []
    for name, shape in parameters_around_layers(spec).items():
        module, _, kind = name.partition(".")
        source = dense_tensor(kind) if module == "dense" else f"{modules[module]}.{kind}"
        skipped = names.skipped_positions if module == "position_embedding" else 0
        rows, matrix = spec.token_types if module == "type_embedding" else skipped + shape[0], None
        if module in {"streams_in", "streams_out"} and source not in tensors and spec.streams is not None:
            matrix = (int(kind.partition(".")[0]), spec.streams.count - 1)  # llama.cpp has all in one tensor.
            source = f"{modules[module]}.weight"
        place = _Place(source, Rows(skipped, skipped + shape[0]), rows, matrix=matrix)
        if module == "dense" and (tokens := spec.dense[int(kind.partition(".")[0])].tokens) is not None:
            source = f"{head if f'{head}.weight' in tensors else embedding}.weight"
            first, last = tokens[0], tokens[-1]
            place = _Place(source, Rows(first, last + 1, max(last - first, 1)), spec.vocab_size)
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
    are_straight = _are_straight(names, shapes, tensors, prefix)
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
        if part == "attention_norm" and names.end_norm:
            tensor = f"{root}{_norm_before(names, index)}.{kind}"
        may_be_transposed = expert is None or (matrix is not None and not are_straight)
        is_transposed = may_be_transposed and part in names.transposed and len(shape) == 2
        place = _Place(tensor, rows, sum(sizes), is_transposed, matrix)
        transforms = _transforms(spec, layer, f"{part}.{kind}", names)
        if (factor := layer.factors.get(name)) is not None:
            transforms += (Scale(factor),)
        yield _Parameter(f"layers.{index}.{name}", shape, place, transforms)


def _norm_before(names: TensorNames, index: int) -> str:
    """The norm between a layer and the one before, or the embedding, in files that have it at a layer's end."""
    return f"{names.layer.format(index - 1)}{names.end_norm}" if index else names.embedding_norm


def _are_straight(
    names: TensorNames, shapes: Mapping[str, Shape], tensors: Mapping[str, FileTensor], prefix: str
) -> bool:
    """Whether all experts of a layer are in tensors with a row for each output, though `transposed` names them.

    transformers 5 writes those of Qwen3-VL so, and reads both. Not all of them can be square, so that one shape tells.
    """
    for name in ("up", "down"):
        part = f"feed_forward.experts.{name}"
        if part in names.transposed and (shape := shapes.get(f"feed_forward.experts.0.{name}.weight")) is not None:
            source, parts = names.source_of(part)
            rows, columns = len(parts) * shape[0], shape[1]
            found = tensors.get(f"{prefix}{names.tensor_of(source, 'weight')}")
            if found is not None and found.shape[1:] == (rows, columns) and rows != columns:
                return True
    return False


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


def dense_tensor(kind: str) -> str:
    """The tensor of a layer after pooling, such as `0.weight`.

    llama.cpp names it by the folder of sentence-transformers, where the first layer after pooling is module 2.
    """
    number, _, name = kind.partition(".")
    return f"dense_{int(number) + 2}.{name}"


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
    """A copy with a tied head and without its bias, for a model whose head is not used."""
    return msgspec.structs.replace(spec, tie_word_embeddings=True, head_bias=False)


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
        if attention.latent is not None and part in _OF_INDEX:
            return _of_index(attention.latent)
        if part in {"attention.query", "attention.key"} and attention.latent is None and names.interleaved:
            return (Deinterleave(attention.head_size, _rotary_size(spec, attention)),)
        if part in {"attention.query_norm", "attention.key_norm"}:
            return _offset(attention.query_key_norm, names) if kind == "weight" else ()
    if part == "recurrence.decay_scale" and names.has_negative_decays:
        return (LogOfMagnitude(),)
    return _offset(layer.norms.get(part), names) if kind == "weight" else ()


_OF_INDEX = ("attention.index_query", "attention.index_key", "attention.index_norm")


def _of_index(latent: LatentSpec) -> tuple[Transform, ...]:
    index = latent.index
    return (Deinterleave(index.size, latent.rope_size),) if index is not None and index.interleaved else ()


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
