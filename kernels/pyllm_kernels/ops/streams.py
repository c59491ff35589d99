"""Several residual streams of a token side by side, one of which each layer computes (AltUp, arXiv 2301.13310)."""

import numpy as np

from pyllm_kernels import _cpu, graph
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Array, Floats, Tensor, rounded, widened

_LEAST_SQUARE = np.float32(1e-5)


def _apart(x: Array, count: int) -> Floats:
    return widened(x).reshape(len(x), count, -1)  # [tokens, count, hidden]


def _predict_streams(x: Array, coefficients: Array) -> Array:
    count = round(coefficients.shape[1] ** 0.5)
    streams, factors = _apart(x, count), _apart(coefficients, count)
    return rounded((streams + factors @ streams).reshape(x.shape), x)


@op(reference=_predict_streams, triton="pyllm_kernels.gpu.streams")
def predict_streams(x: Tensor, coefficients: Tensor) -> Tensor:
    """Add to each stream a sum of all: stream j times `coefficients[i * count + j]` for stream i; in float32.

    x [tokens, count * hidden] and coefficients [tokens, count * count], of one dtype -> [tokens, count * hidden].
    """
    out = graph.empty(x.shape, x)
    _cpu.ops.predict_streams(x, coefficients, out)
    return out


def _correct_streams(x: Array, activated: Array, coefficients: Array, active: int, scale: Array) -> tuple[Array, Array]:
    streams = _apart(x, coefficients.shape[1])
    difference = widened(activated) - streams[:, active]
    corrected = streams + (1 + widened(coefficients))[:, :, None] * difference[:, None]
    return rounded(corrected.reshape(x.shape), x), rounded(corrected[:, active] * widened(scale), x)


@op(reference=_correct_streams, triton="pyllm_kernels.gpu.streams")
def correct_streams(
    x: Tensor, activated: Tensor, coefficients: Tensor, active: int, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Add to each stream the difference of `activated` and the stream `active`, times `1 + coefficients[i]`.

    x [tokens, count * hidden], activated [tokens, hidden], coefficients [tokens, count] and scale [hidden], of one
    dtype -> the streams [tokens, count * hidden], and the new stream `active` times the scale, [tokens, hidden]; in
    float32, rounded once.
    """
    out, scaled = graph.empty(x.shape, x), graph.empty(activated.shape, x)
    _cpu.ops.correct_streams(x, activated, coefficients, active, scale, out, scaled)
    return out, scaled


def _add_to_streams(x: Array, other: Array) -> Array:
    x[...] = (_apart(x, x.shape[1] // other.shape[1]) + widened(other)[:, None]).reshape(x.shape)
    return x


@op(reference=_add_to_streams, triton="pyllm_kernels.gpu.streams")
def add_to_streams(x: Tensor, other: Tensor) -> Tensor:
    """Add `other` [tokens, hidden] to each stream of x [tokens, count * hidden], tokens any stride, in place; return x.

    Both are of one dtype. Computes in float32 and rounds once.
    """
    _cpu.ops.add_to_streams(x, other)
    return x


def _join_streams(x: Array, others: Array) -> Array:
    return np.concatenate((x, others), axis=1)


@op(reference=_join_streams, triton="pyllm_kernels.gpu.streams")
def join_streams(x: Tensor, others: Tensor) -> Tensor:
    """The stream x [tokens, hidden], then those in `others` [tokens, n], side by side: [tokens, hidden + n]."""
    out = graph.empty((len(x), x.shape[1] + others.shape[1]), x)
    _cpu.ops.join_streams(x, others, out)
    return out


def _magnitudes(numbers: Floats) -> Floats:
    squares: Floats = np.square(numbers).mean(-1, keepdims=True)
    return squares


def _match_magnitudes(x: Array, other: Array) -> Array:
    streams = _apart(x, x.shape[1] // other.shape[1])
    factors = np.sqrt(_magnitudes(widened(other))[:, None] / np.maximum(_magnitudes(streams), _LEAST_SQUARE))
    x[...] = (streams * factors).reshape(x.shape)
    return x


@op(reference=_match_magnitudes, triton="pyllm_kernels.gpu.streams")
def match_magnitudes(x: Tensor, other: Tensor) -> Tensor:
    """Scale each stream of x to the root mean square of `other`, in place; return x. Shapes as in `add_to_streams`.

    The mean of squares that a stream is divided by is at least 1e-5. Computes in float32 and rounds once.
    """
    _cpu.ops.match_magnitudes(x, other)
    return x


def _gaussian_top_k(x: Array, multiplier: float) -> Array:
    wide = widened(x)
    cutoff = wide.mean(-1, keepdims=True) + np.float32(multiplier) * wide.std(-1, keepdims=True)
    x[...] = np.maximum(wide - cutoff, np.float32(0))
    return x


@op(reference=_gaussian_top_k, triton="pyllm_kernels.gpu.streams")
def gaussian_top_k(x: Tensor, multiplier: float) -> Tensor:
    """Keep the part of each number above the row's mean plus `multiplier` standard deviations, in place; return x.

    x [tokens, n], tokens any stride, of which a normal distribution leaves a known share above 0 (arXiv 2506.06644).
    Computes in float32 and rounds once.
    """
    _cpu.ops.gaussian_top_k(x, multiplier)
    return x
