"""Bad words become the tokens that they are at the beginning and after a space; a form becomes a grammar, once."""

import pytest

from pyllm.client.submission import prepare
from pyllm.errors import RequestError
from pyllm.frontend.text.sampling_texts import resolve_texts, resolve_texts_aside
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.sampling_params import SamplingParams
from pyllm.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams
from tests.client.fake_core import MODEL


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_a_word_is_banned_after_a_space_too_where_that_is_another_token_of_the_same_number(
    tokenizer: Tokenizer,
) -> None:
    params = SamplingParams(bad_words=[" ab", "Hello", "the"], bad_words_token_ids=[[7]])
    resolved = resolve_texts(params, tokenizer)
    assert len(ids(tokenizer, " the")) == 1
    assert resolved.bad_words_token_ids == [[7], ids(tokenizer, "ab"), ids(tokenizer, "Hello"), ids(tokenizer, "the")]
    assert resolved.bad_words == ()
    assert resolve_texts(resolved, tokenizer) == resolved


def test_both_forms_of_a_word_are_banned() -> None:
    class Spaced(Tokenizer):
        """Writes a word after a space as one token, as it writes the word alone."""

        def __init__(self) -> None:
            pass

        def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
            assert not add_special_tokens
            return [[300 + len(text)] for text in texts]

    resolved = resolve_texts(SamplingParams(bad_words=["  it"]), Spaced())
    assert resolved.bad_words_token_ids == [[302], [303]]


@pytest.mark.parametrize("words", [[" "], ["x", "\n\t"]])
def test_a_word_of_spaces_is_refused(tokenizer: Tokenizer, words: list[str]) -> None:
    with pytest.raises(RequestError, match="nothing but spaces") as refused:
        resolve_texts(SamplingParams(bad_words=words), tokenizer)
    assert refused.value.parameter == "bad_words"


async def test_a_form_is_a_grammar_afterwards(tokenizer: Tokenizer) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]), bad_words=["x"])
    resolved = await resolve_texts_aside(params, tokenizer)
    assert resolved.structured_outputs == ResolvedConstraint(grammar='start: "a" | "b"')
    assert resolve_texts(resolved, tokenizer).structured_outputs is resolved.structured_outputs
    submit = prepare([1], resolved, MODEL)
    assert (submit.sampling.grammar, len(submit.sampling.bad_words)) == ('start: "a" | "b"', 1)


async def test_without_texts_parameters_stay_as_they_are(tokenizer: Tokenizer) -> None:
    params = SamplingParams(temperature=0.5)
    assert await resolve_texts_aside(params, tokenizer) is params
