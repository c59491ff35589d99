"""Random paged batches of any size, made on the device. Knows torch and the kernels' metadata only."""

from dataclasses import dataclass

import torch
from pyllm_kernels import AttentionLayer, AttentionMetadata, AttentionShape
from torch import Tensor


@dataclass(frozen=True)
class PagedBatch:
    """The arguments of `paged_attention`."""

    query: Tensor  # [tokens, heads, head_dim]
    key_cache: Tensor  # [num_blocks, block_size, kv_heads, head_dim]
    value_cache: Tensor
    metadata: AttentionMetadata
    shape: AttentionShape

    @property
    def layer(self) -> AttentionLayer:
        return AttentionLayer(scale=float(self.shape.head_dim**-0.5), value_start=self.shape.value_start)


def paged_batch(
    rows: list[tuple[int, int]],
    shape: AttentionShape,
    device: torch.device,
    *,
    block_size: int = 16,
    in_order: bool = False,
    cache_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
) -> PagedBatch:
    """Rows of (query tokens, tokens in the cache before them); blocks lie in random order, or in that of the rows."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([query + context for query, context in rows])
    num_blocks = (lengths + block_size - 1) // block_size
    total = int(num_blocks.sum())
    order = torch.arange(total) if in_order else torch.randperm(total, generator=generator)
    tables = torch.zeros((len(rows), int(num_blocks.max())), dtype=torch.int32)
    for row, blocks in enumerate(order.split(num_blocks.tolist())):
        tables[row, : len(blocks)] = blocks
    starts = torch.tensor([0, *(query for query, _ in rows)]).cumsum(0)
    dtype = getattr(torch, shape.dtype)
    query = torch.randn((int(starts[-1]), shape.heads, shape.head_dim), dtype=dtype, device=device)
    cells = (total, block_size, shape.kv_heads, shape.head_dim)
    keys, values = (torch.randn(cells, dtype=dtype, device=device) for _ in range(2))
    metadata = AttentionMetadata(
        block_tables=tables.to(device),
        slots=torch.arange(len(rows), dtype=torch.int32, device=device),
        query_starts=starts.to(device, torch.int32),
        sequence_lengths=lengths.to(device, torch.int32),
        max_query_length=max(query for query, _ in rows),
        max_sequence_length=int(lengths.max()),
        num_tokens=int(starts[-1]),
        batch_invariant=batch_invariant,
    )
    cache_dtype = cache_dtype or dtype
    keys = keys.to(cache_dtype)
    return PagedBatch(query, keys, keys if shape.value_start else values.to(cache_dtype), metadata, shape)
