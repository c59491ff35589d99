import pytest
import torch
from pyllm_kernels import dtype_name, select
from pyllm_kernels.ops.packed_linear import pack_linear
from torch import Tensor, nn
from transformers import GemmaConfig, LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from pyllm.families.spec import LinearSpec
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.transformers_backend.modules import (
    GatedFeedForward,
    Linear,
    Linears,
    RMSNorm,
    fuse_feed_forwards,
    replace_norms,
)

SIZE = 48
WIDTH = 64


class OwnRMSNorm(LlamaRMSNorm):
    """One that only looks like the others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01


def placement(dtype: torch.dtype) -> WeightPlacement:
    device = TorchDevice(torch.device("cpu"))
    return WeightPlacement(RankGroup(), dtype_name(dtype), device, select("cpu", device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "is_replaced"), [(LlamaRMSNorm, True), (Gemma2RMSNorm, True), (OwnRMSNorm, False)])
def test_norms_are_replaced_where_they_give_the_same(
    kind: type[nn.Module], is_replaced: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    original = kind(SIZE).to(dtype)
    original.weight.data = torch.rand(SIZE, generator=generator).to(dtype)
    model = nn.Sequential(original)
    replace_norms(model, placement(dtype))
    assert isinstance(model[0], RMSNorm) == is_replaced
    for shape in ((1, 7, SIZE), (1, 7, 3, SIZE)):
        x = torch.randn(shape, generator=generator)
        assert torch.equal(model[0](x.double()), original(x.double()))  # of another dtype, by the original
        torch.testing.assert_close(model[0](x.to(dtype)), original(x.to(dtype)))


def test_a_norm_that_stays_float32_is_not_replaced() -> None:
    model = nn.Sequential(LlamaRMSNorm(SIZE))
    replace_norms(model, placement(torch.bfloat16))
    assert not isinstance(model[0], RMSNorm)


class ScaledMLP(LlamaMLP):
    """One that scales what its last layer gets."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * 0.9)


class OffsetMLP(LlamaMLP):
    """One that adds to what its last layer gives."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1


LLAMA = LlamaConfig(hidden_size=SIZE, num_attention_heads=3, intermediate_size=WIDTH)
GEMMA = GemmaConfig(hidden_size=SIZE, num_attention_heads=3, intermediate_size=WIDTH, hidden_act="gelu_pytorch_tanh")


def use_our_linears(module: nn.Module, dtype: torch.dtype) -> None:
    for names, (outputs, inputs) in ((("gate_proj", "up_proj"), (WIDTH, SIZE)), (("down_proj",), (SIZE, WIDTH))):
        specs = [LinearSpec(name=name, shape=(outputs, inputs)) for name in names]
        linears = Linears(specs, placement(dtype))
        weights = [module.get_parameter(f"{name}.weight").detach() for name in names]
        linears.layer.packed = (pack_linear(torch.cat(weights)),)
        for index, name in enumerate(names):
            setattr(module, name, Linear(linears, index, placement(dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("original", "is_fused"),
    [(LlamaMLP, True), (GemmaMLP, True), (ScaledMLP, False), (OffsetMLP, False)],
)
def test_feed_forward_layers_are_fused_where_they_give_the_same(
    original: type[nn.Module], is_fused: bool, dtype: torch.dtype
) -> None:
    module = original(GEMMA if original is GemmaMLP else LLAMA).to(dtype)
    x = torch.randn((1, 7, SIZE), generator=torch.Generator().manual_seed(3)).to(dtype)
    with torch.no_grad():
        expected = module(x)
        use_our_linears(module, dtype)
        fuse_feed_forwards(nn.Sequential(module), placement(dtype))
        assert isinstance(module.forward, GatedFeedForward) == is_fused
        torch.testing.assert_close(module(x), expected, rtol=0.02, atol=float(expected.abs().max()) / 100)
