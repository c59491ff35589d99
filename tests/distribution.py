"""The exact distribution that sampling parameters stand for, and Pearson's test of draws against it."""

import math

import numpy as np
import numpy.typing as npt

Parameters = tuple[float, int, float, float]  # temperature, top-k, top-p, min-p

OFF: Parameters = (1.0, 0, 1.0, 0.0)
NAMES = ("temperature", "top_k", "top_p", "min_p")
# Each parameter alone and with others.
CASES: dict[str, Parameters] = {
    "plain": OFF,
    "cold": (0.6, 0, 1.0, 0.0),
    "hot": (1.7, 0, 1.0, 0.0),
    "top_k": (1.0, 5, 1.0, 0.0),
    "top_p": (1.0, 0, 0.8, 0.0),
    "min_p": (1.0, 0, 1.0, 0.1),
    "hot, top_k": (1.7, 9, 1.0, 0.0),
    "hot, top_p": (1.7, 0, 0.7, 0.0),
    "cold, min_p": (0.6, 0, 1.0, 0.05),
    "top_k, top_p": (1.0, 9, 0.75, 0.0),
    "top_p, min_p": (1.0, 0, 0.9, 0.2),
    "hot, top_k, top_p": (1.4, 5, 0.8, 0.0),
    "hot, top_p, min_p": (1.4, 0, 0.9, 0.3),
    "all": (1.4, 5, 0.8, 0.05),  # Of top-k and min-p, which both keep the best, only the stricter one matters.
}
_QUANTILE = 3.719  # of the normal distribution, for one failure in 10,000


def known_logits(num_tokens: int = 24) -> npt.NDArray[np.float32]:
    """From -2 to 2, of which no two are equal, in no order."""
    return np.random.default_rng(0).permutation(np.linspace(-2, 2, num_tokens)).astype(np.float32)


def exact(logits: npt.NDArray[np.float32], parameters: Parameters) -> npt.NDArray[np.float64]:
    """Probabilities after temperature, min-p, top-k and top-p, in this order, each on what the one before has left."""
    temperature, top_k, top_p, min_p = parameters
    weights = np.exp(logits.astype(np.float64) / temperature)
    weights[weights < min_p * weights.max()] = 0
    order = np.argsort(-weights, kind="stable")
    weights[order[top_k or len(order) :]] = 0
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= top_p * weights.sum()]] = 0
    return weights / weights.sum()


def uniforms(num_draws: int) -> npt.NDArray[np.float32]:
    return np.random.Generator(np.random.Philox(7)).random(num_draws, dtype=np.float32)


def is_drawn_from(tokens: npt.NDArray[np.int32], probabilities: npt.NDArray[np.float64]) -> bool:
    """Whether Pearson's chi-square is below its 99.99 % quantile (Wilson and Hilferty's approximation)."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    expected = probabilities[possible] * len(tokens)
    freedom = len(expected) - 1
    if not freedom:
        return True
    quantile = freedom * (1 - 2 / (9 * freedom) + _QUANTILE * math.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts[possible] - expected) ** 2 / expected).sum()) < quantile


def is_spread_as(tokens: npt.NDArray[np.int32], probabilities: npt.NDArray[np.float64]) -> bool:
    """Whether tokens drawn by an even grid of numbers are as often there as those say, give or take one."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    near = np.abs(counts - probabilities * len(tokens)) < 1 + 1e-3
    return bool(near.all() and not counts[probabilities == 0].any())


def even_grid(num_draws: int) -> npt.NDArray[np.float32]:
    return ((np.arange(num_draws) + 0.5) / num_draws).astype(np.float32)


def ignoring(logits: npt.NDArray[np.float32], parameters: Parameters) -> dict[str, npt.NDArray[np.float64]]:
    """Probabilities where one of the parameters that matter is left out, by its name."""
    intended, others = exact(logits, parameters), {}
    for place, name in enumerate(NAMES):
        left = list(parameters)
        left[place] = OFF[place]
        probabilities = exact(logits, tuple(left))  # type: ignore[arg-type]  # Each is a value of its own place.
        if not np.allclose(probabilities, intended):
            others[name] = probabilities
    return others
