"""The product of each token with the low-rank matrices of its adapter."""

from dataclasses import dataclass

import numpy as np

from pyllm_kernels import _cpu
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Tensor, rounded, split, widened


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """The matrices of several adapters for one linear layer, whose outputs may be several parts side by side.

    - `down` [adapters, parts * max_rank, in_features] and `up` [adapters, max_rank, out_features], of the dtype of x,
      contiguous. The factor alpha / rank of an adapter is in `up`.
    - `ranks` int32 [adapters, parts]: the rows of a part that count, 0 where the adapter leaves the part alone.
    - `sizes`: the columns of each part.

    The tensors may be filled anew between two steps; a graph reads their content at each replay.
    """

    down: Tensor
    up: Tensor
    ranks: Tensor
    sizes: tuple[int, ...]


def _add_lora(x: Array, out: Array, adapters: Array, matrices: LoraMatrices) -> Array:
    parts, max_rank = len(matrices.sizes), matrices.up.shape[1]
    adapters = adapters[: len(x)]
    for adapter in np.unique(adapters[adapters >= 0]):
        tokens = np.flatnonzero(adapters == adapter)
        rows = x[tokens].astype(np.float64)
        down = matrices.down[adapter].reshape(parts, max_rank, -1).astype(np.float64)
        up = split(matrices.up[adapter], matrices.sizes)
        for part, columns in enumerate(split(out, matrices.sizes)):
            rank = matrices.ranks[adapter, part]
            if rank:
                inner = widened(rows @ down[part, :rank].T)
                delta = widened(inner.astype(np.float64) @ up[part][:rank].astype(np.float64))
                columns[tokens] = rounded(widened(columns[tokens]) + delta, out)
    return out


@op(reference=_add_lora, triton="pyllm_kernels.gpu.lora")
def add_lora(x: Tensor, out: Tensor, adapters: Tensor, matrices: LoraMatrices) -> Tensor:
    """Add to `out` the products of x with the low-rank matrices of each token's adapter (LoRA, arXiv 2106.09685).

    With a = adapters[t], in each part of the columns: `out[t] += up[a, :rank].T @ (down[a, its rows :rank] @ x[t])`.

    x [tokens, in_features], contiguous; out [tokens, sum of sizes], of the dtype of x, contiguous or some columns of a
    wider tensor: it changes in place and is returned. adapters int32 [tokens] or longer, -1 for a token without one,
    which stays as it is; a graph reads as many as it replays tokens. Sums are float32, and each result is rounded once:
    `round(float32(out) + sum)`. On a CPU a row's result does not depend on other rows.

    Raises:
        ValueError: shapes, strides or dtypes do not fit.
        IndexError: on a CPU, an adapter is not in the tables, or a rank is not from 0 to max_rank.
    """
    _cpu.ops.add_lora(x, out, adapters, matrices)
    return out
