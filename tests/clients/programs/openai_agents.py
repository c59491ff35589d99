"""OpenAI Agents SDK: tools, typed answers, handoffs and streams, by chat completions and by Responses."""

from typing import Any

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import Servers, check, main
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

set_tracing_disabled(True)


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


def client(servers: Servers) -> AsyncOpenAI:
    """The scripted server."""
    return AsyncOpenAI(base_url=f"{servers.scripted}/v1", max_retries=0)


def chat_model(servers: Servers) -> Model:
    """The scripted model by chat completions."""
    return OpenAIChatCompletionsModel(model="scripted", openai_client=client(servers))


def responses_model(servers: Servers) -> Model:
    """The scripted model by Responses."""
    return OpenAIResponsesModel(model="scripted", openai_client=client(servers))


def answer(agent: Any, prompt: str) -> Any:
    """What an agent answers in the end."""
    return Runner.run_sync(agent, prompt).final_output


@check
def tool_loop(servers: Servers) -> None:
    agent = Agent(name="first", model=chat_model(servers), tools=[weather])
    assert answer(agent, "What is the weather in Paris?") == "It is 18 degrees in Paris."


@check
def tool_loop_by_responses(servers: Servers) -> None:
    settings = ModelSettings(reasoning=Reasoning(effort="low", summary="auto"), verbosity="low")
    agent = Agent(name="first", model=responses_model(servers), tools=[weather], model_settings=settings)
    assert answer(agent, "What is the weather in Paris?") == "It is 18 degrees in Paris."


@check
def tools_with_typed_answer(servers: Servers) -> None:
    agent = Agent(name="first", model=chat_model(servers), tools=[weather], output_type=Place)
    assert answer(agent, "Look, then answer with a typed city.") == Place(city="Paris", country="France")


@check
def tools_with_typed_answer_by_responses(servers: Servers) -> None:
    agent = Agent(name="first", model=responses_model(servers), tools=[weather], output_type=Place)
    assert answer(agent, "Look, then answer with a typed city.") == Place(city="Paris", country="France")


@check
def handoff(servers: Servers) -> None:
    second: Any = Agent(name="second", instructions="You are the second.", model=chat_model(servers))
    first: Any = Agent(name="first", model=chat_model(servers), handoffs=[second])
    assert answer(first, "Hand this over.") == "The second answers."


@check
async def stream(servers: Servers) -> None:
    agent: Any = Agent(name="first", model=responses_model(servers))
    result = Runner.run_streamed(agent, "Hi")
    async for _ in result.stream_events():
        pass
    assert result.final_output == "Hello from the script."


main()
