"""One rank's adapters: reads them into the host's memory, assigns them to device slots, follows the plan's rows."""

from collections.abc import Sequence
from copy import copy

import msgspec
import numpy as np
import numpy.typing as npt
from pyllm_kernels import Kernels
from pyllm_kernels.tensors import Array, Tensor, numpy_dtype

from pyllm.checkpoint.types import AdapterMatrices, read_tensor
from pyllm.config.lora_settings import LoraConfig
from pyllm.errors import ProtocolError
from pyllm.families.tensors import FileTensor, Scale
from pyllm.workers.adapters.adapter_layer import AdapterLayer
from pyllm.workers.devices.device import Device
from pyllm.workers.loaders.tensor_table import DTYPES
from pyllm.workers.loaders.transforms import source_rows
from pyllm.workers.loaders.weights import MatrixPart, check_finite
from pyllm.workers.step.batch import Batch, gather

# Layers that do not compute one row a token, or whose matrix is not multiplied as such.
_WITHOUT_ADAPTERS = ("streams.", "augmented.", "streams_in.", "streams_out.")


class _Place:
    """The part of a layer that a parameter fills, and the dtype of its adapters' matrices."""

    def __init__(self, layer: AdapterLayer, index: int, part: MatrixPart, dtype: str) -> None:
        self.layer = layer
        self.index = index
        self.part = part
        self.dtype = dtype


class RankAdapters:
    """Adapters by their numbers, for steps of up to `max_tokens` tokens and `max_num_seqs` slots."""

    def __init__(self, settings: LoraConfig, max_tokens: int, max_num_seqs: int, device: Device) -> None:
        self._settings = settings
        self._device = device
        self._of_slot = np.full(max_num_seqs, -1, np.int32)
        self._rows = device.from_host(np.full(max_tokens, -1, np.int32))
        self._num_filled = 0
        self._layers: dict[AdapterLayer, int] = {}  # and the number of its parts
        self._places: dict[str, _Place] = {}
        self._on_host: dict[int, dict[str, tuple[Array, Array]]] = {}
        self._in_slots: dict[int, int] = {}  # the adapter of each device slot

    def for_model(self) -> "RankAdapters":
        """The same adapters for another model of the same layers, which is yet to be made."""
        other = copy(self)
        other._layers, other._places = {}, {}
        return other

    def assign_again(self) -> None:
        """Put the adapters into the device slots of this model, as they were in those of the model before."""
        for index, number in self._in_slots.items():
            if number in self._on_host:
                self._assign(index, number)

    def layer(self, parts: Sequence[MatrixPart], dtype: str, kernels: Kernels) -> AdapterLayer | None:
        """Room for adapters of one linear layer; None where adapters cannot be."""
        if any(name in part.name for part in parts for name in _WITHOUT_ADAPTERS) or not min(
            min(part.share) for part in parts
        ):
            return None
        settings = self._settings
        layer = AdapterLayer(
            parts,
            dtype,
            kernels,
            self._device,
            max_loras=settings.max_loras,
            max_rank=settings.max_lora_rank,
            rows_of=self._rows_of,
        )
        self._layers[layer] = len(parts)
        self._places |= {part.name: _Place(layer, index, part, dtype) for index, part in enumerate(parts)}
        return layer

    def load(self, number: int, files: Sequence[str], matrices: bytes) -> list[str]:
        """Read some matrices of an adapter into the host's memory; returns the parameters of theirs on this rank.

        Raises:
            ConfigError: a file has changed, or has numbers that are not finite.
        """
        host = self._on_host.setdefault(number, {})
        found = []
        for each in msgspec.msgpack.decode(matrices, type=tuple[AdapterMatrices, ...]):
            name = each.entry.name
            if (place := self._places.get(name)) is not None:
                host[name] = _share(each, place.part, place.dtype, files)
                found.append(name)
        return found

    def unload(self, number: int) -> None:
        """Free an adapter's memory on the host. A device slot keeps its copy until another one comes."""
        self._on_host.pop(number, None)

    def apply(self, batch: Batch) -> None:
        """Follow a plan before its forward pass: loads into device slots, then slots, then the rows of its tokens."""
        host = batch.host
        for index, number in host.adapter_loads.reshape(-1, 2).tolist():
            self._assign(index, number)
            self._in_slots[index] = number
        if len(host.slot_copies):
            sources, destinations = gather(host.slot_copies)
            self._of_slot[destinations] = self._of_slot[sources]
        if len(host.slot_inits):
            self._of_slot[host.slot_inits] = host.adapter_slots
        self._fill(np.repeat(self._of_slot[host.slots], np.diff(host.query_starts)))

    def _assign(self, index: int, number: int) -> None:
        if (host := self._on_host.get(number)) is None:
            raise ProtocolError(f"adapter {number} is not on the host, and the plan wants it in device slot {index}")
        parts: dict[AdapterLayer, list[tuple[Array, Array] | None]] = {
            layer: [None] * num_parts for layer, num_parts in self._layers.items()
        }
        for name, pair in host.items():
            place = self._places[name]
            parts[place.layer][place.index] = pair
        for layer, pairs in parts.items():
            layer.assign(index, pairs)

    def _fill(self, rows: npt.NDArray[np.int32]) -> None:
        """Set the adapters of the step's tokens; those after them, which a graph may compute, have none."""
        size = max(len(rows), self._num_filled)
        padded = np.full(size, -1, np.int32)
        padded[: len(rows)] = rows
        every = np.arange(size)
        self._device.assign(self._rows, every, self._device.from_host(padded), every)  # A GPU is not waited for.
        self._num_filled = len(rows)

    def _rows_of(self, num_tokens: int) -> Tensor:
        return self._rows[:num_tokens]


def _share(each: AdapterMatrices, part: MatrixPart, dtype: str, files: Sequence[str]) -> tuple[Array, Array]:
    """This rank's share of a pair: `down` [rank, in_features], and `up` transposed, [rank, out_features], scaled."""
    scale = each.scale
    for transform in each.entry.transforms:
        if isinstance(transform, Scale):
            scale *= transform.value
    down, up = _numbers(each.down, files)[:, part.columns], _numbers(each.up, files)
    up = up[source_rows(each.entry, part.rows)].T * np.float32(scale)
    kind = numpy_dtype(dtype)
    for tensor, numbers in ((each.down, down), (each.up, up)):
        check_finite(tensor.name, np.ascontiguousarray(numbers), dtype)
    return np.ascontiguousarray(down, kind), np.ascontiguousarray(up, kind)


def _numbers(tensor: FileTensor, files: Sequence[str]) -> npt.NDArray[np.float32]:
    content = np.frombuffer(read_tensor(tensor, files), numpy_dtype(DTYPES[tensor.type]))
    return content.reshape(tensor.shape).astype(np.float32)
