"""Unpacks integers of 4 and 8 bits from the int32 words of AWQ, GPTQ and compressed-tensors.

Knows no file and no scale.
"""

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]
"""Integers from 0 up."""
Words = npt.NDArray[np.int32]

# The nibble of a word, from the lowest, that holds the outputs 0, 1, 2 ... in AWQ.
_AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]


def unpacked(words: Words, bits: int, is_awq: bool = False) -> Codes:
    """The integers of some rows of words, [rows, words * 32 / bits]."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    nibbles = np.empty((*octets.shape, 2), np.uint8)
    np.bitwise_and(octets, 15, out=nibbles[..., 0])
    np.right_shift(octets, 4, out=nibbles[..., 1])
    if is_awq:
        nibbles = nibbles.reshape(len(words), -1, 8)[..., _AWQ_NIBBLES]
    return nibbles.reshape(len(words), -1)


def columns_of(words: Words, bits: int, order: npt.NDArray[np.int64], is_awq: bool = False) -> Codes:
    """Some columns of the integers in rows of words, in this order."""
    per_word = 32 // bits
    first, last = int(order.min()) // per_word, int(order.max()) // per_word
    return unpacked(words[:, first : last + 1], bits, is_awq)[:, as_slice(order - first * per_word)]


def as_slice(order: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    """The indices as a slice if they are consecutive: numpy is faster with slices."""
    first, last = int(order[0]), int(order[-1])
    return slice(first, last + 1) if np.array_equal(order, np.arange(first, last + 1)) else order
