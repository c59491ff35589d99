"""Log-probabilities in OpenAI's shapes: finite, in order, and with an entry for whatever has one."""

import math

import pytest

from pyllm.client.logprobs import Logprob, LogprobEntries
from pyllm.frontend.openai.logprobs import LEAST, chat_logprobs, completion_logprobs, prompt_logprobs

NEVER = [-math.inf, math.nan, -1e30]


def token_bytes(token: int) -> bytes:
    return bytes([token])


def entries(*values: float) -> LogprobEntries:
    """Tokens a, b, c... with these log-probabilities, the first of which was chosen."""
    return {97 + index: Logprob(value, index + 1, chr(97 + index)) for index, value in enumerate(values)}


def test_the_likeliest_tokens_of_a_chat_come_best_first_and_the_lower_id_before_its_equal() -> None:
    (content,) = chat_logprobs([entries(-3.0, -1.0, -0.5, -1.0)], 3, token_bytes).content
    assert (content.token, content.logprob, content.bytes) == ("a", -3.0, [97])
    assert [(top.token, top.logprob, top.bytes) for top in content.top_logprobs] == [
        ("c", -0.5, [99]),
        ("b", -1.0, [98]),
        ("d", -1.0, [100]),
    ]


def test_a_chosen_token_is_among_the_likeliest_where_it_is_one() -> None:
    (content,) = chat_logprobs([entries(-0.1, -1.0)], 2, token_bytes).content
    assert [top.token for top in content.top_logprobs] == ["a", "b"]


@pytest.mark.parametrize("value", NEVER)
def test_what_is_impossible_is_a_number_of_json(value: float) -> None:
    answer, _ = completion_logprobs([entries(value, value)], 0)
    assert (answer.token_logprobs, answer.top_logprobs) == ([LEAST], [{"a": LEAST, "b": LEAST}])
    (content,) = chat_logprobs([entries(value)], 1, token_bytes).content
    assert (content.logprob, content.top_logprobs[0].logprob) == (LEAST, LEAST)
    assert prompt_logprobs([entries(value)]) == [None, {97: Logprob(LEAST, 1, "a")}]


def test_of_tokens_with_one_text_the_likeliest_counts() -> None:
    same = {200: Logprob(-2.0, 2, "\ufffd"), 201: Logprob(-1.0, 1, "\ufffd")}
    answer, _ = completion_logprobs([same], 0)
    assert (answer.token_logprobs, answer.top_logprobs) == ([-2.0], [{"\ufffd": -1.0}])


def test_texts_follow_one_another_from_the_offset_on() -> None:
    answer, end = completion_logprobs([entries(-1.0), {5: Logprob(-1.0, 1, "long")}, entries(-1.0)], 7)
    assert (answer.tokens, answer.text_offset, end) == (["a", "long", "a"], [7, 8, 12], 13)


def test_a_token_that_nothing_was_told_of_has_its_place_in_a_completion() -> None:
    answer, end = completion_logprobs([{}, entries(-1.0)], 0)
    assert (answer.token_logprobs, answer.top_logprobs, end) == ([None, -1.0], [None, {"a": -1.0}], 1)
    assert len(chat_logprobs([{}, entries(-1.0)], 0, token_bytes).content) == 1
