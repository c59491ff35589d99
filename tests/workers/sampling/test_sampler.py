"""Sampling against a naive loop, against the distribution it stands for, and at its edges."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyllm_kernels.ops.sample import sample as op

from pyllm.workers.devices.host import HostDevice
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.sampling import sampler
from pyllm.workers.sampling.sampler import SamplingRows
from tests.distribution import CASES, NAMES, Parameters, exact, ignoring, is_drawn_from, known_logits, uniforms
from tests.tiers import cases

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Sample = Callable[..., Ints]

VOCABULARY = 3000


def by_rust(logits: Floats, parameters: SamplingRows, uniforms: Floats, drawn_from: Ints | None = None) -> Ints:
    tokens = sampler.sample(logits, parameters, uniforms, HostDevice(), drawn_from)
    assert isinstance(tokens, np.ndarray)
    return tokens


def by_reference(logits: Floats, parameters: SamplingRows, uniforms: Floats, drawn_from: Ints | None = None) -> Ints:
    numbers = parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
    return op.reference(logits, *numbers, uniforms, drawn_from)


SAMPLERS = {"rust": by_rust, "reference": by_reference}


@pytest.fixture(params=SAMPLERS)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLERS[request.param]


def rows(*parameters: Parameters) -> SamplingRows:
    temperature, top_k, top_p, min_p = zip(*parameters, strict=True)
    return SamplingRows(floats(*temperature), np.array(top_k, np.int32), floats(*top_p), floats(*min_p))


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def naive(logits: np.ndarray, uniform: float, parameters: Parameters, precision: type = np.float64) -> int:
    """One row, step by step, in double precision; the weights are computed in `precision`."""
    temperature, top_k, top_p, min_p = parameters
    if temperature == 0:
        return int(np.argmax(logits))
    weights = np.exp((logits.astype(precision) - logits.max()) / np.float32(temperature)).astype(np.float64)
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
@example([*[(0.0, 0, 1.0, 0.0)] * 3, (0.1, 1500, 0.999, 0.0), (0.0, 0, 1.0, 0.0)], 16911, 0.01)
def test_it_chooses_as_a_naive_loop_does(sample: Sample, chosen: list[Parameters], seed: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((len(chosen), VOCABULARY)) * spread).astype(np.float32)
    uniforms = generator.uniform(size=len(chosen)).astype(np.float32)
    tokens = sample(logits, rows(*chosen), uniforms)
    assert tokens.dtype == np.int32
    for row, token in enumerate(tokens.tolist()):
        # Both sums are rounded: where the uniform number falls on the edge of a token, either neighbour is right; and
        # where a filter cuts between weights that are equal in float32, either of them.
        assert any(
            token == naive(logits[row], float(uniforms[row]) + nudge, chosen[row], precision)
            for precision in (np.float64, np.float32)
            for nudge in (0, -1e-5, 1e-5)
        )


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES)
def test_draws_follow_the_distribution_that_all_parameters_together_stand_for(
    sample: Sample, parameters: Parameters
) -> None:
    """And no distribution that leaves one of them out: the draws tell them apart."""
    logits, num_draws = known_logits(), 8_000
    drawn_from = np.zeros(num_draws, np.int32)
    drawn = sample(logits[None], rows(*[parameters] * num_draws), uniforms(num_draws), drawn_from)
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
    logits = np.full((5, VOCABULARY), -np.inf, np.float32)
    logits[1, 7] = -1e30  # Little, but something.
    logits[2] = np.nan
    logits[3, :10] = np.nan
    logits[3, 40] = 0.0
    drawn_from = ints(4, 3, 2, 1, 0, 3)
    chosen = sample(logits, rows(*[parameters] * 6), floats(*[0.7] * 6), drawn_from)
    assert chosen.tolist() == [-1, 40, -1, 7, -1, 40]
    alone = sample(logits, rows(*[parameters] * 5), floats(*[0.7] * 5))
    assert alone.tolist() == [-1, 7, -1, 40, -1]


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (2.0, 3, 0.9, 0.1)])
def test_of_infinite_logits_the_first_is_chosen(sample: Sample, parameters: Parameters) -> None:
    logits = np.zeros((2, VOCABULARY), np.float32)
    logits[0, [40, 2000]] = np.inf
    logits[1, [7, 8]] = [np.nan, np.inf]
    drawn_from = ints(1, 0, 1)
    assert sample(logits, rows(*[parameters] * 3), floats(*[0.9] * 3), drawn_from).tolist() == [8, 40, 8]
    assert sample(logits, rows(*[parameters] * 2), floats(*[0.9] * 2)).tolist() == [40, 8]


def test_the_first_of_equal_logits_wins(sample: Sample) -> None:
    logits = np.zeros((3, VOCABULARY), np.float32)
    logits[:, [7, 90, 2000]] = 5.0
    uniforms = floats(0.99, 0.99, 0.99)
    assert sample(logits, rows(*[(0.0, 0, 1.0, 0.0)] * 3), uniforms).tolist() == [7, 7, 7]
    assert sample(logits, rows(*[(1.0, 1, 1.0, 0.0)] * 3), uniforms).tolist() == [7, 7, 7]
    assert sample(logits, rows(*[(1.0, 2, 1.0, 0.0)] * 3), uniforms).tolist() == [90, 90, 90]


def test_many_equal_logits_are_cut_by_id(sample: Sample) -> None:
    logits = np.zeros((2, VOCABULARY), np.float32)
    chosen = sample(logits, rows((1.0, 2000, 1.0, 0.0), (1.0, 0, 0.5, 0.0)), floats(0.99999, 0.99999))
    assert chosen.tolist() == [1999, 1499]


@pytest.mark.parametrize("uniform", [0.0, 2**-25, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("parameters", [(1.0, 0, 1.0, 0.0), (1.0, 40, 0.9, 0.0), (1e-30, 0, 1.0, 0.0)])
def test_a_token_of_probability_zero_is_never_chosen(sample: Sample, uniform: float, parameters: Parameters) -> None:
    logits = np.full((1, VOCABULARY), -np.inf, np.float32)
    logits[0, [5, 1234]] = 1.0
    token = sample(logits, rows(parameters), floats(uniform)).item()
    assert token == (5 if uniform < 0.5 else 1234)


def test_rows_do_not_depend_on_their_neighbours(sample: Sample) -> None:
    generator = np.random.default_rng(3)
    logits = generator.standard_normal((11, VOCABULARY)).astype(np.float32) * 2
    uniforms = generator.uniform(size=11).astype(np.float32)
    chosen = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.8, 20, 1.0, 0.0), (0.9, 0, 0.95, 0.05)]
    mixed = [chosen[row % 4] for row in range(11)]
    together = sample(logits, rows(*mixed), uniforms).tolist()
    alone = [sample(logits[row : row + 1], rows(mixed[row]), uniforms[row : row + 1]).item() for row in range(11)]
    assert together == alone


@pytest.mark.parametrize("parameters", [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.9, 50, 0.9, 0.02)])
def test_samples_drawn_from_one_row_equal_those_from_copies_of_it(sample: Sample, parameters: Parameters) -> None:
    generator = np.random.default_rng(4)
    logits = generator.standard_normal((3, VOCABULARY)).astype(np.float32) * 2
    drawn_from = ints(0, 0, 1, 2, 2, 2)
    uniforms = generator.uniform(size=6).astype(np.float32)
    expected = sample(logits[drawn_from], rows(*[parameters] * 6), uniforms)
    assert sample(logits, rows(*[parameters] * 6), uniforms, drawn_from).tolist() == expected.tolist()


def test_tensors_of_torch_are_sampled_as_arrays_are() -> None:
    generator = np.random.default_rng(6)
    logits = generator.standard_normal((4, VOCABULARY)).astype(np.float32) * 2
    parameters = rows((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.8, 20, 1.0, 0.0), (0.9, 0, 0.95, 0.05))
    uniforms, drawn_from = generator.uniform(size=4).astype(np.float32), ints(3, 1, 1, 0)
    device = TorchDevice(torch.device("cpu"))
    tokens = sampler.sample(torch.from_numpy(logits), parameters, torch.from_numpy(uniforms), device, drawn_from)
    assert isinstance(tokens, torch.Tensor)
    assert tokens.tolist() == by_rust(logits, parameters, uniforms, drawn_from).tolist()


def test_logits_of_half_precision_are_sampled_as_the_reference_does() -> None:
    logits = (np.random.default_rng(7).standard_normal((3, VOCABULARY)) * 2).astype(np.float16)
    parameters, uniforms = rows((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.8, 20, 0.9, 0.0)), floats(0.2, 0.4, 0.9)
    expected = by_reference(logits.astype(np.float32), parameters, uniforms)
    assert by_rust(logits, parameters, uniforms).tolist() == expected.tolist()
