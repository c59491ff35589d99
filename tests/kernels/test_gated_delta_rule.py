"""The gated delta rule, against its reference and the recurrences of transformers."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pyllm_kernels import Kernels, StateRows
from pyllm_kernels.ops.gated_delta_rule import gated_delta_rule
from pyllm_kernels.tensors import Array
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from tests.kernels.recurrent_ops import (
    CPU,
    DTYPES,
    REFERENCE,
    TOKENS,
    Case,
    as_torch,
    close,
    columns,
    computes_the_reference,
    decodes_as_the_reference,
    is_close_however_cut,
    is_the_same_however_cut,
    is_the_same_in_a_graph,
    normal,
    refuses_what_is_no_state,
    same,
    state_rows,
)

# Key heads, value heads, and dimensions of both.
SHAPES = [(1, 1, 16, 16), (2, 6, 17, 5), (2, 4, 64, 96), (1, 2, 128, 128), (3, 3, 8, 300)]


def case(
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    dtype: str = "float32",
    *,
    many: bool = False,
    **options: float,
) -> Case:
    """With `many`, a head has a decay for each dimension of its keys."""
    decays = value_heads * key_dim if many else value_heads
    decay_scale, decay_bias = normal(value_heads, seed=2), normal(decays, seed=5)

    def run(kernels: Kernels, inputs: Sequence[Array], rows: StateRows, states: Array) -> Array:
        return kernels[gated_delta_rule](*inputs, decay_scale, decay_bias, rows, states, key_heads, **options)

    inputs = [
        columns(TOKENS, 2 * key_heads * key_dim + value_heads * value_dim, dtype=dtype),
        columns(TOKENS, decays, dtype=dtype, seed=3),
        columns(TOKENS, value_heads, dtype=dtype, seed=4),
    ]
    return Case(run, inputs, (value_heads, key_dim, value_dim))


MANY = pytest.mark.parametrize("many", [False, True])


@MANY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_of_any_shape(shape: tuple[int, int, int, int], dtype: str, many: bool) -> None:
    computes_the_reference(case(*shape, dtype, many=many), dtype)


@MANY
@pytest.mark.parametrize("options", [{"greatest_share": 2.0}, {"strongest_decay": -5.0}], ids=str)
def test_of_greater_shares_and_bounded_decays(options: dict[str, float], many: bool) -> None:
    tested = case(2, 6, 17, 5, many=many, **options)
    computes_the_reference(tested, "float32")
    plain = case(2, 6, 17, 5, many=many)
    rows, states = state_rows([TOKENS], [-1], [0]), [made.states() for made in (tested, plain)]
    with_options, without = (
        made.on(CPU, slice(None), rows, of) for made, of in zip((tested, plain), states, strict=True)
    )
    assert np.abs(with_options - without).max() > 0.01


@MANY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 6, 17, 5), (2, 4, 64, 144)], ids=str)
def test_rows_may_be_cut_and_threads_differ(shape: tuple[int, int, int, int], dtype: str, many: bool) -> None:
    is_the_same_however_cut(case(*shape, dtype, many=many))


# In float32 token by token, otherwise in chunks.
@MANY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2, 17, 5), (1, 1, 32, 80)], ids=str)
def test_triton_computes_it(
    shape: tuple[int, int, int, int], dtype: str, many: bool, arrays_in_triton: Kernels
) -> None:
    tested = case(*shape, dtype, many=many)
    computes_the_reference(tested, dtype, arrays_in_triton)
    decodes_as_the_reference(tested, dtype, arrays_in_triton)


@MANY
def test_rows_in_triton_may_be_cut(many: bool, arrays_in_triton: Kernels, invariant_arrays_in_triton: Kernels) -> None:
    tested = case(1, 1, 17, 5, "bfloat16", many=many)
    is_close_however_cut(tested, "bfloat16", arrays_in_triton, exactly=False)
    is_close_however_cut(tested, "bfloat16", invariant_arrays_in_triton, exactly=True)


@pytest.mark.parametrize("decay", [200.0, -200.0])
def test_extreme_decays_stay_finite_in_triton(decay: float, arrays_in_triton: Kernels) -> None:
    tested = case(1, 1, 17, 5, "float16")
    decays = np.where(np.arange(TOKENS) % 3 == 0, np.float16(decay), tested.inputs[1][:, 0])[:, None]
    extreme = Case(tested.run, [tested.inputs[0], decays.astype(np.float16), tested.inputs[2]], tested.state_shape)
    computes_the_reference(extreme, "float16", arrays_in_triton)


@MANY
def test_rows_longer_than_what_is_loaded_at_once_may_be_cut(many: bool) -> None:
    tested = case(1, 1, 32, 80, many=many)
    repeated = Case(tested.run, [np.tile(array, (4, 1)) for array in tested.inputs], tested.state_shape)
    states, other_states = repeated.states(), repeated.states()
    whole = repeated.on(CPU, slice(None), state_rows([92], [0], [1]), states)
    cut = repeated.on(CPU, slice(None), state_rows([33, 1, 58], [0, 1, 1], [1, 1, 1]), other_states)
    assert same(whole, cut)
    assert same(states, other_states)
    expected_states = repeated.states()
    close(whole, repeated.on(REFERENCE, slice(None), state_rows([92], [0], [1]), expected_states))
    close(states, expected_states)


@MANY
def test_a_graph_holds_it(many: bool) -> None:
    is_the_same_in_a_graph(case(2, 4, 32, 48, "bfloat16", many=many))


def test_wrong_indices_are_refused() -> None:
    refuses_what_is_no_state(case(1, 2, 8, 8))


def test_heads_that_do_not_divide_are_refused() -> None:
    rows, states = state_rows([1], [-1], [-1]), np.zeros((1, 4, 8, 8), np.float32)
    numbers, of_heads = np.zeros((1, 80), np.float32), np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="4 heads over 3 groups: each of those must be shared by as many of these"):
        CPU[gated_delta_rule](numbers, of_heads, of_heads, of_heads[0], of_heads[0], rows, states, 3)


@pytest.mark.parametrize(("decay", "scale", "expected"), [(200.0, 80.0, 0.0), (-200.0, 0.0, 1.0), (30.0, -5.0, 0.817)])
def test_an_extreme_decay_is_finite(decay: float, scale: float, expected: float) -> None:
    state, rows = np.ones((1, 1, 16, 16), np.float32), state_rows([1], [0], [0])
    decays, scales = np.full((1, 1), decay, np.float32), np.full(1, scale, np.float32)
    beta, bias = np.full((1, 1), -100, np.float32), np.zeros(1, np.float32)
    CPU[gated_delta_rule](normal(1, 48), decays, beta, scales, bias, rows, state, 1)
    np.testing.assert_allclose(state, expected, atol=1e-3)


def test_it_is_that_of_kimi() -> None:
    heads, key_dim, value_dim = 3, 32, 48
    tested = case(heads, heads, key_dim, value_dim, many=True)
    qkv, decay, beta = tested.inputs
    rate, bias = as_torch(normal(heads, seed=2)).exp()[:, None], as_torch(normal(heads * key_dim, seed=5))
    states = tested.states()
    initial = as_torch(states[0])[None]
    ours = tested.on(CPU, slice(None), state_rows([10, 13], [0, 1], [1, 2]), states)
    query, key, value = as_torch(qkv)[None].split([heads * key_dim, heads * key_dim, heads * value_dim], dim=-1)
    theirs, last = recurrent_kimi_delta_attention(
        query.unflatten(-1, (heads, key_dim)),
        key.unflatten(-1, (heads, key_dim)),
        value.unflatten(-1, (heads, value_dim)),
        g=-rate * torch.nn.functional.softplus(as_torch(decay)[None] + bias).unflatten(-1, (heads, key_dim)),
        beta=as_torch(beta)[None].sigmoid(),
        initial_state=initial,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    close(ours, theirs[0].flatten(1))
    close(states[2], last[0])


def test_it_is_that_of_qwen() -> None:
    key_heads, value_heads, key_dim, value_dim = 2, 4, 32, 48
    tested = case(key_heads, value_heads, key_dim, value_dim)
    qkv, decay, beta = tested.inputs
    decay_scale, decay_bias = (as_torch(normal(value_heads, seed=seed)) for seed in (2, 5))
    states = tested.states()
    initial = as_torch(states[0])[None]
    ours = tested.on(CPU, slice(None), state_rows([10, 13], [0, 1], [1, 2]), states)
    width = key_heads * key_dim
    query, key, value = as_torch(qkv)[None].split([width, width, value_heads * value_dim], dim=-1)
    theirs, last = torch_recurrent_gated_delta_rule(
        query.unflatten(-1, (key_heads, key_dim)),
        key.unflatten(-1, (key_heads, key_dim)),
        value.unflatten(-1, (value_heads, value_dim)),
        g=-decay_scale.exp() * torch.nn.functional.softplus(as_torch(decay)[None] + decay_bias),
        beta=as_torch(beta)[None].sigmoid(),
        initial_state=initial,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    close(ours, theirs[0].flatten(1))
    close(states[2], last[0])
