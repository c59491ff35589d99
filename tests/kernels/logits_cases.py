"""Edits, masks and buffers for the tests of what is done to logits."""

import numpy as np
import numpy.typing as npt
from pyllm_kernels import LogitsEdits


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def starts_of(rows: list[list[int]]) -> npt.NDArray[np.int32]:
    return np.cumsum([0, *map(len, rows)], dtype=np.int32)


def edits_of(rows: list[dict[int, tuple[float, float, float]]]) -> LogitsEdits:
    """Of each row what a token's bias, repetition penalty and subtrahend are."""
    numbers = [number for row in rows for number in row.values()]
    ids = ints(*(token for row in rows for token in row))
    return LogitsEdits(
        starts_of([list(row) for row in rows]), ids, *np.array(numbers, np.float32).reshape(-1, 3).T.copy()
    )


def masks_of(allowed: list[set[int]], num_words: int) -> npt.NDArray[np.int32]:
    """Masks int32 [masks, num_words] of the tokens that may come."""
    words = np.zeros((len(allowed), num_words), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)
