"""Random quantised weights, and how far from float64 their products may be.

Triton 3.9's interpreter gets bfloat16 `tl.dot` wrong, so bfloat16 needs a card. Its `tl.dot` of int8 is right, and its
loads of fp8 are right but for NaN: the kernels load bytes and decode them, as Triton does it on no card before Ada.
"""

import gguf
import pytest
import torch
from pyllm_kernels import GGUF_BLOCKS, MatrixRows, Scales
from pyllm_kernels.torch_bridge import as_array
from torch import Tensor

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TOKENS = [0, 1, 3, 50]
FEATURES = 128


def random_w4(outer: int, inner: int, group_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    integers = torch.randint(0, 256, (outer, inner // 2), dtype=torch.uint8, device=device)
    scales = torch.rand(outer, inner // group_size, device=device) * 0.02 + 0.01
    return integers, scales.half(), (-8 * scales + 0.01 * torch.randn_like(scales)).half()


def random_grouped_w8(outer: int, inner: int, group_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    integers = torch.randint(-128, 128, (outer, inner), dtype=torch.int8, device=device)
    return integers, (torch.rand(outer, inner // group_size, device=device) * 0.002 + 0.001).half()


def random_w8(outer: int, inner: int, device: torch.device) -> tuple[Tensor, Tensor]:
    integers = torch.randint(-128, 128, (outer, inner), dtype=torch.int8, device=device)
    return integers, torch.rand(outer, device=device) * 0.002 + 0.001


def random_fp8(outer: int, inner: int, scales: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    weight = torch.randn(outer, inner, device=device).to(torch.float8_e4m3fn)
    return weight, torch.rand(scales, device=device) * 0.2 + 0.1


def rows_of(kind: str, num_rows: int, features: int = FEATURES) -> MatrixRows:
    """Random rows as a file has them: of a format of GGUF, "int8", or "fp8 64", with a scale for 64 features."""
    weight = torch.randn(num_rows, features)
    if kind == "iq4_nl":  # which the gguf package does not make
        return random_blocks(kind, num_rows, features)
    if kind in GGUF_BLOCKS:
        blocks = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind.upper()])
        return MatrixRows.of(blocks, kind)
    if kind == "int8":
        scales = weight.abs().amax(1, keepdim=True) / 127
        return MatrixRows.scaled(as_array((weight / scales).round().to(torch.int8)), Scales(scales.numpy(), features))
    scale_features = int(kind.split()[1])
    scales = torch.rand(num_rows, -(-features // scale_features)) + 0.5
    return MatrixRows.scaled(as_array(weight.to(torch.float8_e4m3fn)), Scales(scales.numpy(), scale_features))


def random_blocks(kind: str, num_rows: int, features: int = FEATURES) -> MatrixRows:
    """Rows of random bits in a format whose blocks begin with a scale, which is a number."""
    block_features, block_bytes = GGUF_BLOCKS[kind]
    blocks = torch.randint(0, 256, (num_rows, features // block_features, block_bytes), dtype=torch.uint8)
    blocks[..., :2] = (torch.randn(blocks.shape[:2]) / 64).half().unsqueeze(-1).view(torch.uint8)
    return MatrixRows.of(blocks.flatten(1).numpy(), kind)


def check(output: Tensor, x: Tensor, weight: Tensor) -> None:
    """Against float64, to what the sum and its dtype allow."""
    assert output.dtype is x.dtype
    expected = x.double() @ weight.T
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(output.double(), expected, atol=tolerance * x.shape[1] ** 0.5, rtol=tolerance)
