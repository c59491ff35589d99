"""OpenAI's own Python package talks to the server."""

from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import openai
import pydantic
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL, embedded
from tests.frontend.serving import answering, behind_uvicorn

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

TEXT = "Hello 🙂 world"
ROOMY = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
MESSAGES: "list[ChatCompletionMessageParam]" = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def library(tokenizer: Tokenizer, text: str = TEXT) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with behind_uvicorn(answering(tokenizer, text, ROOMY), tokenizer) as frontend:
        url = f"{frontend.http.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client


async def test_chat(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        answer = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])
        assert answer.choices[0].message.content == TEXT
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_chat_stream(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


async def test_completions(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        answer = await client.completions.create(model="tiny", prompt=["Hi", "Ho"], n=2, stop=["world"])
        assert [choice.text for choice in answer.choices] == ["Hello 🙂 "] * 4
        stream = await client.completions.create(model="tiny", prompt="Hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_models_and_errors(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="other", prompt="Hi")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="tiny", prompt="Hi", logprobs=21)
        assert bad.value.param == "logprobs"


CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>'


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str
    days: int = 1


async def test_tools(tokenizer: Tokenizer) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    async with library(tokenizer, CALL) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=tools)
        message = answer.choices[0].message
        assert message.tool_calls is not None
        call = message.tool_calls[0]
        assert call.type == "function"
        assert Weather.model_validate_json(call.function.arguments) == Weather(city="Zürich", days=3)
        # What was answered can be sent back as it is.
        follow: Any = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        await client.chat.completions.create(model="tiny", messages=follow, tools=tools)


async def test_tools_stream(tokenizer: Tokenizer) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    async with (
        library(tokenizer, CALL) as client,
        client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=tools) as stream,
    ):
        deltas = [
            event.arguments_delta async for event in stream if event.type == "tool_calls.function.arguments.delta"
        ]
        completion = await stream.get_final_completion()
    assert "".join(deltas) == '{"city": "Zürich", "days": 3}'
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == Weather(city="Zürich", days=3)
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_parse(tokenizer: Tokenizer) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    async with library(tokenizer, CALL) as client:
        answer = await client.chat.completions.parse(model="tiny", messages=MESSAGES, tools=tools)
        calls = answer.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].function.parsed_arguments == Weather(city="Zürich", days=3)
    async with library(tokenizer, '{"city": "Rome", "days": 2}') as client:
        form = await client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Weather)
        assert form.choices[0].message.parsed == Weather(city="Rome", days=2)


async def test_embeddings(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        in_base64 = await client.embeddings.create(model="tiny", input=["Hello", "x"])
        in_numbers = await client.embeddings.create(model="tiny", input=["Hello", "x"], encoding_format="float")
        expected = [array("f", embedded(tokenizer.encode(text))).tolist() for text in ("Hello", "x")]
        for answer in (in_base64, in_numbers):
            assert [each.embedding for each in answer.data] == expected
            assert (answer.model, answer.usage.prompt_tokens) == ("tiny", 2)
