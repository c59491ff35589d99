"""Paged attention in Triton: rows of one query token go to the decode kernel, longer ones to the prefill kernel.

The kernel for a row depends on that row alone. With `batch_invariant` it is the prefill kernel for all rows, which adds
up in an order fixed by position. Does not know the arithmetic of tiles.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor

from pyllm_kernels.cards import card_of
from pyllm_kernels.gpu.paged_attention.attention_decode import decode_attention
from pyllm_kernels.gpu.paged_attention.attention_prefill import prefill_attention
from pyllm_kernels.gpu.paged_attention.attention_tasks import make_tasks
from pyllm_kernels.gpu.paged_attention.attention_tuning import DecodeTile, PrefillTile, decode_tile, prefill_tile
from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata, AttentionShape, AttentionTasks
from pyllm_kernels.tensors import dtype_name, numpy_dtype


def plan_attention(
    metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None
) -> AttentionMetadata:
    if not shape.heads:
        return metadata  # of a model without attention
    device = metadata.slots.device
    into = None if planned is None else planned.tasks
    dtypes = shape.dtype, shape.cache_dtype or shape.dtype
    tiles = _tiles(shape.head_dim, shape.value_start, *dtypes, device)
    return replace(metadata, tasks=make_tasks(metadata, shape, *tiles, card_of(device), into))


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
) -> Tensor:
    if query.dtype is torch.bfloat16 and key_cache.dtype is not torch.float8_e4m3fn and not query.is_cuda:
        raise ValueError("Triton's interpreter gets bfloat16 dot products wrong: use float32 or float16, or a GPU")
    if layer.relative_bias is not None:
        raise ValueError("a relative position bias is not there in Triton: use the backend cpu, or sdpa for attention")
    tasks = metadata.tasks
    if tasks is None:
        dtypes = dtype_name(query.dtype), dtype_name(key_cache.dtype)
        sizes = query.shape[1], key_cache.shape[2], query.shape[2]
        shape = AttentionShape(*sizes, *dtypes, value_start=layer.value_start)
        metadata = plan_attention(metadata, shape)
        tasks = metadata.tasks
    assert isinstance(tasks, AttentionTasks)
    dtypes = dtype_name(query.dtype), dtype_name(key_cache.dtype)
    prefill, decode = _tiles(query.shape[2], layer.value_start, *dtypes, query.device)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    # Each kernel skips the rows of the other kind: they are not among its tasks.
    if tasks.tiles is not None:
        prefill_attention(query, key_cache, value_cache, metadata, layer, prefill, output)
    if tasks.shares is not None:
        decode_attention(query, key_cache, value_cache, metadata, layer, decode, output)
    return output[..., : layer.value_size].contiguous()


@functools.cache
def _tiles(
    head_dim: int, value_start: int, dtype: str, cache_dtype: str, device: torch.device
) -> tuple[PrefillTile, DecodeTile]:
    sizes = numpy_dtype(dtype).itemsize, numpy_dtype(cache_dtype).itemsize
    arguments = card_of(device), max(next_power_of_2(head_dim - value_start), 16), *sizes, value_start > 0
    return prefill_tile(*arguments), decode_tile(*arguments)
