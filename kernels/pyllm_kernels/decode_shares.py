"""The split of decode attention among programs: all rows' tiles in one line, cut into shares of equal length.

A share is the work of one program of each KV head. All shares run in one wave or a few whole ones, whatever the lengths
of the rows (stream-K, arXiv 2301.03598; for decode, arXiv 2405.10480). A row that is cut is merged from its parts. Pure
functions: `gpu/attention_tasks.py` computes the same on the device, where the lengths are.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# The cost of a row beside its tiles, in tiles: a program that begins its next row waits for a block table, then for
# keys. By an H100's bandwidth, a tile of 64 positions takes 4 us if three programs share a multiprocessor. Not
# measured.
ROW_TILES = 1
_MAX_WAVES = 4
_FULL = 0.95


class Splits(NamedTuple):
    """Parts of rows, in the order of the line; int64 [splits] each."""

    rows: npt.NDArray[np.int64]
    shares: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]  # the first position
    ends: npt.NDArray[np.int64]  # the position after the last


def count_shares(resident: int, kv_heads: int) -> int:
    """The number of shares for a card on which `resident` programs run at once.

    It fills one wave with all KV heads of each share, or more waves if one would leave over 5 % of the card idle.
    """
    counts = [waves * resident // kv_heads for waves in range(1, _MAX_WAVES + 1)]
    filled = [count * kv_heads / (waves * resident) for waves, count in enumerate(counts, 1)]
    best = next((index for index, part in enumerate(filled) if part >= _FULL), filled.index(max(filled)))
    return max(counts[best], 1)


def tiles_of_share(tiles: npt.NDArray[np.int64], num_shares: int, min_tiles: int) -> int:
    """The length of a share, in tiles of the line, for rows of `tiles` each.

    It is at least `min_tiles`, so that parts of rows are not too short; but short rows do not share a program if there
    are enough programs.
    """
    length = int(tiles.sum()) + ROW_TILES * (len(tiles) - 1)
    return max(-(-length // num_shares), min(min_tiles, int(tiles.max())), ROW_TILES + 1)


def cut_rows(
    lengths: npt.NDArray[np.int32], block_n: int, num_shares: int, min_tiles: int, window: int | None = None
) -> Splits:
    """The splits of rows of one query token each; a row of length 0, which pads a batch, has one empty split.

    Tiles before the `window` are in no split. Takes some 60 us for 256 rows.
    """
    passed = np.zeros(len(lengths), np.int64) if window is None else np.maximum(lengths - window, 0) // block_n
    tiles = np.maximum(-(-lengths.astype(np.int64) // block_n) - passed, 1)
    size = tiles_of_share(tiles, num_shares, min_tiles)
    begins = np.cumsum(tiles + ROW_TILES) - tiles - ROW_TILES
    first = begins // size
    counts = (begins + tiles - 1) // size - first + 1
    rows = np.repeat(np.arange(len(lengths)), counts)
    shares = np.arange(len(rows)) - (np.cumsum(counts) - counts - first)[rows]
    first_tiles = shares * size - begins[rows]
    starts = (np.maximum(first_tiles, 0) + passed[rows]) * block_n
    ends = np.minimum((first_tiles + size + passed[rows]) * block_n, lengths[rows])
    return Splits(rows, shares, starts, ends)
