"""Pairs of texts as token ids: joined by the tokenizer or in a template, whole or shortened."""

from pathlib import Path

import msgspec
import pytest
from tokenizers import processors

from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.frontend.scoring.pairs import encode_pairs
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import Truncation
from tests.client.fake_core import MODEL
from tests.frontend.text import tiny_tokenizers

END, START = 0, 1
QUERY, DOCUMENT = "capital of Paris", "Paris is the capital of the world"


@pytest.fixture
def joining(tmp_path: Path) -> Tokenizer:
    """A tokenizer that joins two texts as RoBERTa's does."""
    tokenizer = tiny_tokenizers.byte_level()
    end, start = tiny_tokenizers.SPECIAL
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {end} $B {end}",
        special_tokens=[(start, START), (end, END)],
    )
    return tiny_tokenizers.load(tokenizer, tmp_path)


@pytest.fixture
def templated(tmp_path: Path) -> Tokenizer:
    """A tokenizer of a reranker with a template."""
    files = tiny_tokenizers.write(tiny_tokenizers.with_bos(), tmp_path)
    return Tokenizer(msgspec.structs.replace(files, pair_template="Is {document} of {query}, {query}?"))


async def encoded(tokenizer: Tokenizer, query: str, document: str, truncation: Truncation | None = None) -> list[int]:
    encoder = PromptEncoder(tokenizer, MODEL)
    (tokens,) = await encode_pairs(encoder, tokenizer, MODEL, [(query, document)], truncation)
    return tokens.tolist()


async def test_the_tokenizer_joins_two_texts(joining: Tokenizer) -> None:
    query, document = (joining.encode(text, add_special_tokens=False) for text in (QUERY, DOCUMENT))
    whole = [START, *query, END, END, *document, END]
    assert await encoded(joining, QUERY, DOCUMENT) == whole
    assert await encoded(joining, QUERY, DOCUMENT, Truncation(len(whole), "right")) == whole
    assert await encoded(joining, QUERY, DOCUMENT, Truncation(12, "right")) == [*whole[:11], END]
    assert await encoded(joining, QUERY, DOCUMENT, Truncation(12, "left")) == [START, *whole[-11:]]


async def test_a_template_has_the_two_texts_and_only_the_document_is_shortened(templated: Tokenizer) -> None:
    plain = templated.encode(f"Is {DOCUMENT} of {QUERY}, {QUERY}?", add_special_tokens=False)
    assert await encoded(templated, QUERY, DOCUMENT) == plain
    around = [templated.encode(text, add_special_tokens=False) for text in ("Is ", f" of {QUERY}, {QUERY}?")]
    document = templated.encode(DOCUMENT, add_special_tokens=False)
    limit = sum(map(len, around)) + 3
    for side, kept in (("right", document[:3]), ("left", document[-3:])):
        assert await encoded(templated, QUERY, DOCUMENT, Truncation(limit, side)) == [*around[0], *kept, *around[1]]
    with pytest.raises(RequestTooLargeError, match=f"at least {limit - 2} tokens"):
        await encoded(templated, QUERY, DOCUMENT, Truncation(limit - 3, "right"))


async def test_a_document_may_have_the_words_of_the_template(templated: Tokenizer) -> None:
    text = "Is {query} of x, x?"
    assert await encoded(templated, "x", "{query}") == templated.encode(text, add_special_tokens=False)


async def test_long_texts_are_refused_or_shortened(joining: Tokenizer) -> None:
    long = "xyz " * 2000
    with pytest.raises(RequestTooLargeError, match="at least"):
        await encoded(joining, QUERY, long)
    assert len(await encoded(joining, QUERY, long, Truncation(20, "right"))) == 20


async def test_a_text_that_is_no_unicode_is_refused(joining: Tokenizer, templated: Tokenizer) -> None:
    for tokenizer in (joining, templated):
        with pytest.raises(RequestError, match="not valid Unicode"):
            await encoded(tokenizer, QUERY, "\ud800")
