"""Attention backends: built-in ones, and those of other packages in the entry-point group `pyllm.attention_backends`.

Loads a backend only to use it, so that the launcher can refuse a wrong name. Does not know layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyllm.config.plugins import find_entry_point
from pyllm.errors import ConfigError
from pyllm.families.spec import AttentionSpec, ModelSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pyllm_kernels import AttentionLayer, AttentionMetadata, Kernels
    from pyllm_kernels.tensors import Tensor

    from pyllm.workers.devices.device import Device
    from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup

GROUP = "pyllm.attention_backends"
# The kernels' backend for each name; `auto` takes the backend of all other ops.
BUILT_IN = {"auto": "auto", "triton": "triton", "cpu": "cpu", "sdpa": "reference"}


def layer_features(spec: AttentionSpec) -> list[str]:
    """The features of a layer beyond plain causal attention, as text."""
    found = []
    if spec.window is not None:
        found.append(f"a window of {spec.window} positions")
    if spec.soft_cap is not None:
        found.append(f"a soft cap of {spec.soft_cap:g}")
    if spec.latent is not None:
        found.append("latents")
    if spec.slopes is not None:
        found.append("slopes (ALiBi)")
    if spec.relative_bias is not None:
        found.append("a relative position bias")
    return [*found, "attention sinks"] if spec.sinks else found


def is_plain(spec: AttentionSpec) -> bool:
    """Whether a layer is plain causal attention, which any backend computes."""
    return not layer_features(spec)


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """The result of an entry point's factory, which takes a device as torch names it ("cpu", "cuda:1").

    `pyllm_kernels.ops` documents the ops.

    - `supports` returns whether the backend computes a layer; by default, it computes plain attention only.
    - `prepare` runs on the host before each step and each replay, once per group of layers, and returns the metadata
      for `attend`. It gets the lengths on the host. Before a replay it refills `AttentionBatch.captured`.
      Graphs hold decode steps and mixed ones: padding rows have no tokens, and padding tokens belong to no row.
    - `attend` is causal attention of one layer over the paged cache (`pyllm_kernels.ops.paged_attention`).
    - `in_graphs` promises that `attend` reads no number back from the device, so that a CUDA graph can hold it.
    """

    prepare: "Callable[[AttentionBatch, AttentionGroup], AttentionMetadata]"
    attend: "Callable[[Tensor, Tensor, Tensor, AttentionMetadata, AttentionLayer], Tensor]"
    in_graphs: bool = False
    supports: Callable[[AttentionSpec], bool] = is_plain


def find_attention_backend(name: str, offered: "Iterable[EntryPoint] | None" = None) -> "EntryPoint | None":
    """The entry point of a backend, or None if it is built in. Imports nothing from it.

    Raises:
        ConfigError: no backend has this name, or several that differ.
    """
    return find_entry_point("attention backend", name, GROUP, BUILT_IN, offered)


def load_attention_backend(
    name: str, device: "Device", kernel_backend: str, offered: "Iterable[EntryPoint] | None" = None
) -> AttentionBackend:
    """The backend with this name, for a device.

    Raises:
        ConfigError: as `find_attention_backend`, or it cannot be imported, or does not run on the device.
    """
    entry = find_attention_backend(name, offered)
    if entry is None:
        from pyllm_kernels import BackendError, select

        try:
            built_in = attention_of(select(kernel_backend if name == "auto" else BUILT_IN[name], device.type))
        except BackendError as error:
            raise ConfigError(f"attention_backend {name}: {error}") from error
        return _by_torch(built_in) if name == "sdpa" and device.type == "cuda" else built_in
    try:
        backend = entry.load()(str(device))
    except Exception as error:
        raise ConfigError(f"attention backend {name!r} ({entry.value}) cannot be made: {error}") from error
    if not isinstance(backend, AttentionBackend):
        raise ConfigError(f"attention backend {name!r} ({entry.value}) made {backend!r:.80}, not an AttentionBackend")
    return backend


def _by_torch(reference: AttentionBackend) -> AttentionBackend:
    """The reference with torch's attention, which computes on the GPU what the reference would compute on the host."""
    from pyllm_kernels.gpu import sdpa

    return replace(reference, attend=sdpa.paged_attention)


def attention_of(kernels: "Kernels") -> AttentionBackend:
    """The attention of pyllm's kernels, which compute every layer that `model_limits.py` accepts."""
    from pyllm_kernels.ops.paged_attention import paged_attention, plan_attention

    def prepare(batch: "AttentionBatch", group: "AttentionGroup") -> "AttentionMetadata":
        return kernels[plan_attention](batch.metadata(group), group.shape, batch.captured)

    in_graphs = kernels.backend == "triton"
    return AttentionBackend(prepare, kernels[paged_attention], in_graphs, supports=lambda _: True)


def check_layers(name: str, backend: AttentionBackend, spec: ModelSpec) -> None:
    """Refuse a model with a layer that the backend does not compute.

    Raises:
        ConfigError: with the layer and its features.
    """
    for index, layer in enumerate(spec.layers):
        if layer.attention is not None and not backend.supports(layer.attention):
            has = ", ".join(layer_features(layer.attention)) or "plain attention"
            raise ConfigError(f"attention backend {name!r} does not compute layer {index}: {has}")


def fits_graphs(device: "Device", kernels: "Kernels", attention: AttentionBackend) -> bool:
    """Whether a graph can hold the ops: on a GPU none of them waits for the device, on a CPU all of them are Rust."""
    from pyllm_kernels.ops.paged_attention import paged_attention

    if device.type == "cuda":
        return kernels.backend == "triton" and attention.in_graphs
    return kernels.backend == "cpu" and attention.attend is kernels[paged_attention]
