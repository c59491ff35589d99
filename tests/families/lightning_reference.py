"""Lightning attention as Ring-linear and Ling 2.5 have it, of which transformers has no class.

Written from the published models' description: all pairs of tokens at once, with the decays of their distances.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

THETA = 1e4
ROTARY_SIZE = 8
GROUPS = 2
"""The groups of the norm after the attention."""


class LightningAttention(nn.Module):
    """The attention of one layer, in place of that of a class of transformers."""

    def __init__(self, model: PreTrainedModel, index: int) -> None:
        super().__init__()
        config = model.config
        hidden, heads, self._epsilon = config.hidden_size, config.num_attention_heads, config.rms_norm_eps
        self._size = size = 16
        features = heads * size
        self.query_key_value = nn.Linear(hidden, 3 * features, bias=False)
        self.g_proj = nn.Linear(hidden, features, bias=False)
        self.dense = nn.Linear(features, hidden, bias=False)
        self.query_layernorm, self.key_layernorm = (nn.RMSNorm(size, eps=self._epsilon) for _ in range(2))
        self.g_norm = nn.RMSNorm(features, eps=self._epsilon)  # of which only the weight is used
        self._heads = heads
        factor = 1 - (index - 1) / (config.num_hidden_layers - 1) + 1e-5
        self._slopes = torch.tensor([2 ** (-8 * (head + 1) / heads) * factor for head in range(heads)])

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        tokens = hidden_states.shape[1]
        heads = self.query_key_value(hidden_states).reshape(1, tokens, 3, self._heads, self._size)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [1, heads, tokens, size] each
        query, key = _rotated(self.query_layernorm(query)), _rotated(self.key_layernorm(key))
        positions = torch.arange(tokens)
        distances = positions[:, None] - positions
        decays = torch.where(distances < 0, 0, torch.exp(-self._slopes[:, None, None] * distances.clamp(0)))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self._size) * decays
        values = (scores @ value).transpose(1, 2).reshape(1, tokens, GROUPS, -1)
        normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self._epsilon)
        gated = self.g_norm.weight * normed.flatten(2) * torch.sigmoid(self.g_proj(hidden_states))
        return self.dense(gated), None


def _rotated(heads: Tensor) -> Tensor:
    """Heads of consecutive tokens, [..., tokens, size], whose first dimensions are rotated."""
    frequencies = 1 / THETA ** (torch.arange(0, ROTARY_SIZE, 2) / ROTARY_SIZE)
    angles = torch.arange(heads.shape[-2])[:, None] * frequencies
    half = ROTARY_SIZE // 2
    first, second, rest = heads.split([half, half, heads.shape[-1] - ROTARY_SIZE], dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def with_lightning(*layers: int) -> Callable[[PreTrainedModel], None]:
    """The change of a model that gives some of its layers lightning attention."""

    def change(model: PreTrainedModel) -> None:
        for index in layers:
            model.model.layers[index].self_attn = LightningAttention(model, index)

    return change
