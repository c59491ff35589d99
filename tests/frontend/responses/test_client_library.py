"""OpenAI's own Python package talks to `/v1/responses`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.anthropic.serving import ROOMY, SCHEMA
from tests.frontend.serving import Frontend, answering, behind_uvicorn

TEXT = "Hello 🙂 world"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA}]


@asynccontextmanager
async def library(tokenizer: Tokenizer, text: str = TEXT) -> AsyncGenerator[tuple[Frontend, openai.AsyncOpenAI], None]:
    async with behind_uvicorn(answering(tokenizer, text, ROOMY), tokenizer) as frontend:
        url = f"{frontend.http.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield frontend, client


async def test_create_retrieve_and_delete(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as (_, client):
        response = await client.responses.create(model="tiny", input="Hi", instructions="x")
        assert (response.output_text, response.status) == (TEXT, "completed")
        assert response.usage is not None
        assert response.usage.input_tokens_details.cached_tokens == 2
        follow = await client.responses.create(model="tiny", input="Ho", previous_response_id=response.id)
        assert [item.id async for item in client.responses.input_items.list(follow.id, limit=1)][-1] is not None
        assert (await client.responses.retrieve(follow.id)).output_text == TEXT
        await client.responses.delete(follow.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(follow.id)


async def test_stream(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as (_, client), client.responses.stream(model="tiny", input="Hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    assert "".join(deltas) == response.output_text == TEXT


async def test_tools(tokenizer: Tokenizer) -> None:
    async with library(tokenizer, CALL) as (_, client):
        response = await client.responses.create(model="tiny", input="Hi", tools=TOOLS)
        async with client.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:
            types = {event.type async for event in stream}
            streamed = await stream.get_final_response()
        (call,) = response.output
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("weather", '{"city": "Zürich"}')
        again = streamed.output[0]
        assert again.type == "function_call"
        assert (again.name, again.arguments, again.status) == (call.name, call.arguments, call.status)
        assert "response.function_call_arguments.delta" in types
        # What was answered can be sent back as it is.
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        follow: Any = [{"role": "user", "content": "Hi"}, *response.output, output]
        await client.responses.create(model="tiny", input=follow, tools=TOOLS)


async def test_parse(tokenizer: Tokenizer) -> None:
    class Weather(pydantic.BaseModel):
        city: str

    async with library(tokenizer, '{"city": "Rome"}') as (_, client):
        response = await client.responses.parse(model="tiny", input="Hi", text_format=Weather)
    assert response.output_parsed == Weather(city="Rome")


async def test_background(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as (frontend, client):
        frontend.core.paused = True
        first = await client.responses.create(model="tiny", input="Hi", background=True)
        assert (await client.responses.cancel(first.id)).status == "cancelled"
        second = await client.responses.create(model="tiny", input="Hi", background=True)
        frontend.core.resume()
        while second.status in ("queued", "in_progress"):
            await asyncio.sleep(0)
            second = await client.responses.retrieve(second.id)
    assert second.output_text == TEXT


async def test_errors(tokenizer: Tokenizer) -> None:
    async with library(tokenizer) as (_, client):
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="tiny", input="Hi", truncation="auto")
        assert bad.value.param == "truncation"
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="other", input="Hi")
