"""Ollama's own package: chats, prompts, streams, tools, schemas, embeddings, models, and its errors."""

import json
from collections.abc import Callable
from typing import Any

from checks import Servers, check, main
from ollama import AsyncClient, Client, ResponseError

USER = {"role": "user", "content": "Hi"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
}


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"18 degrees in {city}"


@check
def chat(servers: Servers) -> None:
    answer = Client(servers.model).chat("smol", [USER], options={"num_predict": 8, "num_ctx": 4096})
    assert answer.message.content
    assert (answer.done_reason, answer.eval_count) == ("length", 8)
    assert (answer.total_duration or 0) > 0


@check
def stream(servers: Servers) -> None:
    client, options = Client(servers.model), {"num_predict": 8, "seed": 1}
    parts = list(client.chat("smol:latest", [USER], stream=True, options=options))
    whole = client.chat("smol", [USER], options=options)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


@check
async def several_at_once(servers: Servers) -> None:
    client = AsyncClient(servers.model)
    parts = [part async for part in await client.chat("smol", [USER], stream=True, options={"num_predict": 4})]
    assert parts[-1].eval_count == 4


@check
def prompt(servers: Servers) -> None:
    client = Client(servers.model)
    raw = client.generate("smol", "The capital of France is", raw=True, options={"num_predict": 3, "temperature": 0})
    asked = client.generate("smol", "Hi", system="Be short.", options={"num_predict": 3})
    assert "Paris" in raw.response
    assert (asked.prompt_eval_count or 0) > (raw.prompt_eval_count or 0)
    assert (client.generate("smol").done_reason, client.generate("smol", keep_alive=0).done_reason) == (
        "load",
        "unload",
    )


@check
def tools(servers: Servers) -> None:
    client, messages = Client(servers.scripted), [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat("scripted", messages, tools=[weather])
    (call,) = first.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
    result = {"role": "tool", "content": weather(**call.function.arguments), "tool_name": "weather"}
    second = client.chat("scripted", [*messages, first.message, result], tools=[weather])
    assert second.message.content == "It is 18 degrees in Paris."


@check
def streamed_tools(servers: Servers) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    parts = list(Client(servers.scripted).chat("scripted", messages, tools=[weather], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [call.function.arguments for call in calls] == [{"city": "Paris"}]
    assert "".join(part.message.content or "" for part in parts).strip() == "I look."


@check
def schema(servers: Servers) -> None:
    messages = [{"role": "user", "content": "Name a city with its country."}]
    answer = Client(servers.scripted).chat("scripted", messages, format=SCHEMA)
    assert json.loads(answer.message.content or "") == {"city": "Paris", "country": "France"}


@check
def embeddings(servers: Servers) -> None:
    client = Client(servers.model)
    one, other = client.embed("smol", ["one", "two"]).embeddings
    assert len(one) == len(other) == len(client.embeddings("smol", "one").embedding)


@check
def models(servers: Servers) -> None:
    client = Client(servers.model)
    (listed,) = client.list().models
    (loaded,) = client.ps().models
    shown = client.show("smol")
    assert listed.model == loaded.model == "smol:latest"
    assert {"completion", "tools", "embedding"} <= set(shown.capabilities or [])
    assert (shown.modelinfo or {})["general.architecture"] == "llama"
    assert client.pull("smol").status == "success"


def refusal(call: Callable[[], Any]) -> tuple[int, str]:
    """The status and the text of the error that a call ends with."""
    try:
        call()
    except ResponseError as error:
        return error.status_code, error.error
    return 200, ""


@check
def errors(servers: Servers) -> None:
    client = Client(servers.model)
    picture, mirostat = {**USER, "images": ["aGk="]}, {"mirostat": 1}
    assert refusal(lambda: client.chat("nope", [USER])) == (404, "model 'nope' not found")
    assert refusal(lambda: client.pull("nope")) == (404, "model 'nope' not found")
    assert refusal(lambda: client.delete("owner/nope")) == (404, "model 'owner/nope' not found")
    assert "images" in refusal(lambda: client.chat("smol", [picture]))[1]
    assert "options.mirostat" in refusal(lambda: client.chat("smol", [USER], options=mirostat))[1]


main()
