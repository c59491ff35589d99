"""The task map that is made before a graph is captured has room for every batch that the graph's bucket holds."""

import pyllm_kernels
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels import AttentionMetadata, AttentionShape
from pyllm_kernels.cards import card_of
from pyllm_kernels.ops.paged_attention import plan_attention
from torch import Tensor

from pyllm.workers.cuda_graphs import Bucket
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup
from tests.tiers import cases

CPU = TorchDevice(torch.device("cpu"))
SHAPE = AttentionShape(heads=6, kv_heads=2, head_dim=16, dtype="float32")
BUCKETS = [Bucket(1, 8, 8), Bucket(16, 16, 8), Bucket(64, 64, 64), Bucket(128, 128, 8)]
QUERIES = st.lists(st.sampled_from([1, 1, 2, 9, 30, 70]), min_size=1, max_size=64)


class Buffers:
    """The rows of a bucket at one address for good, as a graph has them."""

    def __init__(self, bucket: Bucket, batch_invariant: bool) -> None:
        self.bucket = bucket
        self.group = AttentionGroup(SHAPE, torch.zeros((8, 300), dtype=torch.int32), batch_invariant)
        self.slots, self.lengths = torch.zeros((2, bucket.rows), dtype=torch.int32)
        self.starts = torch.zeros(bucket.rows + 1, dtype=torch.int32)
        self.planned = self._plan(None)

    def plan(self, queries: list[int], lengths: list[int]) -> None:
        """Plan a batch into what was planned first; what is past its rows pads it."""
        self.starts.fill_(sum(queries))
        self.starts[: len(queries) + 1] = torch.tensor([0, *queries]).cumsum(0)
        self.lengths.zero_()[: len(lengths)] = torch.tensor(lengths)
        self._plan(self.planned)

    def _plan(self, captured: AttentionMetadata | None) -> AttentionMetadata:
        rows = AttentionBatch(
            host_query_starts=self.starts.numpy(),
            host_sequence_lengths=self.lengths.numpy(),
            query_starts=self.starts,
            sequence_lengths=self.lengths,
            slots=self.slots,
            max_query_length=self.bucket.max_query_length,
            max_sequence_length=4800,
            num_tokens=self.bucket.tokens,
            captured=captured,
        )
        kernels = pyllm_kernels.select("triton", CPU)
        return kernels[plan_attention](rows.metadata(self.group), SHAPE, captured)


def used(tasks: Tensor | None) -> list[tuple[int, int]]:
    return [] if tasks is None else [(row, number) for row, number in tasks.tolist() if row >= 0]


@settings(max_examples=cases(20))
@given(
    bucket=st.sampled_from(BUCKETS),
    batches=st.lists(QUERIES, min_size=1, max_size=3),
    contexts=st.lists(st.integers(0, 3000), min_size=64, max_size=64),
    batch_invariant=st.booleans(),
)
def test_every_query_of_a_padded_batch_has_its_tasks(
    bucket: Bucket, batches: list[list[int]], contexts: list[int], batch_invariant: bool
) -> None:
    from pyllm_kernels.gpu.paged_attention.attention_tasks import queries_of_tile
    from pyllm_kernels.gpu.paged_attention.attention_tuning import decode_tile, prefill_tile

    block_q = queries_of_tile(SHAPE.heads // SHAPE.kv_heads, prefill_tile(card_of(CPU), 16, 4))
    block_n = decode_tile(card_of(CPU), 16, 4).block_n
    buffers = Buffers(bucket, batch_invariant)
    for wanted in batches:  # One after the other: nothing of the batch before may stay.
        queries: list[int] = []
        for query in wanted[: bucket.rows]:
            queries.append(min(query, bucket.max_query_length))
            if sum(queries) > bucket.tokens:
                queries.pop()
        lengths = [query + context for query, context in zip(queries, contexts, strict=False)]
        buffers.plan(queries, lengths)
        tasks = buffers.planned.tasks
        assert sorted(used(tasks.tiles)) == [
            (row, first)
            for row, query in enumerate(queries)
            if query > 1 or batch_invariant
            for first in range(0, query, block_q)
        ]
        decoded = {row: lengths[row] for row, query in enumerate(queries) if query == 1 and not batch_invariant}
        if tasks.shares is None:
            assert not decoded
            continue
        size, begins = int(tasks.share_tiles), tasks.row_begins.tolist()
        found = [
            (row, tile)
            for share, (first, last) in enumerate(tasks.shares.tolist())
            for row in range(first, last + 1)
            if row in decoded
            for tile in range(-(-decoded[row] // block_n))
            if (begins[row] + tile) // size == share
        ]
        assert found == [(row, tile) for row, length in decoded.items() for tile in range(-(-length // block_n))]
