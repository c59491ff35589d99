"""Positions of the second texts of pairs, for models that tell both texts apart. Knows no plan."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllm.families.spec import ModelSpec

Ints = npt.NDArray[np.signedinteger[Any]]


class TextPairs(NamedTuple):
    """Tokens after a sequence's first `separator` are the second text's.

    These have rows of the position embedding of their own, `offset` further on, which include their type.
    """

    separator: int
    offset: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "TextPairs | None":
        """The pairs of a model; None where it does not tell texts apart."""
        return None if spec.separator is None else cls(spec.separator, spec.positions)

    def move(self, tokens: Ints, positions: Ints, query_starts: Ints) -> None:
        """Move the positions [tokens] of second texts, in place. Each sequence, from its start on, is whole."""
        ends = tokens == self.separator
        passed = np.cumsum(ends) - ends
        before = np.repeat(np.append(passed, 0)[query_starts[:-1]], np.diff(query_starts))
        positions[passed > before] += self.offset
