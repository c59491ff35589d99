"""CUDA graphs of decode steps: one captured forward pass for each of some numbers of rows, replayed in one call.

Knows that each row has one token and where its inputs go. Does not know the model: its caller passes the function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import AttentionMetadata
from torch import Tensor

from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.batch import Sections

MAX_CAPTURED_ROWS = 512


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """The inputs of a captured pass, int32 on the device. A padding row has length 0 and writes nowhere."""

    tokens: Tensor  # [rows], -1: the slot's last sampled token
    positions: Tensor  # [rows]
    sequence_lengths: Tensor  # [rows]
    slots: Tensor  # [rows]
    slot_mapping: Tensor  # [groups, rows], -1: written nowhere
    query_starts: Tensor  # [rows + 1], 0, 1, 2...


Metadata = tuple[AttentionMetadata, ...]  # of each group of layers


class Capture(Protocol):
    """Records a computation; returns its output and a function that repeats it into the same memory."""

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]: ...


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: DecodeInputs
    attention: Metadata
    output: Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Captured passes for `sizes` rows each, all over one set of buffers; a batch takes the next larger one.

    `prepare` is called before each capture and replay, outside of the graph: with the inputs, the sequence lengths on
    the host, and what it gave before the capture. `forward` takes the inputs, and what it gave then.
    """

    def __init__(
        self,
        prepare: Callable[[DecodeInputs, Ints, Metadata | None], Metadata],
        forward: Callable[[DecodeInputs, Metadata], Tensor],
        sizes: Sequence[int],
        device: torch.device,
        capture: Capture,
        *,
        num_groups: int = 1,
    ) -> None:
        self._prepare = prepare
        self._sizes = sorted(sizes)
        # Of a padding row: a line for each of the inputs in their order, and of the slot mapping for each group.
        self._padding = torch.tensor([0, 0, 0, 0, *[-1] * num_groups], dtype=torch.int32).unsqueeze(1)
        self._memory = torch.zeros(len(self._padding) * self._sizes[-1], dtype=torch.int32, device=device)
        query_starts = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=device)
        self._graphs: dict[int, _Graph] = {}
        # The largest first, so that the others fit into its memory.
        for size in reversed(self._sizes):
            rows = self._rows(size)
            rows.copy_(self._padding)
            inputs = DecodeInputs(rows[0], rows[1], rows[2], rows[3], rows[4:], query_starts[: size + 1])
            attention = prepare(inputs, np.zeros(size, np.int32), None)
            self._graphs[size] = _Graph(inputs, attention, *capture(partial(forward, inputs, attention)))

    @property
    def max_rows(self) -> int:
        """The most rows that a batch may have."""
        return self._sizes[-1]

    def run(self, host: Sections[npt.NDArray[Any]]) -> Tensor:
        """Replay the pass for a plan of one token a row; returns its rows of output, valid until the next run.

        It takes one copy to the device, `prepare` and one launch, and waits for none of them.
        """
        num_rows = len(host.slots)
        size = next(size for size in self._sizes if size >= num_rows)
        staged = torch.empty((len(self._padding), size), dtype=torch.int32, pin_memory=self._memory.is_cuda)
        staged[:, num_rows:] = self._padding
        inputs = (host.tokens, host.positions, host.sequence_lengths, host.slots)
        lines = (*inputs, *host.slot_mapping.reshape(-1, num_rows))
        for line, values in zip(staged.numpy(), lines, strict=True):
            line[:num_rows] = values
        self._rows(size).copy_(staged, non_blocking=True)
        graph = self._graphs[size]
        self._prepare(graph.inputs, host.sequence_lengths, graph.attention)
        graph.replay()
        return graph.output[:num_rows]

    def _rows(self, size: int) -> Tensor:
        return self._memory[: len(self._padding) * size].view(len(self._padding), size)


def capture_sizes(max_num_seqs: int) -> list[int]:
    """The captured numbers of rows, as in vLLM: 1, 2, 4, then every 8th to 256, then every 16th to 512."""
    most = min(max_num_seqs, MAX_CAPTURED_ROWS)
    return sorted({size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size < most} | {most})


class CudaCapture:
    """Captures CUDA graphs that share one pool of memory, as they run one after another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for all: cuBLAS has a workspace for each stream.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives streams no types.

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        # Compute once before: no graph may hold compilations and the workspaces of libraries.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            compute()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = compute()
        return output, graph.replay


def is_decode(host: Sections[npt.NDArray[Any]]) -> bool:
    """Whether each row of a plan has one token."""
    return len(host.tokens) == len(host.slots) and bool((np.diff(host.query_starts) == 1).all())
