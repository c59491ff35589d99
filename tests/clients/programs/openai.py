"""OpenAI's Python library: chat, streams, tools, typed answers, Responses, embeddings, cancel, errors."""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any, Literal

import openai
from checks import Servers, check, is_idle, main, wait_until
from pydantic import BaseModel

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION = "What is the weather in Paris?"


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


class Choice(BaseModel):
    """A typed answer that a small model gives in a few tokens."""

    answer: Literal["yes", "no"]
    certain: bool


def of_model(servers: Servers) -> openai.OpenAI:
    """A client of the embedded model."""
    return openai.OpenAI(base_url=f"{servers.model}/v1", max_retries=0)


def of_script(servers: Servers) -> openai.OpenAI:
    """A client of the scripted model."""
    return openai.OpenAI(base_url=f"{servers.scripted}/v1", max_retries=0)


@check
def models(servers: Servers) -> None:
    assert [model.id for model in of_model(servers).models.list()] == ["smol"]


@check
def chat(servers: Servers) -> None:
    answer = of_model(servers).chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8


@check
def stream(servers: Servers) -> None:
    request: Any = {"model": "smol", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16, "seed": 1}
    whole = of_model(servers).chat.completions.create(**request).choices[0].message.content
    chunks = list(
        of_model(servers).chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage is not None


@check
async def async_streams(servers: Servers) -> None:
    client = openai.AsyncOpenAI(base_url=f"{servers.model}/v1")

    async def one(seed: int) -> str:
        text = ""
        async for chunk in await client.completions.create(
            model="smol", prompt="Once", max_tokens=8, seed=seed, stream=True
        ):
            text += chunk.choices[0].text
        return text

    assert all(await asyncio.gather(*map(one, range(16))))


@check
def logprobs(servers: Servers) -> None:
    answer = of_model(servers).chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, logprobs=True, top_logprobs=5
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert all(len(token.top_logprobs) == 5 for token in told.content)


@check
def tool_loop(servers: Servers) -> None:
    client = of_script(servers)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    second = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL]).choices[0]
    assert second.message.content == "It is 18 degrees in Paris."


@check
def streamed_tool_call(servers: Servers) -> None:
    with of_script(servers).chat.completions.stream(
        model="scripted", messages=[{"role": "user", "content": QUESTION}], tools=[TOOL]
    ) as events:
        message = events.get_final_completion().choices[0].message
    assert message.tool_calls
    assert message.tool_calls[0].function.parsed_arguments == {"city": "Paris"}


@check
def typed_answer(servers: Servers) -> None:
    answer = of_model(servers).chat.completions.parse(
        model="smol", messages=[{"role": "user", "content": "Yes or no?"}], response_format=Choice, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, Choice)


@check
def tools_with_typed_answer(servers: Servers) -> None:
    client = of_script(servers)
    messages: list[Any] = [{"role": "user", "content": "Look, then answer with a typed city."}]
    first = client.chat.completions.parse(model="scripted", messages=messages, tools=[TOOL], response_format=Place)
    message = first.choices[0].message
    assert message.tool_calls
    assert message.tool_calls[0].function.parsed_arguments == {"city": "Paris"}
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees"}
    messages += [message.model_dump(exclude_none=True), answer]
    second = client.chat.completions.parse(model="scripted", messages=messages, tools=[TOOL], response_format=Place)
    assert second.choices[0].message.parsed == Place(city="Paris", country="France")


@check
def hints(servers: Servers) -> None:
    # What people set for another server and do not take out again.
    answer = of_model(servers).chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=4,
        metadata={"run": "1"},
        store=False,
        service_tier="auto",
        verbosity="low",
        reasoning_effort="low",
        prompt_cache_key="key",
        safety_identifier="user",
        extra_body={"enable_search": False, "reasoning": {"exclude": True}},
    )
    assert answer.choices


@check
def responses(servers: Servers) -> None:
    answer = of_model(servers).responses.create(
        model="smol", input="Hi", max_output_tokens=16, include=["reasoning.encrypted_content"], store=False
    )
    assert answer.output_text
    assert answer.usage is not None


@check
def responses_tool_loop(servers: Servers) -> None:
    client = of_script(servers)
    tool: Any = {"type": "function", **TOOL["function"]}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.responses.stream(model="scripted", input=items, tools=[tool], reasoning={"summary": "auto"}) as events:
        first = events.get_final_response()
    (call,) = (item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}]
    second = client.responses.create(model="scripted", input=items, tools=[tool])
    assert second.output_text == "It is 18 degrees in Paris."


@check
def responses_typed_answer(servers: Servers) -> None:
    answer = of_script(servers).responses.parse(
        model="scripted", input="Name a city with its country.", text_format=Place, text={"verbosity": "low"}
    )
    assert answer.output_parsed == Place(city="Paris", country="France")


@check
def embeddings(servers: Servers) -> None:
    answer = of_model(servers).embeddings.create(model="smol", input=["one", "two"])
    assert [row.index for row in answer.data] == [0, 1]
    assert abs(sum(value * value for value in answer.data[0].embedding) - 1) < 1e-3


@check
def cancel(servers: Servers) -> None:
    client = of_model(servers)
    request: Any = {"model": "smol", "prompt": "Once", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with client.completions.create(**request, stream=True) as chunks:
        next(iter(chunks))
    wait_until(lambda: is_idle(servers.model), "the cancelled request to end")


@check
def errors(servers: Servers) -> None:
    client = of_model(servers)
    hello: Any = [{"role": "user", "content": "Hi"}]
    chat = functools.partial(client.chat.completions.create, max_tokens=4)
    expect(openai.NotFoundError, lambda: chat(model="other", messages=hello))
    expect(openai.BadRequestError, lambda: chat(model="smol", messages=[]))
    expect(openai.BadRequestError, lambda: chat(model="smol", messages=hello, logit_bias={"9999999": 1}))
    expect(openai.BadRequestError, lambda: client.completions.create(model="smol", prompt="word " * 20_000))


def expect(error: type[openai.APIStatusError], call: Callable[[], object]) -> None:
    """A call must raise this error, with a message."""
    try:
        call()
    except error as raised:
        message = raised.message
    else:
        raise AssertionError(f"no {error.__name__}")
    assert message


main()
