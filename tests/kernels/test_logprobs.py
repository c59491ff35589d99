"""`logprobs` of the reference and of Rust against sorting in double precision; ties, edges, and what is refused."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels.gpu import logits as by_torch
from pyllm_kernels.ops.logprobs import logprobs
from pyllm_kernels.tensors import Array, Tensor, numpy_dtype
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.kernels.logits_cases import ints
from tests.tiers import cases

DTYPES = ["float32", "bfloat16", "float16"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Told = tuple[Array, Array, Array]
Logprobs = Callable[[Array, Array, Array, int], Told]


def on_tensors(tell: Callable[..., tuple[Tensor, Tensor, Tensor]], device: torch.device) -> Logprobs:
    """A version for tensors as one for arrays."""

    def run(logits: Array, rows: Array, chosen: Array, num_top: int) -> Told:
        there = (as_tensor(array.copy()).to(device) for array in (logits, rows, chosen))
        ids, values, ranks = map(as_array, tell(*there, num_top))
        return ids, values, ranks

    return run


IMPLEMENTATIONS: dict[str, Logprobs] = {
    "reference": logprobs.reference,
    "cpu": logprobs,
    "tensors": on_tensors(logprobs, torch.device("cpu")),
    "gpu": on_tensors(by_torch.logprobs, DEVICE),
}


@settings(max_examples=cases(60))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@given(
    vocabulary=st.sampled_from([1, 3, 63, 64, 65, 700]),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.3, 3.0, 40.0]),
    top=st.floats(0, 1),
)
def test_they_are_what_sorting_says(
    tell: Logprobs, dtype: str, vocabulary: int, seed: int, spread: float, top: float
) -> None:
    generator = np.random.default_rng(seed)
    # Rows lie apart; a step of 1/8 makes many equal in float32, too.
    numbers = np.round(generator.standard_normal((3, vocabulary + 1)) * spread * 8) / 8
    numbers[generator.uniform(size=numbers.shape) < 0.1] = -np.inf
    numbers[:, vocabulary // 2] = 1.0
    logits = numbers.astype(numpy_dtype(dtype))[:, :vocabulary]
    rows, chosen = ints(2, 0, 2), ints(*generator.integers(vocabulary, size=3).tolist())
    num_top = round(top * vocabulary)
    ids, values, ranks = tell(logits, rows, chosen, num_top)
    assert (ids.dtype, values.dtype, ranks.dtype) == (np.int32, np.float32, np.int32)
    for sample, (row, token) in enumerate(zip(rows.tolist(), chosen.tolist(), strict=True)):
        exact = logits[row].astype(np.float64)
        order = sorted(range(vocabulary), key=lambda token: (-exact[token], token))
        expected = [token, *order[:num_top]]
        assert ids[sample].tolist() == expected
        assert ranks[sample] == (exact >= exact[token]).sum()
        log_probabilities = exact - np.logaddexp.reduce(exact)
        np.testing.assert_allclose(values[sample], log_probabilities[expected], atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_zeros_of_both_signs_are_equal(tell: Logprobs) -> None:
    ids, _, ranks = tell(floats([[-1.0, -0.0, 0.0, -0.0]]), ints(0), ints(2), 3)
    assert ids.tolist() == [[2, 1, 2, 3]]
    assert ranks.tolist() == [3]


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_logits_that_are_no_numbers_are_the_least(tell: Logprobs) -> None:
    logits = floats([[np.nan, 1.0, -np.inf, 1.0]])
    ids, values, ranks = tell(logits, ints(0), ints(0), 4)
    assert ids.tolist() == [[0, 1, 3, 0, 2]]
    np.testing.assert_allclose(np.exp(values), [[0.0, 0.5, 0.5, 0.0, 0.0]], rtol=1e-6)
    assert ranks.tolist() == [4]


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_a_row_does_not_depend_on_the_others(tell: Logprobs) -> None:
    generator = np.random.default_rng(0)
    logits = floats(generator.standard_normal((9, 3000)) * 5)
    rows, chosen = np.arange(9, dtype=np.int32), generator.integers(3000, size=9, dtype=np.int32)
    together = tell(logits, rows, chosen, 20)
    for row in range(9):
        alone = tell(logits[row : row + 1], ints(0), chosen[row : row + 1], 20)
        assert all(np.array_equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


def test_no_samples_and_no_likeliest() -> None:
    none = ints()
    for tell in IMPLEMENTATIONS.values():
        ids, values, ranks = tell(np.zeros((2, 10), np.float32), none, none, 3)
        assert (ids.shape, values.shape, ranks.shape) == ((0, 4), (0, 4), (0,))
        assert tell(np.zeros((1, 10), np.float32), ints(0), ints(4), 0)[0].tolist() == [[4]]


def test_the_device_picks_the_version() -> None:
    arguments = floats(np.random.default_rng(1).standard_normal((4, 300))), ints(3, 0), ints(7, 8), 5
    told = on_tensors(logprobs, DEVICE)(*arguments)
    for actual, expected in zip(told, logprobs.reference(*arguments), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1.3e-6)


def test_what_a_pointer_cannot_say_is_checked() -> None:
    logits = np.zeros((2, 40), np.float32)
    with pytest.raises(ValueError, match=r"chosen is of shape \[2\]: it must be of \[1\]"):
        logprobs(logits, ints(0), ints(0, 1), 1)
    with pytest.raises(ValueError, match="the 41 likeliest of 40 tokens: ask for that many at most"):
        logprobs(logits, ints(0), ints(0), 41)
    with pytest.raises(IndexError, match="token of sample 0 is -1: it must be from 0 to 39"):
        logprobs(logits, ints(0), ints(-1), 1)
    with pytest.raises(IndexError, match="row of sample 0 is 2: it must be from 0 to 1"):
        logprobs(logits, ints(2), ints(0), 1)


def floats(numbers: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.array(numbers, np.float32)
