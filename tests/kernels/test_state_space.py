"""The recurrences of Mamba-2 and Mamba, against their references and transformers' scans."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pyllm_kernels import Kernels, StateRows
from pyllm_kernels.ops.state_space import selective_scan, state_space
from pyllm_kernels.tensors import Array
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

from tests.kernels.recurrent_ops import (
    CPU,
    DTYPES,
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
    state_rows,
)

NO_LIMITS = (0.0, float("inf"))
# Groups, heads, head_dim, state_size.
SHAPES = [(1, 1, 16, 16), (2, 6, 5, 17), (1, 4, 64, 128), (2, 2, 33, 64)]
CHANNELS = [(1, 16), (100, 16), (64, 7), (130, 33)]  # and state_size


def case(
    groups: int,
    heads: int,
    head_dim: int,
    state_size: int,
    dtype: str = "float32",
    limits: tuple[float, float] = NO_LIMITS,
) -> Case:
    step_bias, decay_log, skip = normal(3, heads, seed=2)

    def run(kernels: Kernels, inputs: Sequence[Array], rows: StateRows, states: Array) -> Array:
        return kernels[state_space](*inputs, step_bias, decay_log, skip, rows, states, limits)

    widths = [heads * head_dim, groups * state_size, groups * state_size, heads]
    inputs = [columns(TOKENS, width, dtype=dtype, seed=seed) for seed, width in enumerate(widths, 3)]
    return Case(run, inputs, (heads, head_dim, state_size))


def scan_case(channels: int, state_size: int, dtype: str = "float32") -> Case:
    (step_bias, skip), decay_log = normal(2, channels, seed=2), normal(channels, state_size, seed=7)

    def run(kernels: Kernels, inputs: Sequence[Array], rows: StateRows, states: Array) -> Array:
        return kernels[selective_scan](*inputs, step_bias, decay_log, skip, rows, states)

    widths = [channels, channels, state_size, state_size]
    inputs = [columns(TOKENS, width, dtype=dtype, seed=seed) for seed, width in enumerate(widths, 3)]
    return Case(run, inputs, (channels, state_size))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("limits", [NO_LIMITS, (0.4, 0.9)], ids=str)
def test_of_any_shape(shape: tuple[int, int, int, int], dtype: str, limits: tuple[float, float]) -> None:
    computes_the_reference(case(*shape, dtype, limits), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", CHANNELS, ids=str)
def test_a_scan_of_any_shape(shape: tuple[int, int], dtype: str) -> None:
    computes_the_reference(scan_case(*shape, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 6, 5, 17), (1, 4, 64, 32)], ids=str)
def test_rows_may_be_cut_and_threads_differ(shape: tuple[int, int, int, int], dtype: str) -> None:
    is_the_same_however_cut(case(*shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(100, 16), (700, 17)], ids=str)
def test_rows_of_a_scan_may_be_cut_and_threads_differ(shape: tuple[int, int], dtype: str) -> None:
    is_the_same_however_cut(scan_case(*shape, dtype))


# In float32 token by token, otherwise in chunks.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 4, 5, 17), (1, 1, 33, 64)], ids=str)
@pytest.mark.parametrize("limits", [NO_LIMITS, (0.4, 0.9)], ids=str)
def test_triton_computes_it(
    shape: tuple[int, int, int, int], dtype: str, limits: tuple[float, float], arrays_in_triton: Kernels
) -> None:
    tested = case(*shape, dtype, limits)
    computes_the_reference(tested, dtype, arrays_in_triton)
    decodes_as_the_reference(tested, dtype, arrays_in_triton)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (70, 7), (20, 33)], ids=str)
def test_triton_computes_a_scan(shape: tuple[int, int], dtype: str, arrays_in_triton: Kernels) -> None:
    tested = scan_case(*shape, dtype)
    computes_the_reference(tested, dtype, arrays_in_triton)
    decodes_as_the_reference(tested, dtype, arrays_in_triton)


def test_rows_in_triton_may_be_cut(arrays_in_triton: Kernels, invariant_arrays_in_triton: Kernels) -> None:
    tested = case(1, 2, 5, 17, "bfloat16")
    is_close_however_cut(tested, "bfloat16", arrays_in_triton, exactly=False)
    is_close_however_cut(tested, "bfloat16", invariant_arrays_in_triton, exactly=True)
    is_close_however_cut(scan_case(9, 5, "bfloat16"), "bfloat16", arrays_in_triton, exactly=True)


@pytest.mark.parametrize("tested", [case(2, 4, 24, 32, "bfloat16"), scan_case(100, 16, "bfloat16")])
def test_a_graph_holds_it(tested: Case) -> None:
    is_the_same_in_a_graph(tested)


@pytest.mark.parametrize("tested", [case(1, 2, 8, 8), scan_case(20, 8)])
def test_wrong_indices_are_refused(tested: Case) -> None:
    refuses_what_is_no_state(tested)


@pytest.mark.parametrize(("width", "groups"), [(24, 3), (7, 0)])
def test_groups_that_do_not_divide_the_heads_are_refused(width: int, groups: int) -> None:
    of_groups, of_heads, x = np.zeros((1, width), np.float32), np.zeros((1, 4), np.float32), normal(1, 32)
    rows, states = state_rows([1], [-1], [-1]), np.zeros((1, 4, 8, 8), np.float32)
    with pytest.raises(ValueError, match=f"4 heads over {groups} groups: each of those must be shared"):
        CPU[state_space](x, of_groups, of_groups, of_heads, *[of_heads[0]] * 3, rows, states, NO_LIMITS)


@pytest.mark.parametrize("limits", [NO_LIMITS, (0.4, 0.9)], ids=str)
def test_it_is_that_of_mamba_2(limits: tuple[float, float]) -> None:
    groups, heads, head_dim, state_size = 2, 4, 16, 32
    tested = case(groups, heads, head_dim, state_size, limits=limits)
    x, b, c, step = (as_torch(array)[None] for array in tested.inputs)
    step_bias, decay_log, skip = map(as_torch, normal(3, heads, seed=2))
    states = tested.states()
    initial = as_torch(states[0])[None]
    ours = tested.on(CPU, slice(None), state_rows([9, 14], [0, 1], [1, 2]), states)
    theirs, last = mamba2_chunk_scan(
        x.unflatten(-1, (heads, head_dim)),
        step,
        -decay_log.exp(),
        b.unflatten(-1, (groups, state_size)),
        c.unflatten(-1, (groups, state_size)),
        chunk_size=8,
        D=skip,
        dt_bias=step_bias,
        initial_states=initial,
        dt_softplus=True,
        dt_limit=limits,
        return_final_states=True,
    )
    close(ours, theirs[0].flatten(1))
    close(states[2], last[0])


def test_the_scan_is_that_of_mamba() -> None:
    tested = scan_case(48, 16)
    x, step, b, c = (as_torch(array.T)[None] for array in tested.inputs)
    (step_bias, skip), decay_log = map(as_torch, normal(2, 48, seed=2)), as_torch(normal(48, 16, seed=7))
    states = tested.states()
    ours = tested.on(CPU, slice(None), state_rows([9, 14], [-1, 1], [1, 2]), states)
    theirs, last = mamba_selective_scan(
        x, step, -decay_log.exp(), b, c, skip, delta_bias=step_bias, delta_softplus=True, return_last_state=True
    )
    close(ours, theirs[0].T)
    close(states[2], last[0])
    assert torch.isfinite(last).all()
