"""The probe of a transformers model: finds its layers, and the tensors that fill them, for the workers.

`python -m pyllm.workers.transformers_backend.probe` reads a `ProbeRequest` as JSON, and writes `Probed` or a `Refusal`.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key
from transformers.pytorch_utils import Conv1D

from pyllm.errors import ConfigError
from pyllm.families.spec import AttentionSpec, FeedForwardSpec, LayerSpec, LinearSpec, ModelSpec, TransformersSpec
from pyllm.families.transformers_probe import Probed, ProbeRequest, Refusal
from pyllm.workers.transformers_backend.attention_interface import NAME
from pyllm.workers.transformers_backend.build import architecture_of, build
from pyllm.workers.transformers_backend.meta_run import Run, run_on_meta, window_of

_SHORTEST_CONTEXT = 4
_SPLITS: Mapping[str, Literal["outputs", "inputs", "whole"]] = {"colwise": "outputs", "rowwise": "inputs"}
# Styles of layers that each rank may have whole: their output is whole on every rank.
_WHOLE = frozenset({"replicated_with_grad_allreduce", "embedding_rowwise"})
# Such styles outside of attention; within it, each rank would have all heads.
_WHOLE_OUTSIDE_ATTENTION = frozenset({"colwise_gather_output", "rowwise_split_input"})


def probe(request: ProbeRequest) -> Probed:
    """The data that a worker needs before it loads the model.

    Raises:
        ConfigError: with the reason why the model cannot run with pyllm's attention.
    """
    model = _built(request)
    run = run_on_meta(model)
    names = _names(model, request.tensors)
    embedding, head = _vocabulary(model, run, names)
    linears = tuple(_linears(model, run, names, head))
    every = list(chain.from_iterable(linears))
    replaced = {f"{linear.name}.{kind}" for linear in every for kind in ("weight", *["bias"] * linear.bias)}
    replaced.update(f"{path}.weight" for path in (embedding, head) if path)
    sources = {name: source for name, source in names.sources.items() if name in replaced}
    is_tied = bool(embedding and head) and names.sources[f"{embedding}.weight"] == names.sources[f"{head}.weight"]
    if is_tied:
        del sources[f"{head}.weight"]
    needed = {source for name, source in names.sources.items() if name not in replaced}
    needed |= request.tensors.keys() - set(names.sources.values()) - names.skipped
    conv = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    first_position = _first_position(model)
    longest = _longest_context(model) - first_position
    spec = ModelSpec(
        architecture=run.name,
        vocab_size=run.logits[-1],
        hidden_size=run.hidden[-1],
        max_position_embeddings=longest,
        layers=_layers(run, longest),
        norm=None,
        ropes=(),
        tie_word_embeddings=is_tied,
        transformers=TransformersSpec(
            config=request.config,
            version=transformers.__version__,
            base=run.base,
            first_position=first_position,
            linears=linears,
            embedding=embedding,
            head=head,
            tensor_parallel_refusal=_tensor_parallel_refusal(model, every, run),
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            num_torch_parameters=_num_torch_parameters(model, replaced),
        ),
    )
    return Probed(
        spec=spec,
        sources=sources,
        transposed=frozenset(conv & sources.keys()),
        others=tuple(name for name in request.tensors if name in needed),
        skipped=tuple(sorted(names.skipped)),
    )


def _built(request: ProbeRequest) -> PreTrainedModel:
    try:
        return build(request.config, torch.float32, "meta", most_layers=len(request.tensors))
    except ConfigError:
        raise
    except Exception as error:
        name = architecture_of(json.loads(request.config))
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, KeyError) and error.args == (NAME,):
            text = "it has attention of its own alone"
        raise ConfigError(f"{name} cannot be built with our attention: {text:.200}") from error


def _layers(run: Run, longest: int) -> tuple[LayerSpec, ...]:
    """A layer for each call of attention. All heads get the largest size, as smaller ones are padded."""
    head_size = max(part.shape[-1] for call in run.calls for part in (call.query, call.value))
    windows = {call.mask: window_of(call.mask, longest) for call in run.calls}
    attentions = (
        AttentionSpec(
            heads=call.query.shape[1],
            kv_heads=call.key.shape[1],
            head_size=head_size,
            scale=call.scale,
            rope=None,
            window=windows[call.mask],
            soft_cap=call.soft_cap,
            sinks=call.sinks is not None,
        )
        for call in run.calls
    )
    return tuple(LayerSpec(attention=attention, feed_forward=FeedForwardSpec(size=0)) for attention in attentions)


def _first_position(model: PreTrainedModel) -> int:
    """The position of a sequence's first token: RoBERTa and similar models count from the padding token's id + 1."""
    modules: Iterator[Any] = model.modules()
    counting = (module for module in modules if hasattr(module, "create_position_ids_from_input_ids"))
    return next((module.padding_idx + 1 for module in counting), 0)


def _longest_context(model: PreTrainedModel) -> int:
    config = model.config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "max_target_positions"):
        if isinstance(longest := getattr(config, name, None), int):
            if longest < _SHORTEST_CONTEXT:
                raise ConfigError(f"{type(model).__name__} has a context of {longest} tokens, not of at least 4")
            return longest
    raise ConfigError(f"{type(model).__name__} has no max_position_embeddings")


class _Names(NamedTuple):
    """The tensors of parameters: `sources` for parameters that equal a tensor of the file; `skipped` are not needed."""

    sources: Mapping[str, str]
    skipped: frozenset[str]


def _names(model: PreTrainedModel, tensors: Mapping[str, tuple[int, ...]]) -> _Names:
    """The names after transformers' own renaming; tied parameters share the one tensor in the file."""
    state = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    sources: dict[str, str] = {}
    unexpected = []
    for key in sorted(tensors, key=dot_natural_key):
        renamed, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, state)
        if renamed not in state and key in state:
            renamed, pattern = rename_source_key(key, [], [], model.base_model_prefix, state)
        if renamed not in state and pattern is None:
            unexpected.append(key)
        elif pattern is None:
            if (shape := tuple(state[renamed].shape)) != tuple(tensors[key]):
                raise ConfigError(f"tensor {key!r} has the shape {tensors[key]}, and transformers needs {shape}")
            if renamed in sources:
                raise ConfigError(f"tensors {sources[renamed]!r} and {key!r} are both the parameter {renamed!r}")
            sources[renamed] = key
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    for one, other in [*tied.items(), *((source, target) for target, source in tied.items())]:
        if one not in sources and other in sources:
            sources[one] = sources[other]
    return _Names(sources, frozenset(unexpected))


def _vocabulary(model: PreTrainedModel, run: Run, names: _Names) -> tuple[str, str]:
    """The paths of the embedding and of the head, if pyllm's layers can replace them; otherwise empty."""
    paths = {module: path for path, module in model.named_modules()}
    embedding: nn.Module = model.get_input_embeddings()
    head: nn.Module | None = model.get_output_embeddings()
    size = (run.logits[-1], run.hidden[-1])
    is_plain = type(embedding) is nn.Embedding and tuple(embedding.weight.shape) == size
    found = [paths[embedding] if is_plain else "", ""]
    if type(head) is nn.Linear and head.bias is None and tuple(head.weight.shape) == size:
        found[1] = paths[head]
    embedding_path, head_path = (path if f"{path}.weight" in names.sources else "" for path in found)
    return embedding_path, head_path if head_path in {call.name for call in run.linears} else ""


def _linears(model: PreTrainedModel, run: Run, names: _Names, head: str) -> list[tuple[LinearSpec, ...]]:
    """The linear layers that ran and whose parameters equal tensors of the file; grouped by their input."""
    plan = getattr(model, "tp_plan", None) or {}
    joined: dict[tuple[object, ...], list[LinearSpec]] = {}
    for path, given, version in run.linears:
        module: Any = model.get_submodule(path)
        has_bias = module.bias is not None
        if path == head or not {f"{path}.{kind}" for kind in ("weight", *["bias"] * has_bias)} <= names.sources.keys():
            continue
        rows, columns = module.weight.shape
        shape = (columns, rows) if isinstance(module, Conv1D) else (rows, columns)
        split = _SPLITS.get(plan.get(_as_pattern(path), ""), "whole")
        alike = (path,) if split == "inputs" else (id(given), version, has_bias, split)
        joined.setdefault(alike, []).append(LinearSpec(name=path, shape=shape, bias=has_bias, split=split))
    return [tuple(linears) for linears in joined.values()]


def _num_torch_parameters(model: PreTrainedModel, replaced: Set[str]) -> int:
    """The number of parameters of matrices that are not replaced, without embeddings."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    parameters = ((name, parameter) for name, parameter in model.named_parameters() if name not in replaced)
    return sum(each.numel() for _, each in parameters if each.ndim > 1 and id(each) not in looked_up)


def _tensor_parallel_refusal(model: PreTrainedModel, linears: Sequence[LinearSpec], run: Run) -> str:
    plan = getattr(model, "tp_plan", None) or {}
    if not plan:
        return f"transformers has no tensor-parallel plan for {type(model).__name__}"
    splits = {linear.name: linear.split for linear in linears}
    paths = {module: path for path, module in model.named_modules()}
    attending_paths = tuple(dict.fromkeys(f"{paths[call.module]}." for call in run.calls))
    for path in (*paths.values(), *(path for path, _ in model.named_parameters())):
        style = plan.get(_as_pattern(path))
        if style is None or style in _WHOLE or (path in splits and style in _SPLITS):
            continue
        if style not in _WHOLE_OUTSIDE_ATTENTION or path.startswith(attending_paths):
            return f"the tensor-parallel style {style} of {path} is not supported"
    for attending_path in attending_paths:
        if not {"outputs", "inputs"} <= {split for name, split in splits.items() if name.startswith(attending_path)}:
            return f"the tensor-parallel plan of {type(model).__name__} does not split {attending_path[:-1]}"
    return ""


def _as_pattern(path: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def main(read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
    """Answer one request."""
    request = msgspec.json.decode(read(), type=ProbeRequest)
    try:
        answer: Probed | Refusal = probe(request)
    except ConfigError as error:
        answer = Refusal(str(error))
    write(msgspec.json.encode(answer))


if __name__ == "__main__":
    # Output that a library prints goes to the log, and not into the answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer.read, answers.write)
    answers.close()
