"""Random paged batches and attention over them written for clarity: float64, one head of one token at a time."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from pyllm_kernels import RELATIVE_BIAS_PADDING, AttentionLayer, AttentionMetadata
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class PagedBatch:
    query: Tensor  # [tokens, heads, head_dim]
    key_cache: Tensor  # [num_blocks, block_size, kv_heads, head_dim]
    value_cache: Tensor
    metadata: AttentionMetadata
    layer: AttentionLayer

    def expected(self) -> Tensor:
        """Float64 [tokens, heads, head_dim], by the definition of attention."""
        query, key_cache, value_cache = (
            t.double().cpu().numpy() for t in (self.query, self.key_cache, self.value_cache)
        )
        tables, slots, starts, lengths = (
            t.tolist()
            for t in (
                self.metadata.block_tables,
                self.metadata.slots,
                self.metadata.query_starts,
                self.metadata.sequence_lengths,
            )
        )
        block_size, kv_heads = key_cache.shape[1:3]
        output = np.empty_like(query)
        for row, slot in enumerate(slots):
            for token in range(starts[row], starts[row + 1]):
                position = lengths[row] - starts[row + 1] + token
                first = 0 if self.layer.window is None else max(0, position + 1 - self.layer.window)
                end = position + 1
                if self.layer.bidirectional:
                    end = min(position + (self.layer.window or lengths[row]), lengths[row])
                cells = [(tables[slot][p // block_size], p % block_size) for p in range(first, end)]
                blocks, offsets = zip(*cells, strict=True)
                keys, values = key_cache[blocks, offsets], value_cache[blocks, offsets]
                for head in range(query.shape[1]):
                    kv_head = head // (query.shape[1] // kv_heads)
                    scores = keys[:, kv_head] @ query[token, head] * self.layer.scale
                    if (cap := self.layer.soft_cap) is not None:
                        scores = cap * np.tanh(scores / cap)
                    if self.layer.slopes is not None:
                        scores = scores - float(self.layer.slopes[head]) * np.abs(np.arange(first, end) - position)
                    if self.layer.relative_bias is not None:
                        middle = (self.layer.relative_bias.shape[1] - RELATIVE_BIAS_PADDING) // 2
                        scores = (
                            scores + self.layer.relative_bias[head, middle + np.arange(first, end) - position].numpy()
                        )
                    sink = -np.inf if self.layer.sinks is None else float(self.layer.sinks[head])
                    greatest = max(scores.max(), sink)
                    weights = np.exp(scores - greatest)
                    total = weights.sum() + np.exp(sink - greatest)
                    output[token, head] = weights @ values[:, kv_head] / total
        return torch.from_numpy(output)

    def tokens_of(self, row: int) -> slice:
        return slice(*self.metadata.query_starts[row : row + 2].tolist())

    def row(self, row: int) -> "PagedBatch":
        """The batch of that row alone, over the same cache."""
        tokens = self.tokens_of(row)
        metadata = replace(
            self.metadata,
            slots=self.metadata.slots[row : row + 1],
            sequence_lengths=self.metadata.sequence_lengths[row : row + 1],
            max_sequence_length=int(self.metadata.sequence_lengths[row]),
        )
        return replace(self, metadata=metadata).one_row_of(self.query[tokens])

    def tail(self, length: int) -> "PagedBatch":
        """The last `length` tokens of a batch of one row, the others being context."""
        return self.one_row_of(self.query[-length:])

    def windowed(self, window: int | None, soft_cap: float | None = None) -> "PagedBatch":
        """The same batch for a layer with a window, or a cap of scores; blocks out of the window are poisoned."""
        batch = replace(self, layer=replace(self.layer, window=window, soft_cap=soft_cap))
        return batch if window is None else batch._without_passed(window)

    def with_sinks(self) -> "PagedBatch":
        """The same batch for a layer with sinks: of the first head far above all scores, of the last far below."""
        return replace(
            self, layer=replace(self.layer, sinks=torch.linspace(30, -30, self.query.shape[1]).to(self.query.device))
        )

    def with_slopes(self) -> "PagedBatch":
        """The same batch for a layer with slopes: the first head's makes the near tokens outweigh all others."""
        slopes = torch.logspace(0, -3, self.query.shape[1]).to(self.query.device)
        return replace(self, layer=replace(self.layer, slopes=slopes))

    def with_relative_bias(self) -> "PagedBatch":
        """The same batch for a layer with a bias by distance, as long as the longest row needs."""
        length = int(self.metadata.sequence_lengths.max())
        bias = torch.randn(
            self.query.shape[1], 2 * length + RELATIVE_BIAS_PADDING, generator=torch.Generator().manual_seed(1)
        )
        return replace(self, layer=replace(self.layer, relative_bias=bias))

    def bidirectional(self) -> "PagedBatch":
        """The same batch for a layer whose tokens see later ones, too."""
        return replace(self, layer=replace(self.layer, bidirectional=True))

    def _without_passed(self, window: int) -> "PagedBatch":
        tables, caches = self.metadata.block_tables.clone(), (self.key_cache.clone(), self.value_cache.clone())
        for row, slot in enumerate(self.metadata.slots.tolist()):
            tokens = self.tokens_of(row)
            context = int(self.metadata.sequence_lengths[row]) - (tokens.stop - tokens.start)
            passed = tables[slot, : max(0, context + 1 - window) // self.key_cache.shape[1]]
            for cache in caches:
                cache[passed.long()] = torch.nan
            passed.fill_(-1)
        metadata = replace(self.metadata, block_tables=tables)
        return replace(self, key_cache=caches[0], value_cache=caches[1], metadata=metadata)

    def invariant(self) -> "PagedBatch":
        """The same batch, asked to give each row the bits that it gets alone."""
        return replace(self, metadata=replace(self.metadata, batch_invariant=True))

    def one_row_of(self, query: Tensor) -> "PagedBatch":
        length = query.shape[0]
        starts = torch.tensor([0, length], dtype=torch.int32, device=query.device)
        metadata = replace(self.metadata, query_starts=starts, max_query_length=length, num_tokens=length)
        return replace(self, query=query, metadata=metadata)


def paged_batch(rows: list[tuple[int, int]], shape: Shape, device: torch.device, seed: int = 0) -> PagedBatch:
    """Rows of (query length, tokens in the cache before them), their blocks and slots shuffled.

    What no row may read is poisoned: NaN in the cells past a sequence's end and in free blocks, and -1 in the unused
    entries of the block tables.
    """
    rng = np.random.default_rng(seed)
    lengths = [query + context for query, context in rows]
    needed = [-(-length // shape.block_size) for length in lengths]
    num_blocks, max_blocks, max_num_seqs = sum(needed) + 3, max(needed) + 2, len(rows) + 2
    free = rng.permutation(num_blocks).tolist()
    slots = rng.permutation(max_num_seqs)[: len(rows)]
    tables = np.full((max_num_seqs, max_blocks), -1)
    cache_shape = (num_blocks, shape.block_size, shape.kv_heads, shape.head_dim)
    key_cache, value_cache = np.full(cache_shape, np.nan), np.full(cache_shape, np.nan)
    for slot, length in zip(slots, lengths, strict=True):
        for start in range(0, length, shape.block_size):
            block, used = free.pop(), min(length - start, shape.block_size)
            tables[slot, start // shape.block_size] = block
            key_cache[block, :used] = rng.standard_normal((used, shape.kv_heads, shape.head_dim))
            value_cache[block, :used] = rng.standard_normal((used, shape.kv_heads, shape.head_dim))
    starts = np.concatenate([[0], np.cumsum([query for query, _ in rows])])
    query = rng.standard_normal((starts[-1], shape.heads, shape.head_dim))

    def int32(values: np.ndarray | list[int]) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.int32, device=device)

    metadata = AttentionMetadata(
        block_tables=int32(tables),
        slots=int32(slots),
        query_starts=int32(starts),
        sequence_lengths=int32(lengths),
        max_query_length=max(query for query, _ in rows),
        max_sequence_length=max(lengths),
        num_tokens=int(starts[-1]),
    )
    tensors = (torch.tensor(t, dtype=shape.dtype, device=device) for t in (query, key_cache, value_cache))
    return PagedBatch(*tensors, metadata=metadata, layer=AttentionLayer(shape.head_dim**-0.5))
