"""`x @ weight.T` on a GPU in one tile shape and one order of sums, whatever the number of rows: for `batch_invariant`.

cuBLAS picks a kernel by the batch, and a row's last bits with it. This one is slower, most of all for few rows, and
makes no attempt to be otherwise: it does not split the sum, nor look at the batch.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cpu_linear import PackedLinear
from pyllm_kernels.gpu import linear_packed

_BLOCK_M = 64
_ROWS_OF_A_GROUP = 8


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None) -> Tensor:
    if packed.factors:
        return linear_packed.packed_linear(x, packed, out)  # which is so for quantised weights
    if packed.format not in {"float32", "bfloat16", "float16"}:
        raise ValueError(f"weights are {packed.format}: batch-invariant products on a GPU are of floats or quantised")
    tokens, in_features = x.shape
    out_features = packed.data.shape[0]
    if packed.data.shape[1] != in_features or x.dtype is not packed.dtype or not x.is_contiguous():
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} with strides {x.stride()}: the weight takes contiguous {packed.dtype} "
            f"[tokens, {packed.data.shape[1]}]"
        )
    output = torch.empty((tokens, out_features), dtype=x.dtype, device=x.device) if out is None else out
    narrow = x.element_size() == 2
    block_n = 64 if narrow else 32
    grid = (triton.cdiv(tokens, _BLOCK_M) * triton.cdiv(out_features, block_n),)
    _linear_kernel[grid](
        x,
        packed.data,
        output,
        tokens,
        output.stride(0),
        IN_FEATURES=in_features,
        OUT_FEATURES=out_features,
        BLOCK_M=_BLOCK_M,
        BLOCK_N=block_n,
        BLOCK_K=64 if narrow else 32,
        GROUP_M=_ROWS_OF_A_GROUP,
        num_warps=4,
        num_stages=4 if narrow else 2,
        enable_fp_fusion=True,
    )
    return output


# A compiler that knew the rows to be 1, or a multiple of 16, might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _linear_kernel(
    x_ptr,
    weight_ptr,
    output_ptr,
    tokens,
    output_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    # Programs that run side by side share rows of the weight, GROUP_M blocks of tokens at a time.
    program = tl.program_id(0)
    blocks_m = tl.cdiv(tokens, BLOCK_M)
    programs_of_group = GROUP_M * tl.cdiv(OUT_FEATURES, BLOCK_N)
    first_m = program // programs_of_group * GROUP_M
    size_m = tl.minimum(blocks_m - first_m, GROUP_M)
    block_m = first_m + program % programs_of_group % size_m
    block_n = program % programs_of_group // size_m

    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * IN_FEATURES + columns[None, :]
    weight_ptrs = weight_ptr + outputs.to(tl.int64)[:, None] * IN_FEATURES + columns[None, :]
    accumulator = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        if IN_FEATURES % BLOCK_K == 0:
            x = tl.load(x_ptrs + start, mask=(rows < tokens)[:, None], other=0.0)
            weight = tl.load(weight_ptrs + start, mask=(outputs < OUT_FEATURES)[:, None], other=0.0)
        else:
            inside = (start + columns < IN_FEATURES)[None, :]
            x = tl.load(x_ptrs + start, mask=(rows < tokens)[:, None] & inside, other=0.0)
            weight = tl.load(weight_ptrs + start, mask=(outputs < OUT_FEATURES)[:, None] & inside, other=0.0)
        accumulator = tl.dot(x, tl.trans(weight), accumulator, input_precision="ieee")
    output_ptrs = output_ptr + rows.to(tl.int64)[:, None] * output_stride + outputs[None, :]
    mask = (rows < tokens)[:, None] & (outputs < OUT_FEATURES)[None, :]
    tl.store(output_ptrs, accumulator.to(output_ptr.dtype.element_ty), mask=mask)
