"""Which cards are refused, and what their owners are told."""

import pytest
import torch
from pyllm_kernels import CardError, check_card


@pytest.mark.parametrize(
    ("capability", "dtype", "kv_cache_dtype"),
    [
        ((7, 5), torch.float16, torch.float16),
        ((8, 0), torch.bfloat16, torch.bfloat16),
        ((8, 9), torch.bfloat16, torch.float8_e4m3fn),
        ((9, 0), torch.bfloat16, torch.float8_e4m3fn),
        ((12, 0), torch.float32, torch.float32),
    ],
)
def test_cards_that_serve(capability: tuple[int, int], dtype: torch.dtype, kv_cache_dtype: torch.dtype) -> None:
    check_card("a card", capability, dtype, kv_cache_dtype)


@pytest.mark.parametrize(
    ("capability", "dtype", "kv_cache_dtype", "text"),
    [
        ((7, 0), torch.float16, torch.float16, r"V has compute capability 7\.0, .* 7\.5 .*: use device cpu"),
        ((7, 5), torch.bfloat16, torch.bfloat16, r"7\.5, and bfloat16 .* 8\.0 .*: use dtype float16"),
        ((7, 5), torch.float16, torch.bfloat16, r"bfloat16 .*: use dtype float16"),
        ((8, 6), torch.float16, torch.float8_e4m3fn, r"8\.6, and .* fp8 .* 8\.9 .*: use kv_cache_dtype auto"),
    ],
)
def test_cards_that_are_refused(
    capability: tuple[int, int], dtype: torch.dtype, kv_cache_dtype: torch.dtype, text: str
) -> None:
    with pytest.raises(CardError, match=text):
        check_card("V", capability, dtype, kv_cache_dtype)
