"""The sampling kernel against a naive loop over sorted tokens, as `workers/sampling/test_sampler.py` specifies it."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyllm.workers.devices.torch_device import TorchDevice
from tests.distribution import (
    CASES,
    Parameters,
    even_grid,
    exact,
    ignoring,
    is_spread_as,
    known_logits,
)
from tests.tiers import cases
from tests.workers.sampling.test_sampler import naive, rows
from tests.workers.sampling.triton_sampler import sample_by_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLAIN = (1.0, 0, 1.0, 0.0)
NUM_DRAWS = 60


def sample(logits: np.ndarray, parameters: list[Parameters], uniforms: list[float], drawn_from: list[int]) -> list[int]:
    from pyllm_kernels.gpu.sampling import sample

    temperature, top_k, top_p, min_p = zip(*parameters, strict=True)

    def floats(values: tuple[float, ...] | list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=DEVICE)

    def ints(values: tuple[int, ...] | list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    tokens = sample(
        torch.from_numpy(logits).to(DEVICE),
        floats(temperature),
        ints(top_k),
        floats(top_p),
        floats(min_p),
        floats(uniforms),
        ints(drawn_from),
    )
    assert tokens.dtype == torch.int32
    return tokens.tolist()


parameters = st.tuples(
    st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 17, 100, 599, 600, 100_000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 0.001, 0.2, 1.0]),
)


@settings(max_examples=cases(40), suppress_health_check=[HealthCheck.too_slow])
@given(
    chosen=st.lists(parameters, min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.01, 1.0, 4.0]),
    rounded=st.booleans(),
)
def test_it_chooses_as_a_naive_loop_does(chosen: list[Parameters], seed: int, spread: float, rounded: bool) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((len(chosen), 600)) * spread).astype(np.float32)
    if rounded:  # As a model in bfloat16 gives them: many are equal.
        logits = torch.from_numpy(logits).to(torch.bfloat16).float().numpy()
    uniforms = generator.uniform(size=len(chosen)).astype(np.float32).tolist()
    tokens = sample(logits, chosen, uniforms, list(range(len(chosen))))
    for row, token in enumerate(tokens):
        # Sums are rounded: where the uniform number or the cut of top-p falls on the edge of a token, either is right.
        temperature, top_k, top_p, min_p = chosen[row]
        near = {
            naive(logits[row], uniforms[row] + nudge, (temperature, top_k, min(top_p * (1 + shift), 1.0), min_p))
            for nudge in (-1e-5, 0, 1e-5)
            for shift in (-1e-6, 0, 1e-6)
        }
        assert token in near


@pytest.mark.parametrize("case", ["cold", "top_k, top_p", "hot, top_p, min_p"])
def test_tokens_spread_as_all_parameters_together_say(case: str) -> None:
    """By an even grid of few numbers: Triton's interpreter takes a tenth of a second for each."""
    logits, parameters = known_logits(), CASES[case]
    drawn = sample(logits[None], [parameters] * NUM_DRAWS, even_grid(NUM_DRAWS).tolist(), [0] * NUM_DRAWS)
    assert is_spread_as(np.array(drawn), exact(logits, parameters))
    told = ignoring(logits, parameters)
    assert len(told) == len(case.split(", "))
    for name, others in told.items():
        assert not is_spread_as(np.array(drawn), others), f"{name} makes no difference"


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), PLAIN, (1.0, 3, 0.9, 0.1)])
def test_where_nothing_is_left_the_token_is_minus_one(parameters: Parameters) -> None:
    logits = np.full((4, 3000), -np.inf, np.float32)
    logits[1, 7] = -1e30  # Little, but something.
    logits[2] = np.nan
    logits[3, :10] = np.nan
    logits[3, 40] = 0.0
    assert sample(logits, [parameters] * 4, [0.7] * 4, [0, 1, 2, 3]) == [-1, 7, -1, 40]


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), PLAIN, (2.0, 3, 0.9, 0.1)])
def test_of_infinite_logits_the_first_is_chosen(parameters: Parameters) -> None:
    logits = np.zeros((2, 3000), np.float32)
    logits[0, [40, 2000]] = np.inf
    logits[1, [7, 8]] = [np.nan, np.inf]
    assert sample(logits, [parameters] * 3, [0.9] * 3, [1, 0, 1]) == [8, 40, 8]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_a_narrow_dtype_count_as_what_they_are_in_float32(dtype: torch.dtype) -> None:
    narrow = torch.randn(5, 3000).to(dtype)
    chosen: list[Parameters] = [(0.0, 0, 1.0, 0.0), PLAIN, (0.8, 20, 1.0, 0.0), (0.9, 0, 0.9, 0.05), (1.0, 9, 0.5, 0.0)]
    others = rows(*chosen), torch.tensor([0.2, 0.4, 0.6, 0.8, 0.9], device=DEVICE), TorchDevice(DEVICE)
    narrow_tokens, wide_tokens = (sample_by_triton(logits.to(DEVICE), *others) for logits in (narrow, narrow.float()))
    assert narrow_tokens.tolist() == wide_tokens.tolist()


@pytest.mark.parametrize("vocabulary", [1, 3, 1024, 5000])
def test_vocabularies_of_any_size(vocabulary: int) -> None:
    logits = np.linspace(-3, 3, vocabulary, dtype=np.float32)[None]
    for parameters in (PLAIN, (0.8, 5, 0.9, 0.0), (0.0, 0, 1.0, 0.0)):
        for uniform in (0.0, 0.3, 0.999):
            assert sample(logits, [parameters], [uniform], [0])[0] in {
                naive(logits[0], uniform + nudge, parameters) for nudge in (-1e-5, 0, 1e-5)
            }


def test_the_first_of_equal_logits_wins() -> None:
    logits = np.zeros((1, 3000), np.float32)
    logits[0, [7, 90, 2000]] = 5.0
    chosen: list[Parameters] = [(0.0, 0, 1.0, 0.0), (1.0, 1, 1.0, 0.0), (1.0, 2, 1.0, 0.0), (1.0, 3, 0.6, 0.0)]
    assert sample(logits, chosen, [0.99] * 4, [0] * 4) == [7, 7, 90, 90]


def test_equal_logits_are_cut_by_id_across_chunks() -> None:
    logits = np.zeros((1, 9000), np.float32)
    chosen: list[Parameters] = [(1.0, 6000, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 6000, 0.5, 0.0)]
    assert sample(logits, chosen, [0.99999] * 3, [0] * 3) == [5999, 4499, 2999]


@pytest.mark.parametrize("uniform", [0.0, 2**-25, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("parameters", [PLAIN, (1.0, 40, 0.9, 0.0), (1e-30, 0, 1.0, 0.0)])
def test_a_token_of_probability_zero_is_never_chosen(uniform: float, parameters: Parameters) -> None:
    logits = np.full((1, 3000), -np.inf, np.float32)
    logits[0, [5, 1234]] = 1.0
    assert sample(logits, [parameters], [uniform], [0]) == [5 if uniform < 0.5 else 1234]


def test_samples_of_one_row_are_drawn_from_it_alone() -> None:
    logits = np.random.default_rng(4).standard_normal((3, 300)).astype(np.float32) * 2
    chosen: list[Parameters] = [(0.9, 50, 0.9, 0.02)] * 5
    uniforms, drawn_from = [0.1, 0.5, 0.5, 0.9, 0.3], [0, 2, 0, 1, 2]
    together = sample(logits, chosen, uniforms, drawn_from)
    alone = [
        sample(logits[row : row + 1], chosen[:1], [u], [0])[0] for u, row in zip(uniforms, drawn_from, strict=True)
    ]
    assert together == alone


def test_the_workers_sampler_hands_all_rows_to_it() -> None:
    generator = np.random.default_rng(5)
    logits = generator.standard_normal((4, 300)).astype(np.float32) * 2
    chosen: list[Parameters] = [(0.0, 0, 1.0, 0.0), PLAIN, (0.8, 20, 1.0, 0.0), (0.9, 0, 0.95, 0.05)]
    uniforms = [0.2, 0.4, 0.6, 0.8]
    device = TorchDevice(DEVICE)
    on_device = device.from_host(logits), rows(*chosen), device.from_host(np.array(uniforms, np.float32))
    sampled = sample_by_triton(*on_device, device)
    assert sampled.tolist() == sample(logits, chosen, uniforms, [0, 1, 2, 3])
