"""Anthropic's Python library: messages, streams, tools and its tool runner, typed answers, counting, cancel, errors."""

from typing import Any

import anthropic
from anthropic import beta_tool
from checks import Servers, check, is_idle, main, wait_until
from pydantic import BaseModel

TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = "What is the weather in Paris?"
HELLO: Any = [{"role": "user", "content": "Hi"}]


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


def of_model(servers: Servers) -> anthropic.Anthropic:
    """A client of the embedded model."""
    return anthropic.Anthropic(base_url=servers.model, api_key="none", max_retries=0)


def of_script(servers: Servers) -> anthropic.Anthropic:
    """A client of the scripted model."""
    return anthropic.Anthropic(base_url=servers.scripted, api_key="none", max_retries=0)


@check
def message(servers: Servers) -> None:
    answer = of_model(servers).messages.create(model="smol", max_tokens=8, messages=HELLO, system="Be brief.")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.output_tokens <= 8


@check
def stream(servers: Servers) -> None:
    with of_model(servers).messages.stream(model="smol", max_tokens=16, messages=HELLO) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == text


@check
def cached_system_prompt(servers: Servers) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = of_model(servers).messages.create(
        model="smol", max_tokens=4, messages=HELLO, system=system, metadata={"user_id": "someone"}
    )
    assert answer.content


@check
def thinking_and_effort(servers: Servers) -> None:
    # The embedded model cannot think: these are hints.
    for thinking in ({"type": "adaptive"}, {"type": "disabled"}):
        answer = of_model(servers).messages.create(
            model="smol", max_tokens=4, messages=HELLO, thinking=thinking, output_config={"effort": "low"}
        )
        assert answer.content


@check
def tool_loop(servers: Servers) -> None:
    client = of_script(servers)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.messages.stream(model="scripted", max_tokens=200, messages=messages, tools=[TOOL]) as events:
        first = events.get_final_message()
    assert first.stop_reason == "tool_use"
    (call,) = (block for block in first.content if block.type == "tool_use")
    assert call.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model="scripted", max_tokens=200, messages=messages, tools=[TOOL])
    assert second.content[0].type == "text"
    assert second.content[0].text == "It is 18 degrees in Paris."


@check
def tool_runner(servers: Servers) -> None:
    asked = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "18 degrees"

    runner = of_script(servers).beta.messages.tool_runner(
        model="scripted", max_tokens=200, tools=[weather], messages=[{"role": "user", "content": QUESTION}]
    )
    final = runner.until_done()
    assert asked == ["Paris"]
    assert final.content[-1].type == "text"
    assert final.content[-1].text == "It is 18 degrees in Paris."


@check
def typed_answer(servers: Servers) -> None:
    answer = of_script(servers).messages.parse(
        model="scripted",
        max_tokens=200,
        messages=[{"role": "user", "content": "Name a city with its country."}],
        output_format=Place,
    )
    assert answer.parsed_output == Place(city="Paris", country="France")


@check
def server_tool_is_left_out(servers: Servers) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    answer = of_model(servers).messages.create(model="smol", max_tokens=4, messages=HELLO, tools=[search])
    assert answer.content


@check
def count_tokens(servers: Servers) -> None:
    client = of_model(servers)
    counted = client.messages.count_tokens(model="smol", messages=HELLO).input_tokens
    usage = client.messages.create(model="smol", max_tokens=1, messages=HELLO).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@check
def cancel(servers: Servers) -> None:
    with of_model(servers).messages.stream(model="smol", max_tokens=4000, messages=HELLO) as events:
        next(iter(events))
    wait_until(lambda: is_idle(servers.model), "the cancelled request to end")


@check
def errors(servers: Servers) -> None:
    client = of_model(servers)
    long: Any = [{"role": "user", "content": "word " * 20_000}]
    try:
        client.messages.create(model="smol", max_tokens=4, messages=long)
    except anthropic.BadRequestError as error:
        text = error.message
    else:
        raise AssertionError("no BadRequestError")
    assert "prompt is too long: " in text, text
    try:
        client.messages.create(model="other", max_tokens=4, messages=HELLO)
    except anthropic.NotFoundError:
        pass
    else:
        raise AssertionError("no NotFoundError")


main()
