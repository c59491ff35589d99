"""The vocabulary, split over the ranks: the embedding of token ids, and the head from hidden states to logits.

A tied head and embedding share one packed matrix. Knows neither the text of tokens nor sampling.
"""

from pyllm_kernels import PackedLinear
from pyllm_kernels.ops.packed_linear import packed_linear, packed_rows
from pyllm_kernels.tensors import Tensor

from pyllm.workers.layers.packing import pack
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.weights import MatrixPart, WeightReader


class VocabularyParallelEmbedding:
    """The embedding. Each rank holds the same number of rows; rows beyond the vocabulary on the last ranks are zero.

    If the file has fewer rows, `rows`, than the vocabulary, further tokens have row 0.
    """

    packed: PackedLinear

    def __init__(self, vocab_size: int, hidden_size: int, placement: WeightPlacement, rows: int | None = None) -> None:
        self._placement = placement
        self._shape = (vocab_size if rows is None else rows, hidden_size)
        self._share = placement.share(vocab_size)
        self.vocab_size = vocab_size

    def load(self, reader: WeightReader, name: str) -> None:
        """Read the rows."""
        own = range(self.vocab_size)[self._share]
        in_file = range(own.start, min(own.stop, self._shape[0]))
        parts = [MatrixPart(name, self._shape, slice(in_file.start, in_file.stop))] if in_file else []
        parts += [MatrixPart(name, self._shape, slice(0, 1))] * (len(own) - len(in_file))
        num_padding_rows = -(-self.vocab_size // self._placement.group.size) - len(own)
        (self.packed,) = pack(reader, self._placement, parts, num_padding_rows)

    def __call__(self, tokens: Tensor) -> Tensor:  # int32 [tokens] -> [tokens, hidden_size]
        kernels, group = self._placement.kernels, self._placement.group
        if group.size == 1:
            return kernels[packed_rows](self.packed, tokens)
        elsewhere = (tokens < self._share.start) | (tokens >= self._share.stop)
        vectors = kernels[packed_rows](self.packed, (tokens - self._share.start) * ~elsewhere)
        vectors[elsewhere] = 0
        return group.sum(vectors)


class VocabularyParallelHead:
    """The head: logits of the whole vocabulary on rank 0. A tied head shares the embedding's rows."""

    def __init__(self, rows: VocabularyParallelEmbedding, placement: WeightPlacement) -> None:
        self._placement = placement
        self._rows = rows

    def __call__(self, x: Tensor) -> Tensor | None:  # [rows, hidden_size] -> [rows, vocab_size], of x's dtype
        share = self._placement.kernels[packed_linear](x, self._rows.packed)
        logits = self._placement.group.concatenate(share)
        return None if logits is None else logits[:, : self._rows.vocab_size]
