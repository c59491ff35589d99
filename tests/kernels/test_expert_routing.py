"""Which experts a token takes, beside a stable sort; and that blocks hold every pair once, of one expert each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels import ExpertGroups, Router
from torch import Tensor

from tests.tiers import cases

NUMPY_WARNS = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # As the interpreter computes NaNs.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def chosen_and_weights(logits: Tensor, router: Router) -> tuple[Tensor, Tensor]:
    """By the reference's rule, in the order of the experts."""
    scores = logits.float().softmax(dim=-1) if router.scores == "softmax" else logits.float().sigmoid()
    keys = scores if router.correction is None else scores + router.correction
    if router.correction is None and router.groups is None:
        keys = logits.float()
    if (groups := router.groups) is not None:
        by_group = keys.unflatten(1, (groups.count, -1))
        totals = by_group.topk(groups.best, dim=-1).values.sum(-1)
        best = totals.sort(dim=-1, descending=True, stable=True).indices[:, : groups.active]
        without = torch.ones_like(totals, dtype=torch.bool).scatter(1, best, False)
        keys = by_group.masked_fill(without[..., None], -torch.inf).flatten(1)
    chosen = keys.sort(dim=-1, descending=True, stable=True).indices[:, : router.active].sort().values
    weights = scores.gather(1, chosen)
    weights = weights / weights.sum(dim=-1, keepdim=True) if router.normalised else weights
    return chosen, weights * router.factor


def check_choice(logits: Tensor, router: Router) -> None:
    from pyllm_kernels.gpu.expert_routing import choose_experts

    correction = None if router.correction is None else router.correction.to(DEVICE)
    found = choose_experts(logits.to(DEVICE), replace(router, correction=correction))
    experts, weights = chosen_and_weights(logits, router)
    assert torch.equal(found.experts.long().cpu(), experts)
    torch.testing.assert_close(found.weights.cpu(), weights, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_experts", "active"), [(1, 1), (5, 2), (6, 6), (60, 4), (128, 8), (600, 10)])
def test_the_largest_scores_are_taken(num_experts: int, active: int, dtype: torch.dtype, normalised: bool) -> None:
    logits = (3 * torch.randn(9, num_experts)).to(dtype)
    check_choice(logits, Router(num_experts, active, normalised, 0, num_experts))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups", [None, ExpertGroups(4, 2, 2), ExpertGroups(6, 3, 1), ExpertGroups(3, 3, 2)], ids=str)
@pytest.mark.parametrize("corrected", [True, False])
def test_scores_are_corrected_and_chosen_from_groups(scores: str, groups: ExpertGroups | None, corrected: bool) -> None:
    correction = torch.rand(24) - 0.5 if corrected else None
    router = Router(24, 5, corrected, 0, 24, scores=scores, factor=2.5, correction=correction, groups=groups)
    check_choice(torch.randn(20, 24), router)


@pytest.mark.parametrize("tolerance", [0.02, 0.4, 10.0])
@pytest.mark.parametrize("active", [1, 2, 3])
def test_a_sparse_mixer_chooses_one_after_the_other(active: int, tolerance: float) -> None:
    from pyllm_kernels.gpu.expert_routing import choose_experts

    logits = torch.randn(20, 7)
    router = Router(7, active, False, 0, 7, scores="sparse_mixer", tolerance=tolerance, factor=1.5)
    found, weights = choose_experts(logits.to(DEVICE), router), torch.zeros(20, 7)
    left = logits.clone()
    for _ in range(active):
        largest, best = left.max(-1, keepdim=True)
        is_far = (largest - logits) / torch.maximum(logits.abs(), largest) > tolerance
        shares = left.masked_fill(is_far, -torch.inf).softmax(-1)
        weights.scatter_(1, best, 1.5 * shares.gather(1, best))
        left.scatter_(1, best, -torch.inf)
    torch.testing.assert_close(torch.zeros(20, 7).scatter(1, found.experts.long().cpu(), found.weights.cpu()), weights)


@NUMPY_WARNS
@pytest.mark.parametrize("normalised", [True, False])
def test_of_equal_scores_the_first_experts_are_taken(normalised: bool) -> None:
    router = Router(7, 3, normalised, 0, 7)
    check_choice(torch.randint(-1, 2, (50, 7)).float(), router)
    check_choice(
        torch.tensor([[0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0], [-1.0, -0.0, -2.0, 0.0, 0.0, -3.0, -0.0]]), router
    )
    check_choice(torch.full((1, 7), -torch.inf), router)


@NUMPY_WARNS
@pytest.mark.parametrize("odd", [torch.nan, -torch.nan, torch.inf])
def test_what_is_not_finite_leaves_the_other_tokens_alone(odd: float) -> None:
    """And its token has as many experts as any other, which no program must look for in vain."""
    from pyllm_kernels.gpu.expert_routing import choose_experts

    logits = torch.randn(3, 5)
    router = Router(5, 2, True, 0, 5)
    expected = choose_experts(logits.to(DEVICE), router)
    logits[1, 3] = odd
    found = choose_experts(logits.to(DEVICE), router)
    assert torch.equal(found.experts[::2], expected.experts[::2])
    assert torch.equal(found.weights[::2], expected.weights[::2])
    assert 3 in found.experts[1].tolist()
    assert found.weights[1].isnan().all()


@st.composite
def choices(draw: st.DrawFn) -> tuple[Tensor, Router, int]:
    """The experts of each token, as `choose_experts` gives them."""
    num_experts = draw(st.integers(1, 9))
    active = draw(st.integers(1, num_experts))
    first = draw(st.integers(0, num_experts - 1))
    count = draw(st.integers(1, num_experts - first))
    of_token = st.lists(st.integers(0, num_experts - 1), min_size=active, max_size=active, unique=True).map(sorted)
    # As many tokens as take more than one look of a program at the pairs, which is at 1024 of them.
    some = draw(st.lists(of_token, min_size=1, max_size=40))
    repeats = draw(st.sampled_from([1, 1, 1, 30]))
    experts = torch.tensor(some * repeats, dtype=torch.int32)
    return experts, Router(num_experts, active, True, first, count), draw(st.sampled_from([16, 32, 64]))


@settings(max_examples=cases(60))
@given(choices())
def test_every_pair_is_in_one_block_of_its_expert(case: tuple[Tensor, Router, int]) -> None:
    from pyllm_kernels.gpu.expert_routing import align_block_size

    experts, router, block_m = case
    found = align_block_size(experts.to(DEVICE), router, block_m)
    pairs, block_experts = found.pairs.cpu(), found.experts.cpu()
    assert pairs.shape == (len(block_experts), block_m)
    local = experts.flatten() - router.first
    here = (local >= 0) & (local < router.count)
    used = block_experts >= 0
    # The blocks with rows come first; each but an expert's last is full, and what fills that up stands at its end.
    assert used.tolist() == sorted(used.tolist(), reverse=True)
    placed = []
    for expert in range(router.count):
        rows = pairs[block_experts == expert].flatten()
        of_expert = (local == expert).nonzero().flatten()
        assert len(rows) == -(-len(of_expert) // block_m) * block_m
        assert torch.equal(rows[: len(of_expert)].long(), of_expert)
        assert (rows[len(of_expert) :] == -1).all()
        placed += of_expert.tolist()
    assert sorted(placed) == here.nonzero().flatten().tolist()
    assert block_experts[used].tolist() == sorted(block_experts[used].tolist())
