"""Edits, masks and buffers for the tests of what is done to logits."""

import numpy as np
import numpy.typing as npt
import torch
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
    return LogitsEdits(
        torch.from_numpy(starts_of([list(row) for row in rows])),
        torch.tensor([token for row in rows for token in row], dtype=torch.int32),
        *torch.tensor(numbers, dtype=torch.float32).view(-1, 3).T.contiguous(),
    )


def masks_of(allowed: list[set[int]], num_words: int) -> torch.Tensor:
    """Masks int32 [masks, num_words] of the tokens that may come."""
    words = np.zeros((len(allowed), num_words), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(words.view(np.int32))
