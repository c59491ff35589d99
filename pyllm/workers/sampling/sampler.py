"""Samples token ids from logits and one uniform number a row. Owns no generator; knows neither slots nor requests.

The filters apply in vLLM's order: temperature, min-p, top-k, top-p, each on the tokens that the one before left. The
token is the inverse of the cumulative distribution over ascending ids: the first id whose sum exceeds
`uniform * total`.
"""

from dataclasses import dataclass

import torch
from pyllm_kernels import cpu
from torch import Tensor

from pyllm.workers.step.staging import to_device

# The number of best candidates that top-k and top-p consider first; a row that needs more is sorted whole.
_NUM_CANDIDATES = 1024
# Rows whose weights stay in a CPU's second-level cache from one pass to the next.
_CPU_ROWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The parameters of each row of logits; on the host if code below branches on them, so that a GPU need not wait."""

    temperature: Tensor  # float32 [rows], 0: greedy
    top_k: Tensor  # int32 [rows], 0: off
    top_p: Tensor  # float32 [rows], 1: off
    min_p: Tensor  # float32 [rows], 0: off

    def select(self, rows: Tensor) -> "SamplingRows":
        """The parameters of some rows."""
        return SamplingRows(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


def sample(logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor | None = None) -> Tensor:
    """Choose tokens like `sample_by_torch`, but with a kernel: a greedy batch costs one pass over the logits."""
    if logits.is_cuda:
        return sample_by_kernel(logits, parameters, uniforms, rows)
    if logits.dtype is torch.float16:
        return sample_by_torch(logits.float(), parameters, uniforms, rows)
    rows = None if rows is None else rows.to(torch.int32)
    if bool((parameters.temperature == 0).all()):
        return cpu.sample_greedily(logits, rows)
    numbers = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    return cpu.sample(logits, *numbers, uniforms, rows)


def sample_by_torch(logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor | None = None) -> Tensor:
    """Choose tokens: logits float32 [rows, vocabulary], uniforms float32 [samples] -> int32 [samples].

    `rows` int64 [samples] names the row of logits that each sample is drawn from; None: every row once, in order.
    A greedy row takes the first of equal logits, and if top-k or top-p cut through equal ones, they keep lower ids. A
    token of probability zero is never chosen: the sample is -1 if no logit is above minus infinity. Among infinite
    logits the first is chosen, at any temperature. NaNs are ignored.
    """
    logits = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    greatest, best = logits.max(dim=-1)  # [rows]
    best = torch.where(greatest == -torch.inf, -1, best).to(torch.int32)
    greedy = parameters.temperature == 0
    if bool(greedy.all()):
        return best if rows is None else best[rows]
    limited = ~greedy & ((parameters.top_k > 0) | (parameters.top_p < 1))
    certain = greatest.isinf()  # No token is allowed, or the best logit is infinite.
    logits.masked_fill_(certain.unsqueeze(-1), 0)  # any finite values, to sample without NaNs
    tokens = torch.empty(len(uniforms), dtype=torch.int32, device=logits.device)
    at_once = _CPU_ROWS_AT_ONCE if logits.device.type == "cpu" else len(logits)
    for samples, choose in ((greedy, _argmax), (~greedy & ~limited, _from_all), (limited, _from_best)):
        for some in torch.split(samples.nonzero().flatten(), at_once):
            there = some.to(logits.device)
            their_logits = logits[there if rows is None else rows[there]]
            tokens[there] = choose(their_logits, parameters.select(some), uniforms[there]).to(torch.int32)
    return torch.where(certain, best, tokens) if rows is None else torch.where(certain[rows], best[rows], tokens)


def sample_by_kernel(logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor | None = None) -> Tensor:
    """Choose tokens like `sample` with the Triton kernel: one launch for all rows, without waiting for it."""
    if rows is None:
        rows = torch.arange(len(uniforms), device=logits.device)
    # One copy for all: integers are copied as the bits of floats.
    numbers = (parameters.temperature, parameters.top_p, parameters.min_p, parameters.top_k.view(torch.float32))
    packed = to_device(torch.stack(numbers), logits.device)
    temperature, top_p, min_p = packed[:3]
    on_device = SamplingRows(temperature, packed[3].view(torch.int32), top_p, min_p)
    return sample_on_device(logits, on_device, uniforms, rows.to(torch.int32))


def sample_on_device(logits: Tensor, parameters: SamplingRows, uniforms: Tensor, rows: Tensor) -> Tensor:
    """Choose tokens like `sample_by_kernel`, with all inputs on the device, `rows` int32: a graph can hold it."""
    from pyllm_kernels.gpu import sampling

    numbers = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    return sampling.sample(logits, *numbers, uniforms, rows)


def _argmax(logits: Tensor, parameters: SamplingRows, uniforms: Tensor) -> Tensor:
    del parameters, uniforms
    return logits.argmax(dim=-1)


def _from_all(logits: Tensor, parameters: SamplingRows, uniforms: Tensor) -> Tensor:
    return _invert(_weights(logits, parameters), uniforms)


def _from_best(logits: Tensor, parameters: SamplingRows, uniforms: Tensor) -> Tensor:
    weights = _weights(logits, parameters)
    num_candidates = min(_NUM_CANDIDATES, weights.shape[1])
    best, ids = weights.topk(num_candidates)
    kept = _num_kept(best, weights, parameters)  # [rows]
    # If the last kept candidate equals the last of all, tokens beyond the candidates may have the same weight.
    last = best.gather(1, (kept - 1).unsqueeze(-1)).squeeze(-1)
    incomplete = (last == best[:, -1]) | (parameters.top_k.to(weights.device) > num_candidates)
    tokens = _from_candidates(best, ids, kept, uniforms)
    if num_candidates < weights.shape[1] and bool(incomplete.any()):
        best, ids = weights[incomplete].sort(dim=-1, descending=True)
        kept = _num_kept(best, weights[incomplete], parameters.select(incomplete.cpu()))
        tokens[incomplete] = _from_candidates(best, ids, kept, uniforms[incomplete])
    return tokens


def _weights(logits: Tensor, parameters: SamplingRows) -> Tensor:
    """Probabilities relative to the largest, [rows, vocabulary]; those below min-p are zero.

    Subtracting the maximum first keeps every temperature, however small, from overflowing.
    """
    temperature = parameters.temperature.to(logits.device).unsqueeze(-1)
    weights = (logits - logits.amax(dim=-1, keepdim=True)).div_(temperature).exp_()
    if bool((parameters.min_p > 0).any()):
        weights.masked_fill_(weights < parameters.min_p.to(logits.device).unsqueeze(-1), 0)
    return weights


def _num_kept(best: Tensor, weights: Tensor, parameters: SamplingRows) -> Tensor:
    """The number of the sorted `best` [rows, candidates] that top-k and top-p keep, at least one; int64 [rows]."""
    top_k = parameters.top_k.to(best.device).unsqueeze(-1)
    top_p = parameters.top_p.to(best.device, torch.float64).unsqueeze(-1)
    in_top_k = (torch.arange(best.shape[1], device=best.device) < top_k) | (top_k == 0)
    sums = best.masked_fill(~in_top_k, 0).cumsum(dim=-1, dtype=torch.float64)
    total = torch.where(top_k > 0, sums[:, -1:], weights.sum(dim=-1, keepdim=True, dtype=torch.float64))
    before = sums.roll(1, dims=-1)
    before[:, 0] = 0
    in_top_p = (before < top_p * total) | (top_p >= 1)
    return (in_top_k & in_top_p & (best > 0)).sum(dim=-1).clamp_(min=1)


def _from_candidates(best: Tensor, ids: Tensor, kept: Tensor, uniforms: Tensor) -> Tensor:
    """Choose among the first `kept` of the candidates, equal ones taken by ascending id."""
    ids, order = ids.sort(dim=-1)
    weights = best.gather(1, order)
    ranking = torch.sort(weights, dim=-1, descending=True, stable=True).indices
    chosen = torch.arange(best.shape[1], device=best.device) < kept.unsqueeze(-1)
    chosen = torch.empty_like(chosen).scatter_(1, ranking, chosen)
    return ids.gather(1, _invert(weights.masked_fill(~chosen, 0), uniforms).unsqueeze(-1)).squeeze(-1)


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first index of each row whose cumulative weight exceeds `uniform * total`; int64 [rows]."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:].contiguous()
    found = torch.searchsorted(sums, uniforms.to(torch.float64).unsqueeze(-1) * total, right=True)
    # A uniform that rounds to one exceeds all sums: use the last token with any weight, where the sum is the total.
    return torch.minimum(found, torch.searchsorted(sums, total)).squeeze(-1)
