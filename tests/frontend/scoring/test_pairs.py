"""Pairs of texts as token ids: joined by the tokenizer or in a template, whole or shortened."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import processors

from pyllm.errors import ConfigError, RequestError, RequestTooLargeError
from pyllm.frontend.scoring.pairs import MAX_CHARACTERS, PairEncoder, Pairs
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import Truncation
from tests.client.fake_core import MODEL
from tests.frontend.text import tiny_tokenizers

END, START = 0, 1
QUERY, DOCUMENT = "capital of Paris", "Paris is the capital of the world"
TEMPLATE = "Is {document} of {query}, {query}?"
OFFSET = MODEL.vocab_size


@pytest.fixture
def joining(tmp_path: Path) -> Tokenizer:
    """A tokenizer that joins two texts as BERT's does, with two ends between."""
    tokenizer = tiny_tokenizers.byte_level()
    end, start = tiny_tokenizers.SPECIAL
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {end}:1 $B:1 {end}:1",
        special_tokens=[(start, START), (end, END)],
    )
    return tiny_tokenizers.load(tokenizer, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    """A tokenizer that begins a text with a token, and a pair with one, too."""
    return tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path)


def encoder(tokenizer: Tokenizer, chat_template: str | None = None, **model: Any) -> PairEncoder:
    own = msgspec.structs.replace(MODEL, labels=("relevance",), relevant_class=0, **model)
    template = None if chat_template is None else ChatTemplate(chat_template, "", "")
    return PairEncoder(PromptEncoder(tokenizer, own), tokenizer, own, template)


async def encoded(
    own: PairEncoder, query: str = QUERY, document: str = DOCUMENT, truncation: Truncation | None = None
) -> list[int]:
    (tokens,) = await own.encode(Pairs([query], [document]), truncation)
    return tokens.tolist()


async def test_the_tokenizer_joins_two_texts(joining: Tokenizer) -> None:
    (library,) = joining.library.encode_batch([(QUERY, DOCUMENT)])
    assert await encoded(encoder(joining)) == library.ids
    apart = [token + OFFSET * kind for token, kind in zip(library.ids, library.type_ids, strict=True)]
    assert OFFSET in apart  # the second end between both
    assert await encoded(encoder(joining, second_text_offset=OFFSET)) == apart
    assert await encoded(encoder(joining), "", "") == [START, END, END, END]


async def test_special_tokens_of_a_text_begin_no_second_text(joining: Tokenizer) -> None:
    end = tiny_tokenizers.SPECIAL[0]
    tokens = await encoded(encoder(joining, second_text_offset=OFFSET), f"x{end}y", "z")
    (library,) = joining.library.encode_batch([(f"x{end}y", "z")])
    assert [token >= OFFSET for token in tokens] == [kind == 1 for kind in library.type_ids]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("query", "document"), [(QUERY, DOCUMENT), (DOCUMENT * 3, QUERY), (DOCUMENT, DOCUMENT)])
async def test_the_longer_text_is_shortened_as_by_transformers(
    joining: Tokenizer, side: Any, query: str, document: str
) -> None:
    own, library = encoder(joining), joining.library
    for limit in range(6, 30):
        library.enable_truncation(limit, direction=side)  # longest_first
        (wanted,) = library.encode_batch([(query, document)])
        library.no_truncation()
        assert await encoded(own, query, document, Truncation(limit, side)) == wanted.ids
    with pytest.raises(RequestError, match=r"^truncate_prompt_tokens 5 leaves no room .* 4 other tokens$"):
        await encoded(own, query, document, Truncation(5, side))


async def test_a_template_has_the_two_texts_and_only_the_document_is_shortened(plain: Tokenizer) -> None:
    own = encoder(plain, pair_template=TEMPLATE)
    whole = plain.encode(f"Is {DOCUMENT} of {QUERY}, {QUERY}?", add_special_tokens=False)
    assert await encoded(own) == whole
    assert await encoded(own, truncation=Truncation(len(whole), "right")) == whole
    around = [plain.encode(text, add_special_tokens=False) for text in ("Is ", f" of {QUERY}, {QUERY}?")]
    document = plain.encode(DOCUMENT, add_special_tokens=False)
    limit = sum(map(len, around)) + 3
    for side, kept in (("right", document[:3]), ("left", document[-3:])):
        assert await encoded(own, truncation=Truncation(limit, side)) == [*around[0], *kept, *around[1]]
    with pytest.raises(RequestError, match=f"truncate_prompt_tokens {limit - 3} leaves no room"):
        await encoded(own, truncation=Truncation(limit - 3, "right"))


async def test_a_document_may_have_the_words_of_the_template(plain: Tokenizer) -> None:
    own = encoder(plain, pair_template=TEMPLATE)
    assert await encoded(own, "x", "{query}") == plain.encode("Is {query} of x, x?", add_special_tokens=False)


BY_ROLES = (
    "{% set query = (messages | selectattr('role', 'eq', 'query') | first).content %}"
    "{% set document = (messages | selectattr('role', 'eq', 'document') | first).content %}"
    "{{ query }} {{ document }}{% if add_generation_prompt %}!{% endif %}"
)
OF_CHATS = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }} {% endfor %}"


async def test_a_chat_template_for_pairs_replaces_that_of_the_model(plain: Tokenizer) -> None:
    wanted = plain.encode(f"{QUERY} {DOCUMENT}!", add_special_tokens=False)
    assert await encoded(encoder(plain, BY_ROLES, pair_template=TEMPLATE)) == wanted
    variables = {"add_generation_prompt": False, "task": "Rank"}
    wanted = plain.encode(f"Rank {QUERY} {DOCUMENT}", add_special_tokens=False)
    assert await encoded(encoder(plain, f"{{{{ task }}}} {BY_ROLES}", pair_variables=variables)) == wanted
    for chat_template in (OF_CHATS, None):
        own = encoder(plain, chat_template, pair_template=TEMPLATE)
        assert await encoded(own, "x", "y") == plain.encode("Is y of x, x?", add_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (BY_ROLES.replace("{{ query }}", "{{ query | trim }}"), "changes the query or the document"),
        (BY_ROLES.replace("{{ query }}", "{{ query | lower }}"), "changes the query or the document"),
        (BY_ROLES.replace("{{ document }}", "{{ document | e }}"), "changes the query or the document"),
        (BY_ROLES.replace("{{ document }}", "{{ document[:40] }}"), "changes the query or the document"),
        (BY_ROLES.replace("{{ query }}", "{{ document }}"), "not their texts, the document once"),
        (BY_ROLES.replace("{{ query }}", "{{ query[0].text }}"), "not their texts"),
        (BY_ROLES + "{query}", r"has \{query\} or \{document\} in its own text"),
        (BY_ROLES + "{{ raise_exception('no such role') }}", "no such role; they were a query"),
    ],
)
def test_a_template_that_does_more_with_the_texts_is_refused(plain: Tokenizer, template: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        encoder(plain, template)


async def test_long_texts_are_refused_or_shortened(joining: Tokenizer, plain: Tokenizer) -> None:
    long, end = "xyz " * 2000, tiny_tokenizers.SPECIAL[0]
    for own in (encoder(joining), encoder(plain, pair_template=TEMPLATE)):
        with pytest.raises(RequestTooLargeError, match="at least"):
            await encoded(own, QUERY, long)
        with pytest.raises(RequestTooLargeError, match="context length") as raised:
            await encoded(own, long, QUERY)
        assert raised.value.parameter == "data_1"
        text = end * (MODEL.max_model_len - 2)  # It fits alone.
        with pytest.raises(RequestTooLargeError, match=r"^data_2\[1\]: .* has \d+ tokens"):
            await own.encode(Pairs(["x"], ["y", text]), None)
    assert len(await encoded(encoder(joining), QUERY, long, Truncation(20, "right"))) == 20


async def test_a_text_that_is_no_unicode_is_refused_by_its_field(joining: Tokenizer, plain: Tokenizer) -> None:
    for own in (encoder(joining), encoder(plain, pair_template=TEMPLATE)):
        for texts, name in ((([QUERY], ["x", "\ud800"]), "data_2"), ((["\ud800"], ["x"]), "data_1")):
            with pytest.raises(RequestError, match="not valid Unicode") as raised:
                await own.encode(Pairs(*texts), None)
            assert raised.value.parameter == name


async def test_each_text_that_is_too_long_is_named(joining: Tokenizer, plain: Tokenizer) -> None:
    end = tiny_tokenizers.SPECIAL[0]
    for own in (encoder(joining), encoder(plain, pair_template=TEMPLATE)):
        with pytest.raises(RequestTooLargeError, match=r"^data_1\[1\]: ") as raised:
            await own.encode(Pairs(["x", end * (MODEL.max_model_len + 1)], ["y", "z"]), None)
        assert raised.value.parameter == "data_1"


def test_other_token_types_are_refused(tmp_path: Path) -> None:
    for pair in ("$A $B:2", "$A:1 $B:1"):
        tokenizer = tiny_tokenizers.byte_level()
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair=pair, special_tokens=[])
        loaded = tiny_tokenizers.load(tokenizer, tmp_path)
        encoder(loaded)
        with pytest.raises(ConfigError, match="other token types than 0 and 1"):
            encoder(loaded, second_text_offset=OFFSET)


def test_pairs_are_bounded() -> None:
    text = "x" * (MAX_CHARACTERS // 4)
    Pairs([text], ["", "", ""]).check()
    with pytest.raises(RequestError, match="4 pairs of texts have 33554436 characters together"):
        Pairs([text], ["", "", "", "four"]).check()


def test_a_tokenizer_that_makes_no_pairs_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$B:1 $A", special_tokens=[])
    with pytest.raises(ConfigError, match="does not join two texts one after the other"):
        encoder(tiny_tokenizers.load(tokenizer, tmp_path))
