"""Attention backends of the kernels, and of other packages by the entry-point group `pyllm.attention_backends`.

Imports torch only to load one, so that the launcher can refuse a wrong name. Does not know layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from pyllm.errors import ConfigError
from pyllm.families.spec import AttentionSpec, ModelSpec
from pyllm.plugins import find_entry_point

if TYPE_CHECKING:
    import torch
    from pyllm_kernels import AttentionLayer, AttentionMetadata, Kernels
    from torch import Tensor

    from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup

GROUP = "pyllm.attention_backends"
# The kernels' backend for each name; `auto` takes the backend of all other ops.
BUILT_IN = {"auto": "auto", "triton": "triton", "cpu": "cpu", "sdpa": "reference"}


def layer_features(spec: AttentionSpec) -> list[str]:
    """What a layer has beyond plain causal attention, in words."""
    found = []
    if spec.window is not None:
        found.append(f"a window of {spec.window} positions")
    if spec.soft_cap is not None:
        found.append(f"a soft cap of {spec.soft_cap:g}")
    return [*found, "attention sinks"] if spec.sinks else found


def is_plain(spec: AttentionSpec) -> bool:
    """Whether a layer is plain causal attention, which any backend computes."""
    return not layer_features(spec)


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """An entry point's factory returns this for a device. `pyllm_kernels.ops` documents the ops.

    - `supports` says whether it computes a layer; without it, only plain attention is asked of it.
    - `prepare` runs on the host before each step and each replay, once per group of layers, and returns the metadata
      for `attend`. It has the lengths on the host. Before a replay it refills `AttentionBatch.captured`.
      Graphs hold decode steps and mixed ones: padding rows have no tokens, and padding tokens belong to no row.
    - `attend` is causal attention of one layer over the paged cache (`paged_attention` there).
    - `in_graphs` promises that `attend` asks the device for no number, so that a CUDA graph may hold it.
    """

    prepare: "Callable[[AttentionBatch, AttentionGroup], AttentionMetadata]"
    attend: "Callable[[Tensor, Tensor, Tensor, AttentionMetadata, AttentionLayer], Tensor]"
    in_graphs: bool = False
    supports: Callable[[AttentionSpec], bool] = is_plain


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
        from pyllm_kernels import BackendError, select

        try:
            return attention_of(select(kernel_backend if name == "auto" else BUILT_IN[name], device))
        except BackendError as error:
            raise ConfigError(f"attention_backend {name}: {error}") from error
    try:
        backend = entry.load()(device)
    except Exception as error:
        raise ConfigError(f"attention backend {name!r} ({entry.value}) cannot be made: {error}") from error
    if not isinstance(backend, AttentionBackend):
        raise ConfigError(f"attention backend {name!r} ({entry.value}) made {backend!r:.80}, not an AttentionBackend")
    return backend


def attention_of(kernels: "Kernels") -> AttentionBackend:
    """The attention of our own kernels, which compute every layer that `model_limits.py` lets pass."""

    def prepare(batch: "AttentionBatch", group: "AttentionGroup") -> "AttentionMetadata":
        return kernels.plan_attention(batch.metadata(group), group.shape, batch.captured)

    in_graphs = kernels.backend == "triton"
    return AttentionBackend(prepare, kernels.paged_attention, in_graphs, supports=lambda _: True)


def check_layers(name: str, backend: AttentionBackend, spec: ModelSpec) -> None:
    """Refuse a model with a layer that the backend does not compute.

    Raises:
        ConfigError: with the layer, and what it has.
    """
    for index, layer in enumerate(spec.layers):
        if not backend.supports(layer.attention):
            has = ", ".join(layer_features(layer.attention)) or "plain attention"
            raise ConfigError(f"attention backend {name!r} does not compute layer {index}: {has}")
