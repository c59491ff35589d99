"""Paged attention in Triton: rows of one query token go to the decode kernel, longer ones to the prefill kernel.

Which kernel computes a row follows from that row alone, and so does its result. It does not know the tiles' arithmetic.
"""

import torch
from torch import Tensor

from pyllm_kernels.attention_decode import decode_attention
from pyllm_kernels.attention_prefill import prefill_attention
from pyllm_kernels.metadata import AttentionMetadata


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    if query.dtype is torch.bfloat16 and not query.is_cuda:
        raise ValueError("Triton's interpreter gets bfloat16 dot products wrong: use float32 or float16, or a GPU")
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    num_rows = metadata.slots.shape[0]
    # A lone row is of one kind. Of several rows the host knows the longest only: each kernel passes over
    # the rows of the other kind, which costs it next to nothing.
    if metadata.max_query_length > 1:
        prefill_attention(query, key_cache, value_cache, metadata, scale, output)
    if metadata.max_query_length == 1 or num_rows > 1:
        decode_attention(query, key_cache, value_cache, metadata, scale, output)
    return output
