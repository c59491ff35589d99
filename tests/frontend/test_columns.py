"""A `Deltas` message decodes to columns that fit one another, or not at all."""

import msgspec
import pytest

from pyllm.frontend.columns import decode_columns
from pyllm.messages import FinishCode
from tests.frontend.fake_core import Row, deltas

ROWS = (Row(2**63, [5, 6], offset=1), Row(4, [], sample=2, finish=FinishCode.ABORT, cached_tokens=16))


def test_columns_come_out_as_they_went_in() -> None:
    columns = decode_columns(deltas(*ROWS))
    assert columns.requests == [2**63, 4]
    assert columns.samples == [0, 2]
    assert columns.offsets == [1, 0]
    assert columns.starts == [0, 2, 2]
    assert columns.tokens == [5, 6]
    assert columns.finishes == [FinishCode.NONE, FinishCode.ABORT]
    assert columns.cached_tokens == [0, 16]


@pytest.mark.parametrize(
    "name", ["requests", "samples", "offsets", "token_starts", "tokens", "finishes", "cached_tokens"]
)
@pytest.mark.parametrize("change", [lambda column: column[:-1], lambda column: column * 2, lambda column: b""])
def test_a_column_of_the_wrong_length_is_refused(name: str, change: object) -> None:
    message = deltas(*ROWS)
    broken = msgspec.structs.replace(message, **{name: change(getattr(message, name))})
    with pytest.raises(ValueError, match="column"):
        decode_columns(broken)


def test_an_unknown_finish_code_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown code 99"):
        decode_columns(msgspec.structs.replace(deltas(*ROWS), finishes=b"\0\x63"))
