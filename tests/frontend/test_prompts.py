"""Texts, token ids and conversations become prompts; what is long in sum leaves the event loop free."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.frontend.chat_template import ChatTemplate
from pyllm.frontend.prompts import PromptEncoder
from pyllm.frontend.tokenizer import INLINE_CHARACTERS, Tokenizer
from tests.frontend import tiny_tokenizers
from tests.frontend.fake_core import MODEL
from tests.frontend.serving import TEMPLATE

LONG = msgspec.structs.replace(MODEL, max_model_len=2 * INLINE_CHARACTERS)
USER = {"role": "user", "content": "Hi"}


def encoder(tokenizer: Tokenizer, template: str | None = TEMPLATE) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate(template, "<|start|>", "<|end|>") if template else None, LONG)


async def test_texts_are_encoded_and_token_ids_pass(tokenizer: Tokenizer) -> None:
    hello, x = tokenizer.encode("Hello"), tokenizer.encode("x")
    assert await encoder(tokenizer).encode(["Hello", [5, 6], (7,), "x", "Hello"]) == [hello, [5, 6], [7], x, hello]


async def test_special_tokens_are_the_callers_choice(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path)
    bare = tokenizer.encode("Hello", add_special_tokens=False)
    prompts = encoder(tokenizer, "Hello")
    assert await prompts.encode(["Hello"]) == [[1, *bare]]
    assert await prompts.encode(["Hello"], add_special_tokens=False) == [bare]
    assert await prompts.encode_chat([USER]) == bare
    assert await prompts.encode_chat([USER], add_special_tokens=True) == [1, *bare]


@pytest.mark.parametrize("texts", [["x" * INLINE_CHARACTERS], ["x" * (INLINE_CHARACTERS - 1), "y"] * 8])
async def test_what_is_long_in_sum_is_encoded_in_a_thread(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(texts))
    await asyncio.sleep(0)
    assert not encoding.done()
    assert await encoding == [tokenizer.encode(text) for text in texts]


async def test_what_is_short_is_encoded_at_once(tokenizer: Tokenizer) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(["x" * (INLINE_CHARACTERS - 1)]))
    await asyncio.sleep(0)
    assert encoding.done()


async def test_a_text_that_cannot_fit_is_refused_before_any_is_encoded(tokenizer: Tokenizer) -> None:
    encoding = asyncio.ensure_future(encoder(tokenizer).encode(["x" * INLINE_CHARACTERS, "x" * 90_000]))
    await asyncio.sleep(0)
    assert encoding.done()
    with pytest.raises(RequestTooLargeError, match="at least 10000 tokens"):
        await encoding


@pytest.mark.parametrize("number", [1, INLINE_CHARACTERS])
async def test_a_conversation_goes_through_the_template(tokenizer: Tokenizer, number: int) -> None:
    message = {"role": "user", "content": "." * number}
    encoding = asyncio.ensure_future(encoder(tokenizer).encode_chat([message]))
    await asyncio.sleep(0)
    assert encoding.done() == (number == 1)
    assert await encoding == tokenizer.encode(f"<|start|>user: {message['content']}<|end|><|start|>")


async def test_the_options_of_a_conversation_reach_the_template(tokenizer: Tokenizer) -> None:
    tokens = await encoder(tokenizer).encode_chat([USER], add_generation_prompt=False, continue_final_message=True)
    assert tokens == tokenizer.encode("<|start|>user: Hi")


async def test_content_that_is_no_text_is_for_the_template(tokenizer: Tokenizer) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": None}
    tokens = await encoder(tokenizer, "{{ messages[0].content[0].text }}").encode_chat([message])
    assert tokens == tokenizer.encode("Hello")


async def test_a_conversation_without_template_or_messages_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        await encoder(tokenizer, None).encode_chat([USER])
    with pytest.raises(RequestError, match="messages is empty"):
        await encoder(tokenizer).encode_chat([])


async def test_a_short_conversation_whose_prompt_cannot_fit_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestTooLargeError, match="at least"):
        await encoder(tokenizer, "{{ 'x' * 90_000 }}").encode_chat([USER])
