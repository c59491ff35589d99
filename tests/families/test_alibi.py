"""The slopes of ALiBi against transformers', and fields of MPT that transformers does not read."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from pyllm.families import falcon, mpt
from pyllm.families.config import Config, UnsupportedFeatureError
from pyllm.families.family import alibi_slopes

FIELDS = {
    "architectures": ["MptForCausalLM"],
    "vocab_size": 264,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 256,
}


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 12, 16, 25, 32, 40, 71, 112])
def test_slopes_equal_those_of_transformers(heads: int) -> None:
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom, atol=0, rtol=1e-6)
    for greatest in (8, 16, 4):
        slopes = -build_mpt_alibi_tensor(heads, 2, greatest)[:, 0, 0]
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads, greatest)), slopes, atol=0, rtol=1e-6)


def test_mpt_has_its_own_greatest_exponent_and_scale_of_logits() -> None:
    spec = mpt.read(Config(FIELDS | {"attn_config": {"alibi_bias_max": 4}, "logit_scale": "inv_sqrt_d_model"}))
    assert spec.attention.slopes == (2**-1, 2**-2, 2**-3, 2**-4)
    assert spec.logit_scale == pytest.approx(32**-0.5)
    assert mpt.read(Config(FIELDS | {"logit_scale": 0.5})).logit_scale == 0.5


@pytest.mark.parametrize("changed", [{"alibi": False}, {"qk_ln": True}, {"attn_type": "multiquery_attention"}])
def test_other_attention_of_mpt_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"attn_config: {next(iter(changed))} = "):
        mpt.read(Config(FIELDS | {"attn_config": changed}))


def test_a_file_of_llama_cpp_has_0_for_what_is_not_there() -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "architectures"}
    assert mpt.FAMILY.gguf is not None
    plain = mpt.FAMILY.gguf.complete(Config(fields | {"alibi_bias_max": 8.0, "clip_qkv": 0.0}))
    assert mpt.read(plain.replaced(architectures=["MptForCausalLM"])).attention.clip is None
    with pytest.raises(UnsupportedFeatureError, match="attn_config: alibi = False"):
        mpt.read(mpt.FAMILY.gguf.complete(Config(fields | {"alibi_bias_max": 0.0})))


def test_slopes_of_falcon_are_scaled_as_its_scores() -> None:
    fields = {"architectures": ["FalconForCausalLM"], "vocab_size": 264, "hidden_size": 64, "num_hidden_layers": 1}
    spec = falcon.read(Config(fields | {"num_attention_heads": 4, "alibi": True}))
    assert spec.attention.slopes == (2**-4, 2**-6, 2**-8, 2**-10)
    assert spec.attention.rope is None
