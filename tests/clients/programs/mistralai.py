"""Mistral's SDK: chat, streams, tools, typed answers, text completion by its fill-in-the-middle route, embeddings."""

import json
from typing import Any

from checks import Servers, check, main
from mistralai.client import Mistral, errors
from pydantic import BaseModel

HELLO: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


def client(address: str) -> Mistral:
    """One for a server of ours."""
    return Mistral(api_key="none", server_url=address)


@check
def models(servers: Servers) -> None:
    mistral = client(servers.model)
    (card,) = mistral.models.list().data
    assert card.id == mistral.models.retrieve(model_id="smol").id == "smol"


@check
def chat(servers: Servers) -> None:
    answer: Any = client(servers.model).chat.complete(
        model="smol", messages=HELLO, max_tokens=8, random_seed=1, temperature=0.5, safe_prompt=False
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.completion_tokens <= 8


@check
def stream(servers: Servers) -> None:
    events = client(servers.model).chat.stream(model="smol", messages=HELLO, max_tokens=8)
    choices = [event.data.choices[0] for event in events]
    assert "".join(choice.delta.content or "" for choice in choices)
    assert choices[-1].finish_reason in {"stop", "length"}


@check
async def concurrent(servers: Servers) -> None:
    mistral = client(servers.model)
    answer: Any = await mistral.chat.complete_async(model="smol", messages=HELLO, max_tokens=4)
    events = await mistral.chat.stream_async(model="smol", messages=HELLO, max_tokens=4)
    assert answer.choices[0].message.content
    assert "".join([event.data.choices[0].delta.content or "" async for event in events])


@check
def tool_loop(servers: Servers) -> None:
    mistral = client(servers.scripted)
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first: Any = mistral.chat.complete(model="scripted", messages=messages, tools=[WEATHER])
    (call,) = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    second: Any = mistral.chat.complete(model="scripted", messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "It is 18 degrees in Paris."


@check
def forced_call(servers: Servers) -> None:
    answer: Any = client(servers.model).chat.complete(
        model="smol",
        messages=HELLO,
        tools=[WEATHER],
        tool_choice="any",
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)


@check
def typed_answer(servers: Servers) -> None:
    messages: Any = [{"role": "user", "content": "Name a city with its country."}]
    answer: Any = client(servers.scripted).chat.parse(Place, model="scripted", messages=messages)
    assert answer.choices[0].message.parsed == Place(city="Paris", country="France")


@check
def completion(servers: Servers) -> None:
    fim = client(servers.model).fim
    answer: Any = fim.complete(model="smol", prompt="def add(a, b):", max_tokens=8, temperature=0)
    events = fim.stream(model="smol", prompt="def add(a, b):", max_tokens=8, temperature=0)
    text = "".join(event.data.choices[0].delta.content or "" for event in events)
    assert text == answer.choices[0].message.content != ""


@check
def embeddings(servers: Servers) -> None:
    answer: Any = client(servers.model).embeddings.create(model="smol", inputs=["one", "two"])
    assert [len(each.embedding) for each in answer.data] == 2 * [len(answer.data[0].embedding)]


@check
def refusals(servers: Servers) -> None:
    statuses = []
    for model in ("nope", "smol"):  # The embedded model has no tokens to fill in the middle.
        try:
            client(servers.model).fim.complete(model=model, prompt="a", suffix="b", max_tokens=4)
        except errors.SDKError as error:
            statuses.append(error.status_code)
    assert statuses == [404, 400]


main()
