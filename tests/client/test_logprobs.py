"""The entries of many log-probabilities are packed until they are read, and are those of a dict then."""

import pytest

from pyllm.client.logprobs import (
    MOST_UNPACKED,
    Logprob,
    PackedEntries,
    are_packed,
    chosen,
    decode_logprobs,
    unpacked,
)
from tests.client.fake_core import Entries, Row, deltas

# The counts beside each bound, and entries in which the chosen token comes twice.
PART = 4096  # entries that are made in one call
SIZES = [0, 1, MOST_UNPACKED, MOST_UNPACKED + 1, PART, PART + 1, 2 * PART + 3]


def entries(size: int) -> Entries:
    tokens = (each % max(1, size - 1) for each in range(size))
    return [(token, -token / 4, token + 1) for token in tokens]


@pytest.mark.parametrize("size", SIZES)
def test_packed_entries_are_a_dict(size: int) -> None:
    given = entries(size)
    columns = decode_logprobs(deltas(Row(1, [5, 6], logprobs=[given, entries(1)])), 2)
    assert columns is not None
    first, second = columns.of(0, 2) or ()
    expected = {token: Logprob(value, rank) for token, value, rank in given}
    assert isinstance(first, PackedEntries) is are_packed([second, first]) is (size > MOST_UNPACKED)
    assert unpacked(first) == expected
    assert list(unpacked(first)) == list(expected)
    assert first == expected
    assert (len(first), list(first.items())) == (len(expected), list(expected.items()))
    assert chosen(first) == next(iter(expected.items()), None)
    assert second == {0: Logprob(0.0, 1)}


def test_packed_entries_have_texts_where_there_is_a_tokenizer() -> None:
    columns = decode_logprobs(deltas(Row(1, [5], logprobs=[entries(PART + 1)])), 1)
    assert columns is not None
    (packed,) = columns.of(0, 1) or ()
    assert isinstance(packed, PackedEntries)
    assert {entry.decoded_token for entry in packed.unpack().values()} == {None}
    packed.token_text = str
    assert all(entry.decoded_token == str(token) for token, entry in packed.unpack().items())
    assert chosen(packed) == (0, packed[0])
