"""Sampling against a naive loop, against the distribution it stands for, and at its edges."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.workers.sampling import sampler
from pyllm.workers.sampling.sampler import SamplingRows
from tests.distribution import CASES, NAMES, Parameters, exact, ignoring, is_drawn_from, known_logits, uniforms
from tests.tiers import cases

Sample = Callable[..., torch.Tensor]

VOCABULARY = 3000  # More than the candidates that are looked at first.


SAMPLERS = {"kernel": sampler.sample, "torch": sampler.sample_by_torch}


@pytest.fixture(params=SAMPLERS)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLERS[request.param]


def rows(*parameters: Parameters) -> SamplingRows:
    temperature, top_k, top_p, min_p = zip(*parameters, strict=True)
    largest = torch.tensor(top_k, dtype=torch.int32)
    return SamplingRows(torch.tensor(temperature), largest, torch.tensor(top_p), torch.tensor(min_p))


def naive(logits: np.ndarray, uniform: float, parameters: Parameters) -> int:
    """One row, step by step, in double precision."""
    temperature, top_k, top_p, min_p = parameters
    if temperature == 0:
        return int(np.argmax(logits))
    weights = np.exp((logits.astype(np.float64) - logits.max()) / np.float32(temperature))
    weights[weights < np.float32(min_p)] = 0
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    kept = order[:top_k] if top_k else order
    total, before, in_top_p = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if before >= np.float32(top_p) * total and top_p < 1:
            break
        in_top_p.append(token)
        before += weights[token]
    total, before = sum(weights[token] for token in in_top_p), 0.0
    for token in sorted(in_top_p):
        before += weights[token]
        if before > uniform * total:
            return token
    return max(token for token in in_top_p if weights[token] > 0)


parameters = st.tuples(
    st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 17, 1024, 1500, 100_000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 0.001, 0.2, 1.0]),
)


@settings(max_examples=cases(60))
@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
@given(st.lists(parameters, min_size=1, max_size=9), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 4.0]))
def test_it_chooses_as_a_naive_loop_does(sample: Sample, chosen: list[Parameters], seed: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((len(chosen), VOCABULARY)) * spread).astype(np.float32)
    uniforms = generator.uniform(size=len(chosen)).astype(np.float32)
    tokens = sample(torch.from_numpy(logits), rows(*chosen), torch.from_numpy(uniforms))
    assert tokens.dtype == torch.int32
    for row, token in enumerate(tokens.tolist()):
        # Both sums are rounded: where the uniform number falls on the edge of a token, either neighbour is right.
        near = {naive(logits[row], float(uniforms[row]) + nudge, chosen[row]) for nudge in (-1e-5, 0, 1e-5)}
        assert token in near


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)
def test_draws_follow_the_distribution_that_all_parameters_together_stand_for(
    sample: Sample, parameters: Parameters
) -> None:
    """And no distribution that leaves one of them out: the draws tell them apart."""
    logits, num_draws = known_logits(), 8_000
    drawn = sample(
        torch.from_numpy(logits).expand(num_draws, -1),
        rows(*[parameters] * num_draws),
        torch.from_numpy(uniforms(num_draws)),
    ).numpy()
    assert is_drawn_from(drawn, exact(logits, parameters))
    for name, others in ignoring(logits, parameters).items():
        assert not is_drawn_from(drawn, others), f"{name} makes no difference"


def test_the_cases_of_distributions_tell_of_every_parameter() -> None:
    told = {name: set(ignoring(known_logits(), parameters)) for name, parameters in CASES.items()}
    assert told["top_k, top_p"] == {"top_k", "top_p"}
    assert told["hot, top_k, top_p"] == {"temperature", "top_k", "top_p"}
    assert told["hot, top_p, min_p"] == {"temperature", "top_p", "min_p"}
    assert [told[name] for name in ("cold", "top_k", "top_p", "min_p")] == [{name} for name in NAMES]


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 3, 0.9, 0.1)])
def test_where_nothing_is_left_the_token_is_minus_one(sample: Sample, parameters: Parameters) -> None:
    logits = torch.full((5, VOCABULARY), -torch.inf)
    logits[1, 7] = -1e30  # Little, but something.
    logits[2] = torch.nan
    logits[3, :10] = torch.nan
    logits[3, 40] = 0.0
    drawn_from = torch.tensor([4, 3, 2, 1, 0, 3])
    chosen = sample(logits, rows(*[parameters] * 6), torch.full((6,), 0.7), drawn_from)
    assert chosen.tolist() == [-1, 40, -1, 7, -1, 40]
    alone = sample(logits, rows(*[parameters] * 5), torch.full((5,), 0.7))
    assert alone.tolist() == [-1, 7, -1, 40, -1]


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (2.0, 3, 0.9, 0.1)])
def test_of_infinite_logits_the_first_is_chosen(sample: Sample, parameters: Parameters) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[0, [40, 2000]] = torch.inf
    logits[1, [7, 8]] = torch.tensor([torch.nan, torch.inf])
    drawn_from = torch.tensor([1, 0, 1])
    assert sample(logits, rows(*[parameters] * 3), torch.full((3,), 0.9), drawn_from).tolist() == [8, 40, 8]
    assert sample(logits, rows(*[parameters] * 2), torch.full((2,), 0.9)).tolist() == [40, 8]


def test_the_first_of_equal_logits_wins(sample: Sample) -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[:, [7, 90, 2000]] = 5.0
    uniforms = torch.tensor([0.99, 0.99, 0.99])
    assert sample(logits, rows(*[(0.0, 0, 1.0, 0.0)] * 3), uniforms).tolist() == [7, 7, 7]
    assert sample(logits, rows(*[(1.0, 1, 1.0, 0.0)] * 3), uniforms).tolist() == [7, 7, 7]
    assert sample(logits, rows(*[(1.0, 2, 1.0, 0.0)] * 3), uniforms).tolist() == [90, 90, 90]


def test_equal_logits_beyond_the_first_candidates_are_cut_by_id(sample: Sample) -> None:
    logits = torch.zeros(2, VOCABULARY)
    chosen = sample(logits, rows((1.0, 2000, 1.0, 0.0), (1.0, 0, 0.5, 0.0)), torch.tensor([0.99999, 0.99999]))
    assert chosen.tolist() == [1999, 1499]


@pytest.mark.parametrize("uniform", [0.0, 2**-25, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("parameters", [(1.0, 0, 1.0, 0.0), (1.0, 40, 0.9, 0.0), (1e-30, 0, 1.0, 0.0)])
def test_a_token_of_probability_zero_is_never_chosen(sample: Sample, uniform: float, parameters: Parameters) -> None:
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [5, 1234]] = torch.tensor([1.0, 1.0])
    token = sample(logits, rows(parameters), torch.tensor([uniform])).item()
    assert token == (5 if uniform < 0.5 else 1234)


def test_rows_do_not_depend_on_their_neighbours(sample: Sample) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(11, VOCABULARY, generator=generator) * 2
    uniforms = torch.rand(11, generator=generator)
    chosen = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.8, 20, 1.0, 0.0), (0.9, 0, 0.95, 0.05)]
    mixed = [chosen[row % 4] for row in range(11)]
    together = sample(logits, rows(*mixed), uniforms).tolist()
    alone = [sample(logits[row : row + 1], rows(mixed[row]), uniforms[row : row + 1]).item() for row in range(11)]
    assert together == alone


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.9, 50, 0.9, 0.02)])
def test_samples_drawn_from_one_row_equal_those_from_copies_of_it(sample: Sample, parameters: Parameters) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, VOCABULARY, generator=generator) * 2
    drawn_from = torch.tensor([0, 0, 1, 2, 2, 2])
    uniforms = torch.rand(6, generator=generator)
    expected = sample(logits[drawn_from], rows(*[parameters] * 6), uniforms)
    assert sample(logits, rows(*[parameters] * 6), uniforms, drawn_from).tolist() == expected.tolist()
