"""The exchange of tensors between ranks on CPUs, by `pyllm_kernels`. Knows neither addresses nor layers."""

from typing import Any

import numpy as np
from pyllm_kernels import graph
from pyllm_kernels._cpu import RankExchange
from pyllm_kernels.host_copies import host_array
from pyllm_kernels.tensors import Array, Tensor, dtype_name, is_array

from pyllm.workers.layers.rank_rendezvous import Place


class HostRanks:
    """An `Exchange` of arrays of numpy, or of torch's tensors on CPUs.

    A sum is in rank order, and rounded to the dtype after each addition: it does not depend on the tensor's size.
    """

    def __init__(self, ranks: RankExchange, place: Place) -> None:
        self._ranks = ranks
        self._place = place

    def sum(self, part: Tensor) -> Tensor:
        part = _contiguous(part)
        self._ranks.sum(dtype_name(part.dtype), _bytes(part))
        return part

    def gather(self, part: Tensor) -> list[Tensor]:
        whole = graph.empty((self._place.size * len(part), *part.shape[1:]), part)
        self._ranks.all_gather(_bytes(_contiguous(part)), _bytes(whole))
        return [whole[rank * len(part) : (rank + 1) * len(part)] for rank in range(self._place.size)]

    def concatenate(self, part: Tensor) -> Tensor | None:
        rows, columns = part.shape
        whole = (
            graph.empty((rows, self._place.size * columns), part) if self._place.rank % self._place.size == 0 else None
        )
        row_bytes = columns * part.itemsize
        self._ranks.gather(_bytes(_contiguous(part)), row_bytes, None if whole is None else _bytes(whole))
        return whole

    def broadcast(self, tensor: Tensor) -> None:
        self._ranks.broadcast(_bytes(tensor))

    def allocate_messages(self, num_messages: int, num_bytes: int) -> None:
        self._ranks.allocate_messages(num_messages, num_bytes)

    def send(self, states: Tensor) -> None:
        self._ranks.send([_bytes(_contiguous(part)) for part in states])

    def receive(self, states: Tensor) -> None:
        self._ranks.receive([_bytes(part) for part in states])


def _contiguous(array: Any) -> Any:
    return np.ascontiguousarray(array) if is_array(array) else array.contiguous()


def _bytes(tensor: Tensor) -> Array:
    """The memory of a contiguous tensor, as bytes."""
    array = host_array(tensor)
    assert array.flags.c_contiguous, "a copy would not be written back"
    return array.reshape(-1).view(np.uint8)
