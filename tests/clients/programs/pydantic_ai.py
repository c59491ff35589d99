"""Pydantic AI: agents with tools and typed answers, over chat, Responses and Anthropic's messages."""

from typing import Any

from anthropic import AsyncAnthropic
from checks import Servers, check, main
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


def weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


def provider(address: str) -> OpenAIProvider:
    """A server's address, as Pydantic AI takes it."""
    return OpenAIProvider(base_url=f"{address}/v1", api_key="none")


def chat_model(servers: Servers) -> Model:
    """The scripted model by chat completions."""
    return OpenAIChatModel("scripted", provider=provider(servers.scripted))


def tool_loop_by(model: Model) -> None:
    """A question that takes a tool."""
    agent: Any = Agent(model, tools=[weather])
    assert agent.run_sync("What is the weather in Paris?").output == "It is 18 degrees in Paris."


@check
def chat(servers: Servers) -> None:
    agent: Any = Agent(OpenAIChatModel("smol", provider=provider(servers.model)), model_settings={"max_tokens": 8})
    assert agent.run_sync("Hi").output


@check
async def stream(servers: Servers) -> None:
    agent: Any = Agent(chat_model(servers))
    async with agent.run_stream("Hi") as result:
        assert await result.get_output() == "Hello from the script."


@check
def tool_loop(servers: Servers) -> None:
    tool_loop_by(chat_model(servers))


@check
def tool_loop_by_responses(servers: Servers) -> None:
    tool_loop_by(OpenAIResponsesModel("scripted", provider=provider(servers.scripted)))


@check
def tool_loop_by_anthropic_messages(servers: Servers) -> None:
    client = AsyncAnthropic(base_url=servers.scripted, api_key="none")
    tool_loop_by(AnthropicModel("scripted", provider=AnthropicProvider(anthropic_client=client)))


@check
def tools_with_typed_answer(servers: Servers) -> None:
    # The answer is a call of a tool, and some call is required.
    agent: Any = Agent(chat_model(servers), tools=[weather], output_type=Place)
    assert agent.run_sync("Look, then call with a typed city.").output == Place(city="Paris", country="France")


@check
def tools_with_native_typed_answer(servers: Servers) -> None:
    # Tools and a response format at once.
    agent: Any = Agent(chat_model(servers), tools=[weather], output_type=NativeOutput(Place))
    assert agent.run_sync("Look, then answer with a typed city.").output == Place(city="Paris", country="France")


main()
