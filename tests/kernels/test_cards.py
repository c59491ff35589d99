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


def test_wide_heads_in_float32_do_not_fit_into_old_cards() -> None:
    for dtype, capability, widest in (("float32", (7, 5), 256), ("float16", (7, 5), 576), ("float32", (8, 6), 576)):
        check_card("T", capability, dtype, dtype, widest)
    with pytest.raises(CardError, match=r"7\.5, .* heads of 512 numbers in float32, only of 256: use dtype float16"):
        check_card("T", (7, 5), "float32", "float32", 512)
