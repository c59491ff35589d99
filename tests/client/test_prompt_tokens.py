"""A prompt's ids, packed: a sequence like any other, and all of them of the vocabulary."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.prompt_tokens import PromptTokens, known_tokens, pack_tokens
from pyllm.errors import RequestError

VOCABULARY = 600


@given(st.lists(st.integers(0, VOCABULARY - 1)))
def test_known_ids_are_the_ids_however_they_come(ids: list[int]) -> None:
    packed = array("i", ids).tobytes()
    for prompt in (ids, tuple(ids), array("i", ids), packed, bytearray(packed), memoryview(packed)):
        tokens = known_tokens(prompt, VOCABULARY)
        assert (tokens.packed, list(tokens), tokens.tolist(), len(tokens)) == (packed, ids, ids, len(ids))
        assert tokens[-4:] == ids[-4:]
        assert [tokens[index] for index in range(len(ids))] == ids
    assert known_tokens(tokens, VOCABULARY) is tokens
    assert pack_tokens(tokens) == array("i", ids)
    assert isinstance(tokens, Sequence)
    assert repr(PromptTokens(packed)) == f"PromptTokens({ids})"


@pytest.mark.parametrize(("ids", "wrong"), [([1, 600], 600), ([-1, 7], -1), ([5, 599, -(2**31)], -(2**31))])
def test_an_id_outside_the_vocabulary_is_named(ids: list[int], wrong: int) -> None:
    with pytest.raises(RequestError, match=f"token id {wrong} is outside the vocabulary of 600 tokens") as failure:
        known_tokens(ids, VOCABULARY)
    assert failure.value.parameter == "prompt"


@pytest.mark.parametrize("prompt", [[2**31], ["a"], b"abc", [1.5]])
def test_what_is_no_id_is_refused(prompt: Sequence[int]) -> None:
    with pytest.raises(RequestError, match="not a sequence of 32-bit token ids"):
        known_tokens(prompt, VOCABULARY)
