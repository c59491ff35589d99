"""One run of a transformers model on the meta device, without computing: its calls and the shapes of its outputs.

Knows no file and no parameter.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.attention_interface import AttentionCall, Mask, attending

PROBE_TOKENS = 7
# Masks are checked up to this position, so a longer window counts as none.
_LONGEST_WINDOW = 1 << 17
# Kinds of layers in configurations that have more state than the KV cache.
_WITH_A_STATE = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid", "kda"})


class Run(NamedTuple):
    """One run of a model: its calls of attention in order, the linear layers that ran, and the shapes of outputs."""

    name: str
    calls: list[AttentionCall]
    linears: list["LinearCall"]
    base: str
    hidden: tuple[int, ...]
    logits: tuple[int, ...]


class LinearCall(NamedTuple):
    """The first call of a linear layer: its path, its input, and the input's count of in-place changes."""

    name: str
    given: Tensor
    version: int


def run_on_meta(model: PreTrainedModel) -> Run:
    """Run a model that was built on the meta device.

    Raises:
        ConfigError: it does not run, or not every layer calls pyllm's attention.
    """
    name, calls = type(model).__name__, list[AttentionCall]()
    if kinds := _kinds_with_a_state(model):
        raise ConfigError(f"{name} has layers of the kind {', '.join(kinds)}, which keep a state along the sequence")

    def attend(call: AttentionCall) -> Tensor:
        calls.append(call)
        return call.value.new_empty((*call.query.shape[:2], call.value.shape[2]))

    modules: Iterator[Any] = model.modules()
    for module in modules:
        if hasattr(module, "rope_type"):  # Other types may read numbers; the results here do not depend on it.
            module.rope_type = (
                dict.fromkeys(module.rope_type, "default") if isinstance(module.rope_type, dict) else "default"
            )
    paths = {module: path for path, module in model.named_modules()}
    order: list[tuple[nn.Module, Any]] = []  # modules and their outputs
    linears: dict[str, LinearCall] = {}

    def note(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        order.append((module, output))
        if type(module) in {nn.Linear, Conv1D} and given:
            linears.setdefault(paths[module], LinearCall(paths[module], given[0], given[0]._version))

    hooks = [module.register_forward_hook(note) for module in paths]
    tokens = torch.zeros((1, PROBE_TOKENS), dtype=torch.long, device="meta")
    try:
        with torch.no_grad(), attending(attend), _NoneFound():  # type: ignore[no-untyped-call]
            output = model(**inputs(tokens, torch.arange(PROBE_TOKENS, device="meta").unsqueeze(0)))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise ConfigError(f"{name} does not run with our attention: {type(error).__name__}: {text:.200}") from error
    finally:
        for hook in hooks:
            hook.remove()
    _check_every_layer(name, model, calls)
    attending_modules = {call.module for call in calls}
    around = [
        (module, out)
        for module, out in order
        if module is not model and attending_modules <= set(module.modules()) and paths[module]
    ]
    if not around:
        raise ConfigError(f"{name} has no part that gives hidden states")
    base, hidden = around[-1]
    shape = tuple(hidden_of(hidden).shape)
    if shape[:-1] != (1, PROBE_TOKENS):
        raise ConfigError(f"{name} gives hidden states of the shape {shape} for {PROBE_TOKENS} tokens")
    logits = tuple(output.logits.shape)
    if logits[:-1] != (1, PROBE_TOKENS):
        raise ConfigError(f"{name} gives logits of the shape {logits} for {PROBE_TOKENS} tokens")
    return Run(name, calls, list(linears.values()), paths[base], shape, logits)


class _NoneFound(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes `nonzero` on the meta device return no index, so that loops over the chosen experts are empty."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten.nonzero.default and args[0].is_meta:
            return args[0].new_empty((0, args[0].ndim), dtype=torch.long)
        return op(*args, **(kwargs or {}))


def inputs(tokens: Tensor, positions: Tensor) -> dict[str, Any]:
    """The arguments of a forward pass over tokens and positions, int64 [1, tokens].

    With a mask of ones, transformers does not look for packed sequences.
    """
    ones = torch.ones_like(tokens)
    return {"input_ids": tokens, "position_ids": positions, "attention_mask": ones, "use_cache": False}


def hidden_of(output: Any) -> Tensor:
    """The hidden states in the output of a model without a head.

    Raises:
        ConfigError: the output has none.
    """
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:
        hidden = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(hidden, Tensor):
        raise ConfigError(f"hidden states are given as {type(hidden).__name__}, not as a tensor")
    return hidden


def window_of(mask: Mask | None, longest: int) -> int | None:
    """The window of a mask: the number of positions that a token attends to; None for full causal attention.

    Raises:
        ConfigError: the mask is neither causal nor a window.
    """
    if mask is None:
        raise ConfigError("attention is called without a causal mask")
    longest = min(longest, _LONGEST_WINDOW)
    keys, zero = torch.arange(longest), torch.zeros((), dtype=torch.long)

    def seen(query: int) -> Tensor:
        found = mask.sees(zero, zero, torch.tensor(query), keys)
        return found.expand(longest) if isinstance(found, Tensor) else torch.tensor(found).expand(longest)

    try:
        window = int(seen(longest - 1).sum())
        for query in {*range(min(longest, 3)), *torch.linspace(0, longest - 1, 29).long().tolist()}:
            if not torch.equal(seen(query), (keys <= query) & (keys > query - window)):
                raise ConfigError("attention is called with a mask that is neither causal nor a window")
    except (RuntimeError, IndexError) as error:
        raise ConfigError(f"attention is called with a mask that depends on the tokens: {error}") from error
    return window if window < longest else None


def _kinds_with_a_state(model: PreTrainedModel) -> list[str]:
    config = model.config.get_text_config(decoder=True)
    names = ("layer_types", "layers_block_type", "block_types")
    return sorted({kind for name in names for kind in getattr(config, name, None) or ()} & _WITH_A_STATE)


def _check_every_layer(name: str, model: PreTrainedModel, calls: Sequence[AttentionCall]) -> None:
    """Refuse a model that never calls the attention, or has a stack in which only some layers call it."""
    attending_modules = {call.module for call in calls}
    if not calls:
        raise ConfigError(f"{name} does not call the attention of transformers' interface, which ours would replace")
    for stack in model.modules():
        if not isinstance(stack, nn.ModuleList):
            continue
        calling = [not attending_modules.isdisjoint(layer.modules()) for layer in stack]
        if any(calling) and not all(calling):
            without = next(layer for layer, calls_it in zip(stack, calling, strict=True) if not calls_it)
            raise ConfigError(
                f"{name}: {calling.count(False)} of {len(calling)} layers have no attention, such as "
                f"{type(without).__name__}"
            )
