"""The columns of a `Deltas` message, decoded and checked against one another. Knows nothing of requests."""

from typing import NamedTuple

from pyllm.frontend.logprobs import LogprobColumns, decode_logprobs
from pyllm.messages import Deltas, FinishCode

_FINISH_CODES = {int(code): code for code in FinishCode}


class Columns(NamedTuple):
    """One entry a row, except for `starts` (one more), `tokens` (all rows' tokens, one after another) and `logprobs`.

    The latter are those of the tokens, or None where no token has any.
    """

    requests: list[int]
    samples: list[int]
    offsets: list[int]
    starts: list[int]
    tokens: list[int]
    finishes: list[FinishCode]
    cached_tokens: list[int]
    logprobs: LogprobColumns | None


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
            [_FINISH_CODES[code] for code in deltas.finishes],
            memoryview(deltas.cached_tokens).cast("i").tolist(),
            decode_logprobs(deltas, len(deltas.tokens) // 4),
        )
    except TypeError:
        raise ValueError("a column of deltas is not a whole number of elements long") from None
    except KeyError as error:
        raise ValueError(f"a sample ended with the unknown code {error}") from None
    rows = len(columns.requests)
    lengths = [len(column) for column in columns[:-1]]
    if lengths != [rows, rows, rows, rows + 1, columns.starts[-1] if columns.starts else 0, rows, rows]:
        raise ValueError(f"the columns of deltas for {rows} rows have lengths {lengths}")
    return columns
