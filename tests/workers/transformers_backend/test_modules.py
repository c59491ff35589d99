import pytest
import torch
from pyllm_kernels import select
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from pyllm.workers.layers.placement import Placement
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.transformers_backend.modules import RMSNorm, replace_norms

SIZE = 48


class OwnRMSNorm(LlamaRMSNorm):
    """One that only looks like the others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01


def placement(dtype: torch.dtype) -> Placement:
    device = torch.device("cpu")
    return Placement(RankGroup(), dtype, device, select("cpu", device))


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
