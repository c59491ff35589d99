"""Llama (arXiv 2302.13971, 2307.09288): pre-norm decoder, rotary positions, grouped-query attention, gated SiLU.

Parameters carry the checkpoint's names in `load`; ranks, dtype and device come in as a `Placement`.
"""

from collections.abc import Iterator

import torch
from pyllm_kernels import PackedLinear
from torch import Tensor

from pyllm.checkpoint.types import Architecture
from pyllm.workers.layers.attention import PagedAttention
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.norm import RMSNorm
from pyllm.workers.layers.placement import Placement
from pyllm.workers.layers.vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from pyllm.workers.loaders.weights import WeightReader
from pyllm.workers.step.forward_context import ForwardContext


class LlamaAttention:
    """Grouped-query self-attention."""

    def __init__(self, architecture: Architecture, layer: int, placement: Placement) -> None:
        self.head_dim = architecture.head_dim
        query_size = architecture.num_attention_heads * self.head_dim
        kv_size = architecture.num_key_value_heads * self.head_dim
        self.qkv = ColumnParallelLinear(architecture.hidden_size, (query_size, kv_size, kv_size), placement)
        self.attention = PagedAttention(layer, self.head_dim)
        self.output = RowParallelLinear(query_size, architecture.hidden_size, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.qkv.load(reader, *(f"{prefix}{name}_proj.weight" for name in "qkv"))
        self.output.load(reader, f"{prefix}o_proj.weight")

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        parts = torch.split(self.qkv(x), self.qkv.sizes, dim=-1)
        query, key, value = (part.view(len(x), -1, self.head_dim) for part in parts)  # [tokens, heads, head_dim]
        return self.output(self.attention(query, key, value, context).flatten(1))


class LlamaMLP:
    """The gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, architecture: Architecture, placement: Placement) -> None:
        size = architecture.intermediate_size
        self.gate_up = ColumnParallelLinear(architecture.hidden_size, (size, size), placement)
        self.down = RowParallelLinear(size, architecture.hidden_size, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.gate_up.load(reader, f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight")
        self.down.load(reader, f"{prefix}down_proj.weight")

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:  # [tokens, hidden_size]
        return self.down(context.kernels.silu_and_mul(self.gate_up(x)))


class LlamaDecoderLayer:
    """Attention and feed-forward, each on the normalised residual stream."""

    def __init__(self, architecture: Architecture, layer: int, placement: Placement) -> None:
        self.input_norm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps, placement)
        self.attention = LlamaAttention(architecture, layer, placement)
        self.post_attention_norm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps, placement)
        self.mlp = LlamaMLP(architecture, placement)

    def load(self, reader: WeightReader, prefix: str) -> None:
        self.input_norm.load(reader, f"{prefix}input_layernorm.weight")
        self.attention.load(reader, f"{prefix}self_attn.")
        self.post_attention_norm.load(reader, f"{prefix}post_attention_layernorm.weight")
        self.mlp.load(reader, f"{prefix}mlp.")

    def __call__(self, x: Tensor, residual: Tensor | None, context: ForwardContext) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm(x, residual, context)
        x = self.attention(x, context)
        x, residual = self.post_attention_norm(x, residual, context)
        return self.mlp(x, context), residual


class LlamaForCausalLM:
    """The whole model, or one rank's share of it."""

    def __init__(self, architecture: Architecture, placement: Placement) -> None:
        rows = (architecture.vocab_size, architecture.hidden_size)
        self.tied = architecture.tie_word_embeddings
        self.embedding = VocabularyParallelEmbedding(*rows, placement)
        self.layers = [
            LlamaDecoderLayer(architecture, layer, placement) for layer in range(architecture.num_hidden_layers)
        ]
        self.norm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps, placement)
        self.head_rows = self.embedding if self.tied else VocabularyParallelEmbedding(*rows, placement)
        self.head = VocabularyParallelHead(self.head_rows, placement)

    def load(self, reader: WeightReader) -> None:
        """Fill every parameter; the names are those of transformers."""
        self.embedding.load(reader, "model.embed_tokens.weight")
        for index, layer in enumerate(self.layers):
            layer.load(reader, f"model.layers.{index}.")
        self.norm.load(reader, "model.norm.weight")
        if not self.tied:
            self.head_rows.load(reader, "lm_head.weight")

    def matrices(self) -> Iterator[PackedLinear]:
        """Every matrix but the embedding and the head, in order."""
        for layer in self.layers:
            yield from (*layer.attention.qkv.packed, layer.attention.output.packed)
            yield from (*layer.mlp.gate_up.packed, layer.mlp.down.packed)

    def __call__(self, tokens: Tensor, context: ForwardContext) -> Tensor:  # int32 [tokens] -> [tokens, hidden_size]
        x, residual = self.embedding(tokens), None
        for layer in self.layers:
            x, residual = layer(x, residual, context)
        return self.norm(x, residual, context)[0]

    def logits(self, x: Tensor) -> Tensor | None:
        """From [rows, hidden_size] to [rows, vocab_size] on rank 0; None on the others."""
        return self.head(x)
