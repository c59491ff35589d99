"""Attention backends of the kernels, and of other packages by the entry-point group `pyllm.attention_backends`.

Imports torch only to load one, so that the launcher can refuse a wrong name. Does not know layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from pyllm.errors import ConfigError
from pyllm.plugins import find_entry_point

if TYPE_CHECKING:
    import torch
    from pyllm_kernels import AttentionLayer, AttentionMetadata, AttentionShape
    from torch import Tensor

GROUP = "pyllm.attention_backends"
# The kernels' backend for each name; `auto` takes the backend of all other ops.
BUILT_IN = {"auto": "auto", "triton": "triton", "cpu": "cpu", "sdpa": "reference"}


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """An entry point's factory returns this for a device. `pyllm_kernels.dispatch` documents both functions.

    `plan` may add data to the metadata for all layers of a step; `attend` is causal attention over the paged cache.
    `in_graphs` promises that neither asks the device for a number, so that a CUDA graph may hold them.
    """

    plan: "Callable[[AttentionMetadata, AttentionShape], AttentionMetadata]"
    attend: "Callable[[Tensor, Tensor, Tensor, AttentionMetadata, AttentionLayer], Tensor]"
    in_graphs: bool = False


def find_attention_backend(name: str, offered: Iterable[EntryPoint] | None = None) -> EntryPoint | None:
    """The entry point of a backend, or None if it is built in. Imports nothing from it.

    Raises:
        ConfigError: there is none, or several that differ.
    """
    return find_entry_point("attention backend", name, GROUP, BUILT_IN, offered)


def load_attention_backend(
    name: str, device: "torch.device", kernel_backend: str, offered: Iterable[EntryPoint] | None = None
) -> AttentionBackend:
    """The backend with this name, for a device.

    Raises:
        ConfigError: as `find_attention_backend`, or it cannot be imported, or does not run there.
    """
    entry = find_attention_backend(name, offered)
    if entry is None:
        return _of_kernels(name, device, kernel_backend)
    try:
        backend = entry.load()(device)
    except Exception as error:
        raise ConfigError(f"attention backend {name!r} ({entry.value}) cannot be made: {error}") from error
    if not isinstance(backend, AttentionBackend):
        raise ConfigError(f"attention backend {name!r} ({entry.value}) made {backend!r:.80}, not an AttentionBackend")
    return backend


def _of_kernels(name: str, device: "torch.device", kernel_backend: str) -> AttentionBackend:
    from pyllm_kernels import BackendError, select

    try:
        kernels = select(kernel_backend if name == "auto" else BUILT_IN[name], device)
    except BackendError as error:
        raise ConfigError(f"attention_backend {name}: {error}") from error
    return AttentionBackend(kernels.plan_attention, kernels.paged_attention, in_graphs=kernels.backend == "triton")
