"""Sampling: from logits and one uniform number each to token ids. Owns no generator and knows no request.

The filters apply in vLLM's order: temperature, min-p, top-k, top-p, each on the tokens that the one before left. The
token is the inverse of the cumulative distribution over ascending ids: the first id whose sum exceeds
`uniform * total`.
"""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, widened


def _sample(
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    uniforms: Array,
    rows: Array | None = None,
) -> Array:
    tokens = np.empty(len(uniforms), np.int32)
    parameters = zip(temperature, top_k, top_p, min_p, uniforms, strict=True)
    for index, numbers in enumerate(parameters):
        row = logits[index if rows is None else rows[index]]
        tokens[index] = _token(np.nan_to_num(widened(row), nan=-np.inf, posinf=np.inf, neginf=-np.inf), *numbers)
    return tokens


@op(reference=_sample, triton="pyllm_kernels.gpu.sampling")
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Choose tokens from logits [rows, vocabulary] -> int32 [samples]; -1 if no logit is above minus infinity.

    - temperature float32 [samples]; 0 takes the first of the greatest logits. If all are 0, logits are read once.
    - top_k int32 [samples], 0: off; top_p float32 [samples], 1: off; min_p float32 [samples], 0: off.
    - uniforms float32 [samples], at least 0 and below 1.
    - rows int32 [samples], the row of logits that each sample is drawn from; None: sample i has row i.

    If top-k or top-p cut through equal logits, they keep lower ids. A token of probability zero is never chosen. Among
    infinite logits the first is chosen, at any temperature. NaNs are ignored.
    """
    out = graph.empty((len(uniforms),), logits, "int32")
    parameters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "uniforms": uniforms}
    _cpu.ops.sample(logits, rows, parameters if temperature.any() else None, out)
    return out


def _token(logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    """The token of one row of logits without NaNs."""
    best = int(logits.argmax())
    if logits[best] == -np.inf:
        return -1
    if temperature == 0 or np.isinf(logits[best]):
        return best
    sums = filtered_weights(logits, temperature, top_k, top_p, min_p).cumsum(dtype=np.float64)
    found = int(np.searchsorted(sums, np.float64(uniform) * sums[-1], side="right"))
    # A uniform that rounds to one exceeds all sums: use the last token with any weight, where the sum is the total.
    return min(found, int(np.searchsorted(sums, sums[-1])))


def filtered_weights(logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> Floats:
    """The probability of each token, times the same number, after the filters; float32 [vocabulary], as `logits`.

    The logits have no NaN and a finite maximum, the temperature is above 0; other parameters as in `sample`.
    """
    # Subtracting the maximum first keeps every temperature, however small, from overflowing.
    weights = np.exp((logits - logits.max()) / np.float32(temperature))
    weights[weights < np.float32(min_p)] = 0
    order = np.argsort(-weights, kind="stable")  # equal ones by ascending id
    kept = order[:top_k] if top_k > 0 else order
    if top_p < 1:
        sums = weights[kept].cumsum(dtype=np.float64)
        kept = kept[np.concatenate(([0.0], sums[:-1])) < np.float64(top_p) * sums[-1]]
        kept = order[: max(1, len(kept))]
    chosen: Floats = np.zeros_like(weights)
    chosen[kept] = weights[kept]
    return chosen
