"""Log-probabilities of tokens."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, widened

EXPONENTIAL_UNIT = 2.0**-42
"""Exponentials up to 1 are summed as integers in this unit: exactly, so in any order, for up to 2^20 of them."""


def _logprobs(logits: Array, rows: Array, chosen: Array, num_top: int) -> tuple[Array, Array, Array]:
    wide = np.nan_to_num(widened(logits[rows]), nan=-np.inf, posinf=np.inf, neginf=-np.inf)  # [samples, vocabulary]
    ids = chosen[:, None]
    ranks = (wide >= np.take_along_axis(wide, ids, 1)).sum(-1, dtype=np.int32)
    ids = np.concatenate((ids, _first_best(wide, num_top)), axis=-1, dtype=np.int32)
    greatest = wide.max(-1, keepdims=True)
    exponentials = np.nan_to_num(np.exp(wide - greatest).astype(np.float64), nan=0.0)
    sums = np.round(exponentials / EXPONENTIAL_UNIT).astype(np.int64).sum(-1, keepdims=True) * EXPONENTIAL_UNIT
    told = np.take_along_axis(wide, ids, 1).astype(np.float64)
    values = np.where(told == -np.inf, told, told - greatest - np.log(sums))
    return ids, values.astype(np.float32), ranks


@op(reference=_logprobs, triton="pyllm_kernels.gpu.logits")
def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of a token for each sample, and of the likeliest tokens, from unedited logits.

    logits [rows, vocabulary], with a finite maximum; rows and chosen int32 [samples], the row and token of each sample
    -> ids int32 and values float32 [samples, 1 + num_top], ranks int32 [samples]. The token itself comes first,
    then the likeliest, best first, the lower id first among equals. The rank is the number of logits that are at least
    as great as the token's. A row's result does not depend on other rows, also on a GPU; a NaN counts as minus
    infinity.
    """
    shape = len(rows), 1 + num_top
    ids, values = graph.empty(shape, logits, "int32"), graph.empty(shape, logits, "float32")
    ranks = graph.empty(shape[:1], logits, "int32")
    _cpu.ops.logprobs(logits, rows, chosen, num_top, ids, values, ranks)
    return ids, values, ranks


def _first_best(numbers: Floats, count: int) -> Array:
    """The indices of the greatest numbers of each row, equal ones by ascending index; int64 [rows, count]."""
    order: Array = np.argsort(-numbers, axis=-1, kind="stable")[:, :count]
    return order
