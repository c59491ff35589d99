"""The vocabulary, split over the ranks: token ids to vectors at the bottom, vectors to logits at the top."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm.workers.loaders import WeightReader
from pyllm.workers.placement import Placement


class VocabularyParallelEmbedding:
    """Each rank holds an equal number of rows; those beyond the vocabulary on the last ranks are zero."""

    def __init__(self, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        self._group = placement.group
        self._shape = (vocab_size, hidden_size)
        self._share = placement.share(vocab_size)
        self.vocab_size = vocab_size
        self.weight = placement.empty(-(-vocab_size // placement.group.size), hidden_size)

    def load(self, reader: WeightReader, name: str) -> None:
        """Fill the rows."""
        num_rows = self._share.stop - self._share.start
        reader.read(name, self._shape, self.weight[:num_rows], rows=self._share)
        self.weight[num_rows:] = 0

    def __call__(self, tokens: Tensor) -> Tensor:  # int32 [tokens] -> [tokens, hidden_size]
        if self._group.size == 1:
            return F.embedding(tokens, self.weight)
        elsewhere = (tokens < self._share.start) | (tokens >= self._share.stop)
        vectors = F.embedding((tokens - self._share.start).masked_fill(elsewhere, 0), self.weight)
        return self._group.sum(vectors.masked_fill_(elsewhere.unsqueeze(-1), 0))


class VocabularyParallelHead:
    """Gives rank 0 the logits of the whole vocabulary; a tied head shares the embedding's rows."""

    def __init__(self, rows: VocabularyParallelEmbedding, placement: Placement) -> None:
        self._group = placement.group
        self._vocab_size = rows.vocab_size
        self.weight = rows.weight

    def __call__(self, x: Tensor) -> Tensor | None:  # [rows, hidden_size] -> float32 [rows, vocab_size]
        logits = self._group.concatenate(F.linear(x, self.weight))
        return None if logits is None else logits[:, : self._vocab_size].to(torch.float32)
