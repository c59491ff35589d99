"""Anthropic's own Python package talks to the server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pydantic
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.anthropic.serving import CALLS, CLOCK, ROOMY, WEATHER
from tests.frontend.serving import answering, behind_uvicorn

TEXT = "Hello 🙂 world"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [WEATHER, CLOCK]


@asynccontextmanager
async def library(tokenizer: Tokenizer, text: str = TEXT) -> AsyncGenerator[anthropic.AsyncAnthropic, None]:
    async with behind_uvicorn(answering(tokenizer, text, ROOMY), tokenizer) as frontend:
        url = str(frontend.http.base_url)
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            yield client


async def test_create(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        message = await client.messages.create(model="tiny", max_tokens=50, messages=MESSAGES)
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == (TEXT, "end_turn")
    assert message.usage.output_tokens > 0
    assert message.usage.cache_read_input_tokens == 2


async def test_stream(tokenizer: Tokenizer) -> None:
    async with (
        library(tokenizer) as client,
        client.messages.stream(model="tiny", max_tokens=50, messages=MESSAGES, system="x") as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == TEXT
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_read_input_tokens == 2


async def test_tools(tokenizer: Tokenizer) -> None:
    async with library(tokenizer, CALLS) as client:
        message = await client.messages.create(model="tiny", max_tokens=500, messages=MESSAGES, tools=TOOLS)
        async with client.messages.stream(model="tiny", max_tokens=500, messages=MESSAGES, tools=TOOLS) as stream:
            streamed = await stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Zürich"}), ("clock", {})]
        assert [block.to_dict() | {"id": ""} for block in streamed.content if block.type == "tool_use"] == [
            call.to_dict() | {"id": ""} for call in calls
        ]
        assert message.stop_reason == streamed.stop_reason == "tool_use"
        # What was answered can be sent back as it is.
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
        follow: Any = [
            *MESSAGES,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        await client.messages.create(model="tiny", max_tokens=500, messages=follow, tools=TOOLS)


async def test_parse(tokenizer: Tokenizer) -> None:
    class Weather(pydantic.BaseModel):
        city: str

    async with library(tokenizer, '{"city": "Rome"}') as client:
        message = await client.messages.parse(model="tiny", max_tokens=50, messages=MESSAGES, output_format=Weather)
    assert message.parsed_output == Weather(city="Rome")


async def test_count_tokens(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        count = await client.messages.count_tokens(model="tiny", messages=MESSAGES)
    assert count.input_tokens == len(tokenizer.encode("<|start|>user: Hi<|end|><|start|>"))


async def test_errors(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(model="other", max_tokens=5, messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError) as bad:
            await client.messages.create(model="tiny", max_tokens=5, messages=[])
    assert "not_found_error" in str(missing.value)
    assert "messages" in str(bad.value)
