"""A `Deltas` message decodes to columns that fit one another, or not at all."""

from array import array

import msgspec
import pytest

from pyllm.client.columns import StartTimes, decode_columns
from pyllm.client.logprobs import Logprob
from pyllm.wire.messages import Deltas, FinishCode
from tests.client.fake_core import Row, deltas

TOLD = (
    Row(4, [7, 8], offset=-1, logprobs=[[(7, -0.5, 1)], [(8, -2.0, 3), (9, -0.25, 1)]]),
    Row(5, [6]),
    Row(6, [5], logprobs=[[(5, 0.0, 1)]]),
)
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
    assert columns.logprobs is None


def test_log_probabilities_come_out_token_by_token() -> None:
    logprobs = decode_columns(deltas(*TOLD)).logprobs
    assert logprobs is not None
    first, second = {7: Logprob(-0.5, 1)}, {8: Logprob(-2.0, 3), 9: Logprob(-0.25, 1)}
    assert logprobs.of(0, 2) == [first, second]
    assert logprobs.of(1, 2) == [second]
    assert [list(each) for each in logprobs.of(0, 4) or ()] == [[7], [8, 9], [], [5]]
    assert logprobs.of(2, 3) is None
    assert logprobs.of(4, 4) is None


@pytest.mark.parametrize("name", ["logprob_starts", "logprob_ids", "logprob_values", "ranks"])
@pytest.mark.parametrize("change", [lambda column: column[:-1], lambda column: column * 2, lambda column: column[4:]])
def test_a_column_of_log_probabilities_of_the_wrong_length_is_refused(name: str, change: object) -> None:
    message = deltas(*TOLD)
    broken = msgspec.structs.replace(message, **{name: change(getattr(message, name))})
    with pytest.raises(ValueError, match="column"):
        decode_columns(broken)


@pytest.mark.parametrize("starts", [[0, 3, 1, 3, 4], [1, 1, 3, 3, 4], [0, -1, 3, 3, 4]])
def test_log_probabilities_that_do_not_follow_one_another_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="do not rise"):
        decode_columns(msgspec.structs.replace(deltas(*TOLD), logprob_starts=array("i", starts).tobytes()))


@pytest.mark.parametrize(
    "name", ["requests", "samples", "offsets", "token_starts", "tokens", "finishes", "cached_tokens"]
)
@pytest.mark.parametrize("change", [lambda column: column[:-1], lambda column: column * 2, lambda column: b""])
def test_a_column_of_the_wrong_length_is_refused(name: str, change: object) -> None:
    message = deltas(*ROWS)
    broken = msgspec.structs.replace(message, **{name: change(getattr(message, name))})
    with pytest.raises(ValueError, match="column"):
        decode_columns(broken)


EMBEDDED = (Row(4, [7]), Row(5, [], embedding=(0.5, 0.25)), Row(6, []), Row(7, [], embedding=(1.0,)))


def test_embeddings_come_out_row_by_row() -> None:
    assert decode_columns(deltas(*ROWS)).embeddings is None
    embeddings = decode_columns(deltas(*EMBEDDED)).embeddings
    assert embeddings == {1: array("f", [0.5, 0.25]).tobytes(), 3: array("f", [1.0]).tobytes()}


@pytest.mark.parametrize(
    ("starts", "size"),
    [([0, 0, 2, 2], 3), ([0, 0, 2, 2, 4], 3), ([0, 0, 2, 1, 3], 3), ([1, 1, 2, 2, 3], 3), ([0, 0, 2, 2, 3], 4)],
)
def test_embeddings_that_do_not_fit_their_rows_are_refused(starts: list[int], size: int) -> None:
    broken = msgspec.structs.replace(
        deltas(*EMBEDDED), embedding_starts=array("i", starts).tobytes(), embeddings=bytes(4 * size)
    )
    with pytest.raises(ValueError, match="column"):
        decode_columns(broken)


BEGUN = (Row(4, [7], offset=3), Row(5, [6], start=StartTimes(0.5, 0.25)), Row(6, [5], start=StartTimes(8.0, 0.0)))


def test_start_times_come_out_by_their_rows() -> None:
    assert decode_columns(deltas(*ROWS)).start_times == {}
    assert decode_columns(deltas(*BEGUN)).start_times == {1: StartTimes(0.5, 0.25), 2: StartTimes(8.0, 0.0)}


def test_a_core_of_an_older_version_tells_no_start_times() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(deltas(*BEGUN)))
    older = msgspec.msgpack.encode(fields[: fields.index(deltas(*BEGUN).start_rows)])
    assert decode_columns(msgspec.msgpack.decode(older, type=Deltas)).start_times == {}


@pytest.mark.parametrize("name", ["start_rows", "queue_seconds", "prefill_seconds"])
@pytest.mark.parametrize("change", [lambda column: column[:-1], lambda column: column * 2, lambda column: column[4:]])
def test_a_column_of_start_times_of_the_wrong_length_is_refused(name: str, change: object) -> None:
    message = deltas(*BEGUN)
    broken = msgspec.structs.replace(message, **{name: change(getattr(message, name))})
    with pytest.raises(ValueError, match="column"):
        decode_columns(broken)


@pytest.mark.parametrize("rows", [[0, 3], [-1, 1]])
def test_a_start_time_of_no_row_is_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="name a row that is not there"):
        decode_columns(msgspec.structs.replace(deltas(*BEGUN), start_rows=array("i", rows).tobytes()))


def test_an_unknown_finish_code_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown code 99"):
        decode_columns(msgspec.structs.replace(deltas(*ROWS), finishes=b"\0\x63"))
