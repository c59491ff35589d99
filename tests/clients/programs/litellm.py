"""LiteLLM: its three ways in (chat, Responses, Anthropic's messages), and Ollama's API as a fourth way to the server.

Streams, tools, typed answers, embeddings.
"""

import json
from typing import Any

import litellm
from checks import Servers, check, main
from pydantic import BaseModel

litellm.telemetry = False
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HELLO: Any = [{"role": "user", "content": "Hi"}]


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


def of_model(servers: Servers) -> dict[str, Any]:
    """How LiteLLM finds the embedded model."""
    return {"model": "hosted_vllm/smol", "api_base": f"{servers.model}/v1", "api_key": "none"}


def of_script(servers: Servers) -> dict[str, Any]:
    """How it finds the scripted model."""
    return {"model": "openai/scripted", "api_base": f"{servers.scripted}/v1", "api_key": "none"}


def by_ollama(servers: Servers) -> dict[str, Any]:
    """How it finds the scripted model by Ollama's API."""
    return {"model": "ollama_chat/scripted", "api_base": servers.scripted}


@check
def chat(servers: Servers) -> None:
    answer: Any = litellm.completion(**of_model(servers), messages=HELLO, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}


@check
def stream(servers: Servers) -> None:
    chunks: Any = litellm.completion(**of_model(servers), messages=HELLO, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@check
def reasoning_effort(servers: Servers) -> None:
    answer: Any = litellm.completion(**of_model(servers), messages=HELLO, max_tokens=4, reasoning_effort="low")
    assert answer.choices


@check
def tool_loop(servers: Servers) -> None:
    for found in (of_script(servers), by_ollama(servers)):
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
        first: Any = litellm.completion(**found, messages=messages, tools=[TOOL])
        (call,) = first.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
        second: Any = litellm.completion(**found, messages=messages, tools=[TOOL])
        assert second.choices[0].message.content == "It is 18 degrees in Paris."


@check
def typed_answer(servers: Servers) -> None:
    messages: list[Any] = [{"role": "user", "content": "Name a city with its country."}]
    for found in (of_script(servers), by_ollama(servers)):
        answer: Any = litellm.completion(**found, messages=messages, response_format=Place)
        assert Place.model_validate_json(answer.choices[0].message.content) == Place(city="Paris", country="France")


@check
def ollama(servers: Servers) -> None:
    chunks: Any = litellm.completion(**by_ollama(servers), messages=HELLO, stream=True, stop=["zz"], num_ctx=4096)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello from the script."
    older: Any = litellm.completion("ollama/scripted", HELLO, api_base=servers.scripted, max_tokens=64)
    assert older.choices[0].message.content == "Hello from the script."
    answer: Any = litellm.embedding("ollama/scripted", input=["one", "two"], api_base=servers.scripted)
    assert len(answer.data) == 2


@check
def responses(servers: Servers) -> None:
    answer: Any = litellm.responses(**of_script(servers), input="Hi")
    assert answer.output[-1].content[0].text == "Hello from the script."


@check
async def anthropic_messages(servers: Servers) -> None:
    answer: Any = await litellm.anthropic.messages.acreate(
        model="anthropic/scripted", api_base=servers.scripted, api_key="none", messages=HELLO, max_tokens=50
    )
    assert answer["content"][0]["text"] == "Hello from the script."


@check
def embeddings(servers: Servers) -> None:
    answer: Any = litellm.embedding(**of_model(servers), input=["one", "two"])
    assert len(answer.data) == 2


@check
def errors(servers: Servers) -> None:
    long: Any = [{"role": "user", "content": "word " * 20_000}]
    try:
        litellm.completion(**of_model(servers), messages=long, max_tokens=4)
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("no ContextWindowExceededError")


main()
