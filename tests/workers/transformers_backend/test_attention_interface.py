import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.attention_interface import NAME, AttentionCall, Mask, attending

QUERY, KEY = torch.rand(1, 4, 7, 16), torch.rand(1, 2, 7, 16)
MASK = Mask(causal_mask_function)


def call_attention(query: Tensor = QUERY, key: Tensor = KEY, mask: Any = MASK, **arguments: Any) -> AttentionCall:
    """What reaches us of a call that a model makes."""
    found = []

    def attend(call: AttentionCall) -> Tensor:
        found.append(call)
        return call.query + 1

    with attending(attend):
        output, weights = AttentionInterface()[NAME](nn.Module(), query, key, 2 * key, mask, **arguments)
    (call,) = found
    assert weights is None
    assert torch.equal(output, query.transpose(1, 2) + 1)
    return call


def test_a_call_brings_tokens_heads_and_what_the_model_asks_for() -> None:
    sinks = torch.rand(4)
    call = call_attention(scaling=0.5, softcap=20.0, s_aux=sinks, dropout=0.0, position_ids=torch.arange(7), flag=None)
    assert torch.equal(call.query, QUERY[0].transpose(0, 1))
    assert torch.equal(call.value, 2 * KEY[0].transpose(0, 1))
    assert (call.scale, call.soft_cap, call.mask, call.sinks is sinks) == (0.5, 20.0, MASK, True)


def test_the_scale_is_that_of_the_head_unless_given() -> None:
    assert call_attention().scale == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position_bias": torch.ones(1)}, "attention is called with position_bias, which is not known"),
        ({"temperature": 2.0, "window": 3}, "with temperature, window, which is not known"),
        ({"mask": torch.ones(1, 1, 7, 7)}, "with a mask that the model makes itself"),
        ({"key": KEY[:, :, :5]}, re.escape("with a query of (1, 4, 7, 16) and a key of (1, 2, 5, 16)")),
        ({"query": QUERY.expand(2, 4, 7, 16)}, "with a query of "),
    ],
)
def test_what_would_change_the_result_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call_attention(**arguments)


def test_a_mask_is_not_made() -> None:
    mask = AttentionMaskInterface()[NAME](batch_size=1, q_length=7, kv_length=7, mask_function=causal_mask_function)
    assert mask.sees is causal_mask_function
