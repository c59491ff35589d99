"""Logits processors and samplers of other packages: entry points that are found by name. Knows no slot, no sampler.

An entry point is a factory: it takes a request's arguments and returns that request's plugin. The factory is called
again after a preemption, and the plugin for each token, so both must depend on their arguments only.

A factory with the attribute `takes = "numpy"` makes plugins for arrays of numpy. All others, such as vLLM's, get
tensors of torch: on a CPU over the same memory.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor, is_array

from pyllm.config.plugins import LOGITS_PROCESSORS, SAMPLERS, find_entry_point
from pyllm.errors import ConfigError
from pyllm.machine.extras import missing_extra

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Tokens = npt.NDArray[np.int32]
# (prompt's tokens, output's tokens, logits float32 [vocab_size]) -> logits of the same shape; it may change its
# argument. All parameters but temperature, min-p, top-k and top-p were applied before.
LogitsProcessor = Callable[[Tokens, Tokens, Tensor], Tensor]
# (prompt's tokens, output's tokens, logits float32 [vocab_size], uniform in (0, 1)) -> token id. Penalties, constraints
# and logits processors were applied to the logits, and excluded tokens have -inf; the uniform belongs to the position,
# so that a seed repeats the output.
SamplerPlugin = Callable[[Tokens, Tokens, Tensor, float], int]

_KINDS = "numpy", "torch"


def load_logits_processor(
    name: str, arguments: Mapping[str, Any], offered: "Iterable[EntryPoint] | None" = None
) -> LogitsProcessor:
    """Make the processor of one request; it takes and returns arrays or tensors of torch.

    Raises:
        ConfigError: no package has a processor of that name, several do, or it takes tensors and torch is missing.
        Exception: whatever the factory raises.
    """
    return _load("logits processor", name, LOGITS_PROCESSORS, arguments, offered)


def load_sampler(
    name: str, arguments: Mapping[str, Any], offered: "Iterable[EntryPoint] | None" = None
) -> SamplerPlugin:
    """Make the sampler of one request; it takes arrays or tensors of torch.

    Raises:
        ConfigError: no package has a sampler of that name, several do, or it takes tensors and torch is missing.
        Exception: whatever the factory raises.
    """
    return _load("sampler", name, SAMPLERS, arguments, offered)


def _load(
    kind: str, name: str, group: str, arguments: Mapping[str, Any], offered: "Iterable[EntryPoint] | None"
) -> Callable[..., Any]:
    entry = find_entry_point(kind, name, group, (), offered)
    assert entry is not None, "none is built in"
    had_torch = "torch" in sys.modules
    try:
        factory = entry.load()
        takes = getattr(factory, "takes", "torch")
        if takes not in _KINDS:
            raise ConfigError(f"{kind} {name!r} takes {takes!r}: it can take {' or '.join(_KINDS)}")
        if takes == "torch":
            _prepare_torch(had_torch)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(f"{kind} {name!r} takes tensors of torch, and {missing_extra('gpu', 'torch')}") from error
    plugin = factory(arguments)
    return _of_arrays(plugin) if takes == "numpy" else _of_tensors(plugin)


def _prepare_torch(had_torch: bool) -> None:
    """Import torch for plugins; its threads would spin beside those of the kernels."""
    import torch

    if not had_torch:
        torch.set_num_threads(1)


def _of_arrays(plugin: Callable[..., Any]) -> Callable[..., Any]:
    """A plugin of arrays that also takes tensors, which are those of a GPU."""

    def run(prompt: Tokens, output: Tokens, logits: Tensor, *uniform: float) -> Any:
        if is_array(logits):
            return plugin(prompt, output, logits, *uniform)
        from pyllm_kernels.torch_bridge import on_host

        return on_host(plugin)(prompt, output, logits, *uniform)

    return run


def _of_tensors(plugin: Callable[..., Any]) -> Callable[..., Any]:
    """A plugin of tensors that also takes arrays; it computes without gradients."""
    import torch
    from pyllm_kernels.torch_bridge import as_array, as_tensor

    def run(prompt: Tokens, output: Tokens, logits: Tensor, *uniform: float) -> Any:
        if not is_array(logits):
            return plugin(prompt, output, logits, *uniform)
        with torch.inference_mode():
            result = plugin(prompt, output, as_tensor(logits), *uniform)
        return as_array(result) if isinstance(result, torch.Tensor) else result

    return run
