"""CUDA graphs of steps: forward passes captured for some numbers of tokens and rows, each replayed in one call.

Knows the buffers of a step's inputs and their padding. Does not know the model: its caller passes the function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import AttentionMetadata
from torch import Tensor

from pyllm.workers.devices.device import Device
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.step.attention_batch import AttentionBatch
from pyllm.workers.step.batch import Array, Batch, Sections

MAX_CAPTURED_ROWS = 512
MIXED_TOKENS = (16, 32, 64, 128, 192, 256, 320, 384, 448, 512)
MIXED_ROWS = (64, 256)
MAX_CAPTURE_SECONDS = 20.0  # for all graphs together: a start, and every recovery, waits for them
MAX_CAPTURE_BYTES = 768 << 20  # for all graphs together, beyond the memory reserved for them
# If capture has ended early, only large buckets exist. Above this many tokens, computing padding takes time.
_FEW_TOKENS = 64
_ALIGNMENT = 16  # in int32; Triton compiles other kernels for addresses that are no multiples of 16 bytes

Metadata = tuple[AttentionMetadata, ...]  # of each group of layers


class Bucket(NamedTuple):
    """The largest step that fits into a graph. In a decode step no row has more than one token."""

    max_query_length: int
    tokens: int
    rows: int

    def has_room(self, batch: Batch) -> bool:
        """Whether a batch fits and is not much smaller than the bucket."""
        return (
            batch.max_query_length <= self.max_query_length
            and batch.num_tokens <= self.tokens <= max(2 * batch.num_tokens, _FEW_TOKENS)
            and batch.num_rows <= self.rows
        )


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[Array]):
    """The inputs of a captured pass, int32. Padding tokens belong to no row; padding rows have length 0."""

    tokens: Array  # [tokens], -1: the slot's last sampled token
    positions: Array  # [tokens]
    token_slots: Array  # [tokens], of each token's row
    slot_mapping: Array  # [groups, tokens], -1: written nowhere
    slots: Array  # [rows]
    sequence_lengths: Array  # [rows]
    query_starts: Array  # [rows + 1]
    state_sources: Array  # [rows], -1: no state
    state_destinations: Array  # [rows]


class Capture(Protocol):
    """Records a computation; returns its output and a function that repeats it into the same memory."""

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]: ...

    def free_bytes(self) -> int:
        """Free memory of the device."""


@dataclass(frozen=True, slots=True)
class _Graph:
    rows: AttentionBatch
    attention: Metadata
    output: Tensor
    replay: Callable[[], None]


class CapturedSteps:
    """Captured passes for some of the `buckets`, all over one set of buffers.

    `prepare` is called before each capture and replay, outside of the graph: with the rows, and on a replay its result
    at the capture. `forward` takes the inputs, at fixed addresses, and the result of `prepare` at the capture.
    """

    def __init__(
        self,
        prepare: Callable[[AttentionBatch, Metadata | None], Metadata],
        forward: Callable[[StepInputs[Tensor], Metadata], Tensor],
        buckets: Sequence[Bucket],
        device: Device,
        *,
        max_sequence_length: int,
        num_groups: int = 1,
    ) -> None:
        self._prepare = prepare
        self._forward = forward
        self._max_sequence_length = max_sequence_length
        self._num_groups = num_groups
        size = max(_num_ints(bucket, num_groups) for bucket in buckets)
        self._memory: Tensor = device.zeros((size,), "int32")
        self._graphs: dict[Bucket, _Graph] = {}
        self._captured: list[Bucket] = []  # decode steps first, then from small to large

    def capture(self, bucket: Bucket, capture: Capture) -> None:
        """Capture the pass for a bucket. Capture larger buckets first, so that the others fit into their memory."""
        # A valid batch, as the computation before the capture is real: the first token of each row.
        starts, lengths = np.arange(bucket.rows + 1, dtype=np.int32), np.ones(bucket.rows, np.int32)
        inputs = _parts(self._memory, bucket, self._num_groups)
        self._memory.zero_()
        inputs.slot_mapping.fill_(-1)
        inputs.query_starts.copy_(torch.from_numpy(starts))
        inputs.sequence_lengths.fill_(1)
        inputs.state_sources.fill_(-1)
        inputs.state_destinations.fill_(-1)
        rows = AttentionBatch(
            host_query_starts=starts,
            host_sequence_lengths=lengths,
            query_starts=inputs.query_starts,
            sequence_lengths=inputs.sequence_lengths,
            slots=inputs.slots,
            max_query_length=bucket.max_query_length,
            max_sequence_length=self._max_sequence_length,
            num_tokens=bucket.tokens,
        )
        attention = self._prepare(rows, None)
        self._graphs[bucket] = _Graph(rows, attention, *capture(partial(self._forward, inputs, attention)))
        self._captured = sorted(self._graphs)

    def bucket_of(self, batch: Batch) -> Bucket | None:
        """The smallest captured bucket with room for a batch."""
        return next((bucket for bucket in self._captured if bucket.has_room(batch)), None)

    def run(self, bucket: Bucket, batch: Batch) -> Tensor:
        """Replay a bucket's pass; returns the hidden states of the batch's tokens, valid until the next run.

        It needs one copy to the device, `prepare` and one launch, and waits for none of them.
        """
        graph, host = self._graphs[bucket], batch.host
        size = _num_ints(bucket, self._num_groups)
        staged = torch.empty(size, dtype=torch.int32, pin_memory=self._memory.is_cuda)
        _fill(_parts(staged.numpy(), bucket, self._num_groups), host)
        self._memory[:size].copy_(staged, non_blocking=True)
        starts, lengths = host.query_starts, host.sequence_lengths
        rows = replace(graph.rows, host_query_starts=starts, host_sequence_lengths=lengths)
        self._prepare(rows, graph.attention)
        graph.replay()
        return graph.output[..., : batch.num_tokens, :]  # a pipeline stage returns two tensors


class CaptureBudget:
    """The limit on time and memory for capturing graphs, counted from its creation. Rank 0 decides for all ranks.

    `planned_bytes` of the device's memory were reserved for graphs when the size of the KV cache was chosen.
    """

    def __init__(
        self,
        capture: Capture,
        clock: Callable[[], float],
        group: RankGroup,
        device: Device,
        planned_bytes: int = 0,
    ) -> None:
        self._capture = capture
        self._clock = clock
        self._group = group
        self._device = device
        self._started = clock()
        self._free = capture.free_bytes()
        # Leave half of the memory to the steps themselves.
        left = max(self._free - planned_bytes, 0)
        self._max_bytes = planned_bytes + min(MAX_CAPTURE_BYTES, left // 2)

    def spent(self) -> tuple[float, int]:
        """Seconds and bytes used since the creation of this object."""
        return self._clock() - self._started, self._free - self._capture.free_bytes()

    def is_left(self) -> bool:
        """Whether the budget allows one more graph."""
        seconds, num_bytes = self.spent()
        is_left = seconds < MAX_CAPTURE_SECONDS and num_bytes <= self._max_bytes
        if self._group.size == 1:
            return is_left
        decision = self._device.from_host(np.array([int(is_left)]))
        return bool(self._group.broadcast(decision)[0])


class CudaCapture:
    """Captures CUDA graphs, which share one memory pool, as they run one after another. `cuda` is `torch.cuda`."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._pool = cuda.graph_pool_handle()
        # One stream for all graphs: cuBLAS has a workspace for each stream.
        self._stream = cuda.Stream()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        # Compute once before: no graph may hold compilations, workspaces of libraries or NCCL's first connections.
        cuda, stream = self._cuda, self._stream
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            compute()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        # In the default mode, a call of any other thread can end the capture: NCCL's watchdog looks at past events.
        with cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = compute()
        return output, graph.replay

    def free_bytes(self) -> int:
        return int(self._cuda.mem_get_info()[0])


def decode_buckets(max_num_seqs: int) -> list[Bucket]:
    """The captured decode steps, from small to large: 1, 2, 4, then every 8th to 256, every 16th to 512, as in vLLM."""
    most = min(max_num_seqs, MAX_CAPTURED_ROWS)
    sizes = {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size < most} | {most}
    return [Bucket(1, size, size) for size in sorted(sizes)]


def mixed_buckets(max_num_batched_tokens: int, max_num_seqs: int) -> list[Bucket]:
    """The captured steps with prefill tokens, from small to large; few sizes of rows, as padding rows cost little."""
    most = min(max_num_batched_tokens, MIXED_TOKENS[-1])
    sizes = sorted({size for size in MIXED_TOKENS if size < most} | {most})
    rows_of = {size: {min(rows, size, max_num_seqs) for rows in MIXED_ROWS} for size in sizes if size > 1}
    return [Bucket(size, size, rows) for size, numbers in rows_of.items() for rows in sorted(numbers)]


def _num_ints(bucket: Bucket, num_groups: int) -> int:
    """The size of a bucket's inputs, each padded to a multiple of the alignment."""
    return (3 + num_groups) * _aligned(bucket.tokens) + 4 * _aligned(bucket.rows) + _aligned(bucket.rows + 1)


def _parts(memory: Any, bucket: Bucket, num_groups: int) -> StepInputs[Any]:
    """Views of flat memory, on the host or on the device."""
    tokens, rows = _aligned(bucket.tokens), _aligned(bucket.rows)
    of_tokens = memory[: (3 + num_groups) * tokens].reshape(3 + num_groups, tokens)[:, : bucket.tokens]
    of_rows = memory[(3 + num_groups) * tokens :][: 4 * rows].reshape(4, rows)[:, : bucket.rows]
    starts = (3 + num_groups) * tokens + 4 * rows
    return StepInputs(
        tokens=of_tokens[0],
        positions=of_tokens[1],
        token_slots=of_tokens[2],
        slot_mapping=of_tokens[3:],
        slots=of_rows[0],
        sequence_lengths=of_rows[1],
        query_starts=memory[starts : starts + bucket.rows + 1],
        state_sources=of_rows[2],
        state_destinations=of_rows[3],
    )


def _fill(inputs: StepInputs[npt.NDArray[Any]], host: Sections[npt.NDArray[Any]]) -> None:
    """Copy a plan into a bucket's inputs, with padding."""
    num_tokens, num_rows = len(host.tokens), len(host.slots)
    token_slots = np.repeat(host.slots, np.diff(host.query_starts))
    for line, values in (
        (inputs.tokens, host.tokens),
        (inputs.positions, host.positions),
        (inputs.token_slots, token_slots),
        (inputs.slots, host.slots),
        (inputs.sequence_lengths, host.sequence_lengths),
    ):
        line[: len(values)] = values
        line[len(values) :] = 0
    for line, values in (
        (inputs.state_sources, host.state_sources),
        (inputs.state_destinations, host.state_destinations),
    ):
        line[: len(values)] = values
        line[len(values) :] = -1
    inputs.slot_mapping[:, :num_tokens] = host.slot_mapping.reshape(-1, num_tokens)
    inputs.slot_mapping[:, num_tokens:] = -1
    inputs.query_starts[: num_rows + 1] = host.query_starts
    inputs.query_starts[num_rows + 1 :] = num_tokens


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
