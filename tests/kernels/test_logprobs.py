"""`logprobs` of the reference and of Rust against sorting in double precision; ties, edges, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels.ops.logprobs import logprobs

from tests.tiers import cases

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Told = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Logprobs = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], Told]
IMPLEMENTATIONS: dict[str, Logprobs] = {"reference": logprobs.reference, "cpu": logprobs}


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@settings(max_examples=cases(60))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@given(
    vocabulary=st.sampled_from([1, 3, 63, 64, 65, 700]),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.3, 3.0, 40.0]),
    top=st.floats(0, 1),
)
def test_they_are_what_sorting_says(
    tell: Logprobs, dtype: torch.dtype, vocabulary: int, seed: int, spread: float, top: float
) -> None:
    generator = np.random.default_rng(seed)
    # Rows lie apart; a step of 1/8 makes many equal in float32, too.
    numbers = np.round(generator.standard_normal((3, vocabulary + 1)) * spread * 8) / 8
    numbers[generator.uniform(size=numbers.shape) < 0.1] = -np.inf
    numbers[:, vocabulary // 2] = 1.0
    logits = torch.from_numpy(numbers).to(dtype)[:, :vocabulary]
    rows, chosen = int32(2, 0, 2), int32(*generator.integers(vocabulary, size=3).tolist())
    num_top = round(top * vocabulary)
    ids, values, ranks = tell(logits, rows, chosen, num_top)
    assert (ids.dtype, values.dtype, ranks.dtype) == (torch.int32, torch.float32, torch.int32)
    for sample, (row, token) in enumerate(zip(rows.tolist(), chosen.tolist(), strict=True)):
        exact = logits[row].double().numpy()
        order = sorted(range(vocabulary), key=lambda token: (-exact[token], token))
        expected = [token, *order[:num_top]]
        assert ids[sample].tolist() == expected
        assert ranks[sample] == (exact >= exact[token]).sum()
        log_probabilities = exact - np.logaddexp.reduce(exact)
        np.testing.assert_allclose(values[sample].numpy(), log_probabilities[expected], atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_zeros_of_both_signs_are_equal(tell: Logprobs) -> None:
    ids, _, ranks = tell(torch.tensor([[-1.0, -0.0, 0.0, -0.0]]), int32(0), int32(2), 3)
    assert ids.tolist() == [[2, 1, 2, 3]]
    assert ranks.tolist() == [3]


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_logits_that_are_no_numbers_are_the_least(tell: Logprobs) -> None:
    logits = torch.tensor([[torch.nan, 1.0, -torch.inf, 1.0]])
    ids, values, ranks = tell(logits, int32(0), int32(0), 4)
    assert ids.tolist() == [[0, 1, 3, 0, 2]]
    torch.testing.assert_close(values.exp(), torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]))
    assert ranks.tolist() == [4]


@pytest.mark.parametrize("tell", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_a_row_does_not_depend_on_the_others(tell: Logprobs) -> None:
    logits = torch.randn(9, 3000) * 5
    rows, chosen = torch.arange(9, dtype=torch.int32), torch.randint(3000, (9,), dtype=torch.int32)
    together = tell(logits, rows, chosen, 20)
    for row in range(9):
        alone = tell(logits[row : row + 1], int32(0), chosen[row : row + 1], 20)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


def test_no_samples_and_no_likeliest() -> None:
    none = torch.empty(0, dtype=torch.int32)
    for tell in IMPLEMENTATIONS.values():
        ids, values, ranks = tell(torch.randn(2, 10), none, none, 3)
        assert (ids.shape, values.shape, ranks.shape) == ((0, 4), (0, 4), (0,))
        assert tell(torch.zeros(1, 10), int32(0), int32(4), 0)[0].tolist() == [[4]]


def test_the_device_picks_the_version() -> None:
    logits, rows, chosen = torch.randn(4, 300), int32(3, 0), int32(7, 8)
    told = logprobs(logits.to(DEVICE), rows.to(DEVICE), chosen.to(DEVICE), 5)
    for actual, expected in zip(told, logprobs.reference(logits, rows, chosen, 5), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


def test_what_a_pointer_cannot_say_is_checked() -> None:
    logits = torch.randn(2, 40)
    with pytest.raises(ValueError, match=r"chosen is of shape \[2\]: it must be of \[1\]"):
        logprobs(logits, int32(0), int32(0, 1), 1)
    with pytest.raises(ValueError, match="the 41 likeliest of 40 tokens: ask for that many at most"):
        logprobs(logits, int32(0), int32(0), 41)
    with pytest.raises(IndexError, match="token of sample 0 is -1: it must be from 0 to 39"):
        logprobs(logits, int32(0), int32(-1), 1)
    with pytest.raises(IndexError, match="row of sample 0 is 2: it must be from 0 to 1"):
        logprobs(logits, int32(2), int32(0), 1)
