"""Texts, token ids and conversations become prompts; what is long in sum leaves the event loop free, once."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.frontend.text.encoding_threads import EncodingCounts
from pyllm.frontend.text.prompt_encoder import INLINE_TOKENS, MAX_CACHED_CHARACTERS, PromptEncoder
from pyllm.frontend.text.prompt_segments import MIN_PART
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import INLINE_CHARACTERS, Tokenizer
from tests.client.fake_core import MODEL
from tests.frontend.serving import TEMPLATE
from tests.frontend.text import tiny_tokenizers
from tests.tiers import cases

LONG = msgspec.structs.replace(MODEL, max_model_len=10_000)
USER = {"role": "user", "content": "Hi"}


CHAT = ChatTemplate(TEMPLATE, "<|start|>", "<|end|>")


def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, LONG)


async def test_texts_are_encoded_and_token_ids_pass(tokenizer: Tokenizer) -> None:
    hello, x = tokenizer.encode("Hello"), tokenizer.encode("x")
    prompts = await encoder(tokenizer).encode(["Hello", [5, 6], (7,), "x", "Hello"])
    assert list(map(list, prompts)) == [hello, [5, 6], [7], x, hello]


async def test_special_tokens_are_the_callers_choice(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path)
    bare = tokenizer.encode("Hello", add_special_tokens=False)
    prompts = encoder(tokenizer)
    assert [list(prompt) for prompt in await prompts.encode(["Hello"])] == [[1, *bare]]
    assert [list(prompt) for prompt in await prompts.encode(["Hello"], add_special_tokens=False)] == [bare]


@pytest.mark.parametrize("texts", [["x" * INLINE_CHARACTERS], ["x" * (INLINE_CHARACTERS - 1), "y"] * 8])
async def test_what_is_long_in_sum_is_encoded_in_a_thread(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(texts))
    await asyncio.sleep(0)
    assert not encoding.done()
    assert [list(prompt) for prompt in await encoding] == [tokenizer.encode(text) for text in texts]


async def test_what_is_short_is_encoded_at_once(tokenizer: Tokenizer) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(["x" * (INLINE_CHARACTERS - 1)]))
    await asyncio.sleep(0)
    assert encoding.done()


async def test_a_text_that_cannot_fit_is_refused_before_any_is_encoded(tokenizer: Tokenizer) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(["x" * INLINE_CHARACTERS, "x" * 90_009]))
    await asyncio.sleep(0)
    assert encoding.done()
    with pytest.raises(RequestTooLargeError, match="at least 10001 tokens"):
        await encoding


@pytest.mark.parametrize("number", [1, INLINE_CHARACTERS])
async def test_a_conversation_goes_through_the_template(tokenizer: Tokenizer, number: int) -> None:
    message = {"role": "user", "content": "." * number}
    rendering = asyncio.ensure_future(encoder(tokenizer).render_chat(CHAT, [message]))
    await asyncio.sleep(0)
    assert rendering.done() == (number == 1)
    assert await rendering == f"<|start|>user: {message['content']}<|end|><|start|>"


async def test_the_options_of_a_conversation_reach_the_template(tokenizer: Tokenizer) -> None:
    text = await encoder(tokenizer).render_chat(CHAT, [USER], add_generation_prompt=False, continue_final_message=True)
    assert text == "<|start|>user: Hi"


async def test_content_that_is_no_text_is_for_the_template(tokenizer: Tokenizer) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": None}
    template = ChatTemplate("{{ messages[0].content[0].text }}", "", "")
    assert await encoder(tokenizer).render_chat(template, [message]) == "Hello"


async def test_a_conversation_without_template_or_messages_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        await encoder(tokenizer).render_chat(None, [USER])
    with pytest.raises(RequestError, match="messages is empty"):
        await encoder(tokenizer).render_chat(CHAT, [])


class Noting(Tokenizer):
    """Notes the texts that it encodes."""

    texts: list[str] = []  # noqa: RUF012 - set for each one below

    def encode_packed(self, texts: list[str], add_special_tokens: bool = False) -> list[bytes | Exception]:
        self.texts += texts
        return super().encode_packed(texts, add_special_tokens)


def noting(tokenizer: tokenizers.Tokenizer, folder: Path) -> Noting:
    files = tiny_tokenizers.write(tokenizer, folder)
    noting = Noting(msgspec.structs.replace(files, chat_template=TEMPLATE))
    noting.texts = []
    return noting


@pytest.mark.parametrize("number", [1, INLINE_CHARACTERS])
async def test_the_same_text_again_is_not_encoded(tmp_path: Path, number: int) -> None:
    tokenizer = noting(tiny_tokenizers.with_bos(), tmp_path)
    counts = EncodingCounts()
    prompts = PromptEncoder(tokenizer, LONG, counts)
    text = "x" * number
    for special in (True, False, True):
        (tokens,) = await prompts.encode([text], special)
        assert list(tokens) == tokenizer.encode(text, special)
    assert tokenizer.texts == [text]
    assert counts == EncodingCounts(num_queried=3 * number, num_found=2 * number)


async def test_of_a_conversation_that_goes_on_only_what_is_new_is_encoded(tmp_path: Path) -> None:
    tokenizer = noting(tiny_tokenizers.byte_level(), tmp_path)
    prompts = encoder(tokenizer)
    messages = []
    for turn in range(6):
        messages.append({"role": "user", "content": f"{turn} " + "the world " * 60})
        (tokens,) = await prompts.encode([await prompts.render_chat(CHAT, messages)], add_special_tokens=False)
        text = "".join(f"<|start|>user: {message['content']}<|end|>" for message in messages) + "<|start|>"
        assert list(tokens) == tokenizer.encode(text)
        assert sum(map(len, tokenizer.texts)) <= 2 * MIN_PART
        tokenizer.texts.clear()


async def test_requests_that_come_together_are_encoded_together_and_once(tmp_path: Path) -> None:
    tokenizer = noting(tiny_tokenizers.byte_level(), tmp_path)
    prompts = encoder(tokenizer)
    texts = [letter * INLINE_CHARACTERS for letter in "abcab"]
    encoded = await asyncio.gather(*(prompts.encode([text]) for text in texts))
    assert [list(tokens) for (tokens,) in encoded] == [tokenizer.encode(text) for text in texts]
    assert tokenizer.texts == texts[:3]


async def test_a_text_too_long_to_be_looked_at_is_encoded_as_it_is(tmp_path: Path) -> None:
    tokenizer = noting(tiny_tokenizers.byte_level(), tmp_path)
    model = msgspec.structs.replace(LONG, max_model_len=1 << 21)
    text = "<|start|>" * (MAX_CACHED_CHARACTERS // len("<|start|>") + 1)
    (tokens,) = await PromptEncoder(tokenizer, model).encode([text])
    assert list(tokens) == [1] * (len(text) // len("<|start|>"))
    assert tokenizer.texts == [text]


PIECES = st.one_of(st.sampled_from([*tiny_tokenizers.SPECIAL, "the world ", "naïve ✓", " \n"]), st.text(max_size=4))


@pytest.mark.parametrize("make", ["byte_level", "with_bos", "byte_fallback"])
@settings(max_examples=cases(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.tuples(PIECES, st.integers(1, 200)), max_size=12), min_size=1, max_size=4),
    data=st.data(),
)
def test_ids_are_those_of_plain_encoding(
    tmp_path: Path, make: str, texts: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    tokenizer = noting(getattr(tiny_tokenizers, make)(), tmp_path)
    model = msgspec.structs.replace(LONG, max_model_len=1 << 20)

    async def check() -> None:
        prompts = PromptEncoder(tokenizer, model)
        for pieces in texts:
            whole = "".join(piece * number for piece, number in pieces)
            for length in [*sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)]:
                special = data.draw(st.booleans())
                (tokens,) = await prompts.encode([whole[:length]], special)
                assert list(tokens) == tokenizer.encode(whole[:length], special)

    asyncio.run(check())


async def test_a_frame_that_depends_on_the_text_is_left_to_the_library(tmp_path: Path) -> None:
    library = tiny_tokenizers.byte_level()
    library.post_processor = processors.TemplateProcessing(single="$A <|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer = noting(library, tmp_path)
    prompts = PromptEncoder(tokenizer, LONG)
    for text in ("Hello", "x" * INLINE_CHARACTERS):
        (tokens,) = await prompts.encode([text])
        num_tokens = (len(tokens) - 1) // 2
        assert list(tokens) == tokenizer.encode(text)
        assert tokens[num_tokens] == 0


@pytest.mark.parametrize("number", [1, INLINE_CHARACTERS])
async def test_half_a_surrogate_pair_is_refused_and_hurts_nobody_else(tokenizer: Tokenizer, number: int) -> None:
    prompts = encoder(tokenizer)
    good = "x" * number
    bad = "\ud83d" * number
    (tokens,), failure = await asyncio.gather(prompts.encode([good]), prompts.encode([bad]), return_exceptions=True)
    assert list(tokens) == tokenizer.encode(good)
    assert isinstance(failure, RequestError)
    assert "surrogate" in str(failure)


@pytest.mark.parametrize("number", [1, INLINE_TOKENS])
async def test_token_ids_are_checked(tokenizer: Tokenizer, number: int) -> None:
    prompts = encoder(tokenizer)
    (tokens,) = await prompts.encode([[599] * number])
    assert list(tokens) == [599] * number
    with pytest.raises(RequestError, match="token id 600 is outside the vocabulary"):
        await prompts.encode([[599] * (number - 1) + [600]])
    with pytest.raises(RequestTooLargeError, match="your prompt has 10001 tokens"):
        await prompts.encode([[600] * 10_001])


async def test_a_tokenizer_with_more_tokens_than_its_model_is_checked_too(tokenizer: Tokenizer) -> None:
    small = msgspec.structs.replace(LONG, vocab_size=100)
    prompts = PromptEncoder(tokenizer, small)
    assert len((await prompts.encode(["ab"]))[0]) == 2
    with pytest.raises(RequestError, match="outside the vocabulary of 100 tokens"):
        await prompts.encode(["ab<tool>"])
