"""Our layers as modules of torch, to take the place of those in a model of transformers."""

import torch
from torch import Tensor, nn

from pyllm.families.spec import LinearSpec, ModelSpec
from pyllm.workers.layers.linear import ColumnParallelLinear, RowParallelLinear
from pyllm.workers.layers.placement import Placement
from pyllm.workers.layers.vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from pyllm.workers.loaders.weights import WeightReader


class Linear(nn.Module):
    """A linear layer, this rank's share of it. [..., inputs] -> [..., outputs]."""

    def __init__(self, spec: LinearSpec, placement: Placement) -> None:
        super().__init__()
        outputs, inputs = spec.shape
        self._dtype = placement.dtype
        self.weight = torch.empty(0, dtype=placement.dtype, device=placement.device)  # Some ask for its dtype.
        self.layer: ColumnParallelLinear | RowParallelLinear
        if spec.split == "inputs":
            self.layer = RowParallelLinear(inputs, outputs, placement, spec.bias)
        else:
            shares = [slice(0, outputs)] if spec.split == "whole" else None
            self.layer = ColumnParallelLinear(inputs, (outputs,), placement, spec.bias, shares)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(self._dtype).contiguous()
        return self.layer(rows).view(*x.shape[:-1], -1)


class Embedding(nn.Module):
    """The vectors of tokens [...], each of the hidden size."""

    def __init__(self, rows: VocabularyParallelEmbedding) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, tokens: Tensor) -> Tensor:
        return self.rows(tokens.reshape(-1).to(torch.int32)).view(*tokens.shape, -1)


class Head(nn.Module):
    """Logits of [..., hidden_size]. Those of ranks but the first mean nothing."""

    def __init__(self, rows: VocabularyParallelEmbedding, placement: Placement) -> None:
        super().__init__()
        self._head = VocabularyParallelHead(rows, placement)
        self._vocab_size = rows.vocab_size
        self._dtype = placement.dtype

    def forward(self, x: Tensor) -> Tensor:
        logits = self._head(x.reshape(-1, x.shape[-1]).to(self._dtype).contiguous())
        if logits is None:
            return x.new_zeros((*x.shape[:-1], self._vocab_size))
        return logits.view(*x.shape[:-1], -1)


class Replacements:
    """Puts our layers into a model, and fills them."""

    def __init__(self, model: nn.Module, spec: ModelSpec, placement: Placement) -> None:
        assert spec.transformers is not None
        self.linears: dict[str, Linear] = {}
        for linear in spec.transformers.linears:
            self.linears[linear.name] = Linear(linear, placement)
            _replace(model, linear.name, self.linears[linear.name])
        size = (spec.vocab_size, spec.hidden_size)
        self.vocabulary: dict[str, VocabularyParallelEmbedding] = {}
        embedding, head = spec.transformers.embedding, spec.transformers.head
        if embedding:
            self.vocabulary[embedding] = VocabularyParallelEmbedding(*size, placement)
            _replace(model, embedding, Embedding(self.vocabulary[embedding]))
        if head:
            if not spec.tie_word_embeddings:
                self.vocabulary[head] = VocabularyParallelEmbedding(*size, placement)
            _replace(model, head, Head(self.vocabulary.get(head) or self.vocabulary[embedding], placement))

    def load(self, reader: WeightReader) -> None:
        """Read every parameter of theirs."""
        for path, rows in self.vocabulary.items():
            rows.load(reader, f"{path}.weight")
        for path, linear in self.linears.items():
            linear.layer.load(reader, path)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, name, module)
