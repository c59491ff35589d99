"""The causal convolution and LFM2's gated one, against their references and transformers' convolution."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pyllm_kernels import Kernels, StateRows
from pyllm_kernels.ops.causal_convolution import causal_convolution, gated_convolution
from pyllm_kernels.tensors import Array
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2.modeling_mamba2 import causal_conv1d_fn

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

SHAPES = [(1, 4), (15, 2), (64, 3), (100, 4), (256, 8), (600, 4)]  # channels, width
GATED = pytest.mark.parametrize("gated", [False, True])


def case(gated: bool, channels: int, width: int, dtype: str = "float32", *, has_bias: bool = True) -> Case:
    weight, bias = normal(channels, width, seed=2), normal(channels, seed=3) if has_bias else None

    def run(kernels: Kernels, inputs: Sequence[Array], rows: StateRows, states: Array) -> Array:
        op = gated_convolution if gated else causal_convolution
        out: Array = kernels[op](inputs[0], weight, bias, rows, states)
        return out

    x = columns(TOKENS, 3 * channels if gated else channels, dtype=dtype)
    return Case(run, [x], (width - 1, channels))


@GATED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "width"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_of_any_shape(gated: bool, channels: int, width: int, dtype: str, has_bias: bool) -> None:
    computes_the_reference(case(gated, channels, width, dtype, has_bias=has_bias), dtype)


@GATED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "width"), [(17, 8), (600, 4)])
def test_rows_may_be_cut_and_threads_differ(gated: bool, channels: int, width: int, dtype: str) -> None:
    is_the_same_however_cut(case(gated, channels, width, dtype))


@GATED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "width", "has_bias"), [(70, 4, True), (1, 2, False), (9, 8, True)])
def test_triton_computes_it(
    gated: bool, channels: int, width: int, has_bias: bool, dtype: str, arrays_in_triton: Kernels
) -> None:
    tested = case(gated, channels, width, dtype, has_bias=has_bias)
    computes_the_reference(tested, dtype, arrays_in_triton)
    decodes_as_the_reference(tested, dtype, arrays_in_triton)


@GATED
def test_rows_in_triton_may_be_cut(gated: bool, arrays_in_triton: Kernels) -> None:
    is_close_however_cut(case(gated, 20, 4, "bfloat16"), "bfloat16", arrays_in_triton, exactly=True)


@GATED
def test_a_graph_holds_it(gated: bool) -> None:
    is_the_same_in_a_graph(case(gated, 100, 4, "bfloat16"))


@GATED
def test_wrong_indices_are_refused(gated: bool) -> None:
    refuses_what_is_no_state(case(gated, 8, 3))


@pytest.mark.parametrize("width", [1, 9])
def test_a_width_without_kernel_is_refused(width: int) -> None:
    rows, states = state_rows([TOKENS], [-1], [-1]), np.zeros((1, width - 1, 8), np.float32)
    with pytest.raises(ValueError, match=f"a convolution of width {width}: it must be from 2 to 8"):
        CPU[causal_convolution](normal(TOKENS, 8), normal(8, width), None, rows, states)


def test_it_is_that_of_mamba() -> None:
    x, weight, bias = normal(TOKENS, 40), normal(40, 4, seed=1), normal(40, seed=2)
    rows, states = state_rows([10, 13], [-1, 0], [0, 0]), np.zeros((1, 3, 40), np.float32)
    ours = CPU[causal_convolution](x, weight, bias, rows, states)
    theirs = causal_conv1d_fn(as_torch(x.T)[None], as_torch(weight), as_torch(bias), "silu")
    close(ours, theirs[0].T)
    close(states[0], x[-3:])


@torch.no_grad()
def test_the_gated_one_is_that_of_lfm2() -> None:
    config = Lfm2Config(hidden_size=32, conv_L_cache=3, conv_bias=True, num_hidden_layers=1, layer_types=["conv"])
    layer = Lfm2ShortConv(config, 0)
    hidden = torch.randn(1, TOKENS, 32)
    projected = layer.in_proj(hidden)[0].numpy()
    rows, states = state_rows([1, 22], [-1, 0], [0, 1]), np.zeros((2, 2, 32), np.float32)
    weight, bias = layer.conv.weight[:, 0].numpy(), layer.conv.bias.numpy()
    ours = CPU[gated_convolution](projected, weight, bias, rows, states)
    close(layer.out_proj(torch.from_numpy(ours)).numpy(), layer(hidden)[0])
