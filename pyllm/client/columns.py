"""The columns of a `Deltas` message, decoded and checked against one another. Knows nothing of requests."""

from itertools import pairwise
from typing import NamedTuple

from pyllm.client.logprobs import LogprobColumns, decode_logprobs
from pyllm.wire.messages import Deltas, FinishCode

_FINISH_CODES = {int(code): code for code in FinishCode}


class StartTimes(NamedTuple):
    """Seconds from a request's arrival to the first step that computed it, and from there to its first output."""

    queue: float
    prefill: float


class Columns(NamedTuple):
    """One entry per row, except `starts` (one more), `tokens` (all rows' tokens concatenated) and the last three.

    `logprobs` has entries for each token, or is None if no token has any; `embeddings` maps a row to its float32
    vector, None if no row has one; `start_times` has an entry for each row that begins a request's output.
    """

    requests: list[int]
    samples: list[int]
    offsets: list[int]
    starts: list[int]
    tokens: list[int]
    finishes: list[FinishCode]
    cached_tokens: list[int]
    logprobs: LogprobColumns | None
    embeddings: dict[int, bytes] | None
    start_times: dict[int, StartTimes]


def decode_columns(deltas: Deltas) -> Columns:
    """Decode a message.

    Raises:
        ValueError: a column has the wrong length, or a finish code is unknown.
    """
    try:
        columns = Columns(
            memoryview(deltas.requests).cast("Q").tolist(),
            memoryview(deltas.samples).cast("i").tolist(),
            memoryview(deltas.offsets).cast("i").tolist(),
            memoryview(deltas.token_starts).cast("i").tolist(),
            memoryview(deltas.tokens).cast("i").tolist(),
            _finishes(deltas.finishes),
            memoryview(deltas.cached_tokens).cast("i").tolist(),
            decode_logprobs(deltas, len(deltas.tokens) // 4),
            _embeddings(deltas, len(deltas.requests) // 8) if deltas.embedding_starts else None,
            _start_times(deltas, len(deltas.requests) // 8) if deltas.start_rows else {},
        )
    except TypeError:
        raise ValueError("a column of deltas is not a whole number of elements long") from None
    except KeyError as error:
        raise ValueError(f"a sample ended with the unknown code {error}") from None
    rows = len(columns.requests)
    lengths = [len(column) for column in columns[:7]]
    if lengths != [rows, rows, rows, rows + 1, columns.starts[-1] if columns.starts else 0, rows, rows]:
        raise ValueError(f"the columns of deltas for {rows} rows have lengths {lengths}")
    return columns


def _finishes(codes: bytes) -> list[FinishCode]:
    if codes.count(0) == len(codes):  # as in nearly every step
        return [FinishCode.NONE] * len(codes)
    return [_FINISH_CODES[code] for code in codes]


def _embeddings(deltas: Deltas, num_rows: int) -> dict[int, bytes]:
    starts = memoryview(deltas.embedding_starts).cast("i").tolist()
    values = deltas.embeddings
    bounds = list(pairwise(starts))
    if len(bounds) != num_rows or starts[0] or 4 * starts[-1] != len(values) or any(end < at for at, end in bounds):
        raise ValueError(f"the column of {len(values)} bytes of embeddings is not that of {num_rows} rows")
    return {row: values[4 * start : 4 * end] for row, (start, end) in enumerate(bounds) if start < end}


def _start_times(deltas: Deltas, num_rows: int) -> dict[int, StartTimes]:
    rows = memoryview(deltas.start_rows).cast("i").tolist()
    queue = memoryview(deltas.queue_seconds).cast("f").tolist()
    prefill = memoryview(deltas.prefill_seconds).cast("f").tolist()
    if not len(rows) == len(queue) == len(prefill) or min(rows) < 0 or max(rows) >= num_rows:
        lengths = [len(rows), len(queue), len(prefill)]
        raise ValueError(f"the columns of start times have lengths {lengths}, or name a row that is not there")
    return dict(zip(rows, map(StartTimes, queue, prefill), strict=True))
