"""Which cards are refused, and what their owners are told."""

import pytest
from pyllm_kernels import CardError, check_card


@pytest.mark.parametrize(
    ("capability", "dtype", "kv_cache_dtype"),
    [
        ((7, 5), "float16", "float16"),
        ((8, 0), "bfloat16", "bfloat16"),
        ((8, 9), "bfloat16", "float8_e4m3fn"),
        ((9, 0), "bfloat16", "float8_e4m3fn"),
        ((12, 0), "float32", "float32"),
    ],
)
def test_cards_that_serve(capability: tuple[int, int], dtype: str, kv_cache_dtype: str) -> None:
    check_card("a card", capability, dtype, kv_cache_dtype)


@pytest.mark.parametrize(
    ("capability", "dtype", "kv_cache_dtype", "text"),
    [
        ((7, 0), "float16", "float16", r"V has compute capability 7\.0, .* 7\.5 .*: use device cpu"),
        ((7, 5), "bfloat16", "bfloat16", r"7\.5, and bfloat16 .* 8\.0 .*: use dtype float16"),
        ((7, 5), "float16", "bfloat16", r"bfloat16 .*: use dtype float16"),
        ((8, 6), "float16", "float8_e4m3fn", r"8\.6, and .* fp8 .* 8\.9 .*: use kv_cache_dtype auto"),
    ],
)
def test_cards_that_are_refused(capability: tuple[int, int], dtype: str, kv_cache_dtype: str, text: str) -> None:
    with pytest.raises(CardError, match=text):
        check_card("V", capability, dtype, kv_cache_dtype)
