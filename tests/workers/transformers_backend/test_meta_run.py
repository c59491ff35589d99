import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.masking_utils import causal_mask_function, chunked_overlay, sliding_window_causal_mask_function

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.attention_interface import Mask
from pyllm.workers.transformers_backend.meta_run import window_of


@given(window=st.integers(1, 400), longest=st.integers(2, 300))
def test_a_window_is_found_in_its_mask(window: int, longest: int) -> None:
    expected = window if window < longest else None
    assert window_of(Mask(sliding_window_causal_mask_function(window)), longest) == expected


@given(longest=st.integers(1, 300))
def test_a_causal_mask_has_no_window(longest: int) -> None:
    assert window_of(Mask(causal_mask_function), longest) is None


@given(size=st.integers(2, 100))
def test_chunks_are_no_window(size: int) -> None:
    overlay = chunked_overlay(size, torch.zeros(1, dtype=torch.long))

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return overlay(batch, head, query, key) & (key <= query)

    with pytest.raises(ConfigError, match="neither causal nor a window"):
        window_of(Mask(sees), 3 * size)


def test_attention_in_both_directions_is_refused() -> None:
    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= 0) & (key >= 0)

    with pytest.raises(ConfigError, match="neither causal nor a window"):
        window_of(Mask(sees), 64)
    with pytest.raises(ConfigError, match="without a causal mask"):
        window_of(None, 64)
