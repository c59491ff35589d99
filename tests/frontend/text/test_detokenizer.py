"""Stop strings, stop tokens and how a sample ends: the same text however its tokens are split."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.logprobs import Logprob
from pyllm.frontend.text.detokenizer import Detokenizer, TextDelta
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode


def feed(
    tokenizer: Tokenizer,
    tokens: list[int],
    cuts: list[int],
    finish: FinishCode = FinishCode.LENGTH,
    **options: object,
) -> tuple[TextDelta, list[TextDelta]]:
    """The sum of all deltas, and the deltas, when the tokens come in pieces and the last piece has the finish."""
    params = msgspec.convert(options, SamplingParams)
    decoder = tokenizer.text_decoder([], params.skip_special_tokens)
    detokenizer = Detokenizer(decoder, params, StopStrings.of(params.stop_strings))
    total, deltas = TextDelta("", []), []
    for start, end in pairwise([0, *cuts, len(tokens)]):
        delta = detokenizer.feed(tokens[start:end], finish if end == len(tokens) else FinishCode.NONE)
        deltas.append(msgspec.structs.replace(delta, tokens=delta.tokens[:]))
        total.merge(delta)
        if delta.finish_reason is not None:
            break
    return total, deltas


def each_token(tokens: list[int]) -> list[int]:
    return list(range(1, len(tokens)))


def test_without_stop_strings_text_comes_at_once(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("Hello world")
    total, deltas = feed(tokenizer, tokens, [1])
    assert [delta.text for delta in deltas] == ["Hello", " world"]
    assert (total.finish_reason, total.stop_reason, total.num_tokens) == ("length", None, 2)


@pytest.mark.parametrize(("finish", "reason"), [(FinishCode.ABORT, "abort"), (FinishCode.LENGTH, "length")])
def test_finish_reasons(tokenizer: Tokenizer, finish: FinishCode, reason: str) -> None:
    assert feed(tokenizer, tokenizer.encode("abc"), [], finish)[0].finish_reason == reason
    assert feed(tokenizer, [], [], finish, stop=("x",))[0].finish_reason == reason


def test_the_text_ends_before_the_stop_string_and_the_count_with_it(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two three")
    total, _ = feed(tokenizer, tokens, [], stop=("two",))
    assert (total.text, total.finish_reason, total.stop_reason) == ("one ", "stop", "two")
    assert tokenizer.decode(total.tokens) == "one two"
    total, _ = feed(tokenizer, tokens, [], stop="two", include_stop_str_in_output=True)
    assert (total.text, total.stop_reason) == ("one two", "two")


def test_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a st ops sto stop")
    _, deltas = feed(tokenizer, tokens, each_token(tokens), stop=("stop",))
    assert "".join(delta.text for delta in deltas) == "a st ops sto "
    text = ""
    for delta in deltas:
        text += delta.text
        assert "a st ops sto stop".startswith(text)
        assert not text.endswith(("s", "st", "sto")) or text in ("a st ops",)


def test_text_held_back_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("it is sto")
    total, deltas = feed(tokenizer, tokens, each_token(tokens), stop=("stop",))
    assert (total.text, deltas[-1].text, total.finish_reason) == ("it is sto", "sto", "length")


def test_the_stop_string_that_is_complete_first_counts(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("xabcdx")
    assert feed(tokenizer, tokens, [], stop=("abcd", "bc"))[0].stop_reason == "bc"
    assert feed(tokenizer, tokens, [], stop=("c", "abc"))[0].stop_reason == "abc"
    word = tokenizer.encode("Hello")
    assert len(word) == 1
    assert feed(tokenizer, word, [], stop=("llo", "el"))[0].stop_reason == "el"


@pytest.mark.parametrize(
    ("min_tokens", "text", "count"), [(0, "a", 2), (1, "a", 2), (2, "a.b", 4), (3, "a.b", 4), (4, "a.b.c", 5)]
)
def test_no_stop_string_is_complete_within_the_tokens_to_come_at_least(
    tokenizer: Tokenizer, min_tokens: int, text: str, count: int
) -> None:
    tokens = tokenizer.encode("a.b.c")
    for cuts in ([], [2], each_token(tokens)):
        total, _ = feed(tokenizer, tokens, cuts, stop=".", min_tokens=min_tokens)
        assert (total.text, total.num_tokens) == (text, count)


def test_a_stop_string_may_begin_within_the_tokens_to_come_at_least(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("xabcd")
    total, _ = feed(tokenizer, tokens, each_token(tokens), stop=("ab", "abcd"), min_tokens=3)
    assert (total.text, total.stop_reason) == ("x", "abcd")
    assert feed(tokenizer, tokens, [], stop=("abc", "abcd"), min_tokens=2)[0].stop_reason == "abc"


def test_deltas_merge_with_their_log_probabilities() -> None:
    total = TextDelta("", [])
    total.merge(TextDelta("a", [5], logprobs=[{5: Logprob(-1.0)}]))
    total.merge(TextDelta("b", [6], logprobs=[{6: Logprob(-2.0)}]))
    total.merge(TextDelta("", [], "length"))
    assert total == TextDelta("ab", [5, 6], "length", logprobs=[{5: Logprob(-1.0)}, {6: Logprob(-2.0)}])


def test_a_stop_string_with_the_last_token_is_a_stop(tokenizer: Tokenizer) -> None:
    total, _ = feed(tokenizer, tokenizer.encode("abc"), [], FinishCode.LENGTH, stop=("c",))
    assert (total.text, total.finish_reason, total.stop_reason) == ("ab", "stop", "c")


def test_a_stop_token_has_no_text_but_counts(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab")
    total, _ = feed(tokenizer, tokens, [1], FinishCode.STOP, stop_token_ids=(tokens[1],))
    assert (total.text, total.tokens, total.stop_reason) == ("a", tokens, tokens[1])
    total, _ = feed(
        tokenizer, tokens, [1], FinishCode.STOP, stop_token_ids=(tokens[1],), include_stop_str_in_output=True
    )
    assert (total.text, total.stop_reason) == ("ab", tokens[1])


def test_the_end_of_sequence_is_no_stop_reason(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("ab"), 0]
    for skip in (True, False):
        total, _ = feed(tokenizer, tokens, [], FinishCode.STOP, skip_special_tokens=skip)
        assert (total.text, total.finish_reason, total.stop_reason, total.num_tokens) == ("ab", "stop", None, 3)


@given(
    text=st.text(alphabet="abcé🙂 ", max_size=30),
    stops=st.lists(st.text(alphabet="abcé🙂 ", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
    data=st.data(),
)
def test_the_text_does_not_depend_on_the_split(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool, data: st.DataObject
) -> None:
    tokens = tokenizer.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=8)))
    options = {"stop": tuple(stops), "include_stop_str_in_output": include}
    total, _ = feed(tokenizer, tokens, cuts, **options)
    assert total == feed(tokenizer, tokens, each_token(tokens) if tokens else [], **options)[0]

    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    if ends:
        end, start = min(ends)
        assert (total.text, total.stop_reason) == (text[: end if include else start], text[start:end])
        assert total.finish_reason == "stop"
        shortest = next(
            count for count in range(len(tokens) + 1) if tokenizer.decode(tokens[:count])[:end] == text[:end]
        )
        assert total.num_tokens == shortest
    else:
        assert (total.text, total.finish_reason, total.num_tokens) == (text, "length", len(tokens))
