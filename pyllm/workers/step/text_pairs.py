"""Tokens of the second texts of pairs, for models that tell both texts apart. Knows no plan."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm.families.spec import ModelSpec

Ints = npt.NDArray[np.signedinteger[Any]]


class TextPairs(NamedTuple):
    """The ids of second texts are `vocab_size` further on, see `ModelSpec.second_text_offset`.

    They have rows of the position embedding of their own, `offset` further on, which include their type.
    """

    vocab_size: int
    offset: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "TextPairs | None":
        """The pairs of a model; None where it does not tell texts apart."""
        return cls(spec.vocab_size, spec.positions) if spec.tells_texts_apart else None

    def move(self, tokens: Ints, positions: Ints) -> None:
        """Make tokens of ids, and move the positions [tokens] of second texts, in place."""
        is_second = tokens >= self.vocab_size
        tokens[is_second] -= self.vocab_size
        positions[is_second] += self.offset
