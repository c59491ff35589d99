"""LangChain's Ollama module: chat, streams, agents with tools, typed answers, prompts, embeddings."""

from typing import Any

from checks import Servers, check, main
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel


class Place(BaseModel):
    """The type of an answer."""

    city: str
    country: str


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


def of_model(servers: Servers, **options: Any) -> ChatOllama:
    """The embedded model."""
    return ChatOllama(model="smol", base_url=servers.model, **options)


def of_script(servers: Servers, **options: Any) -> ChatOllama:
    """The scripted model."""
    return ChatOllama(model="scripted", base_url=servers.scripted, **options)


@check
def chat(servers: Servers) -> None:
    answer = of_model(servers, num_predict=8, num_ctx=4096, validate_model_on_init=True).invoke("Hi")
    assert answer.content
    assert (answer.usage_metadata or {})["output_tokens"] == 8


@check
def stream(servers: Servers) -> None:
    chunks = list(of_model(servers, num_predict=8).stream("Hi"))
    assert "".join(str(chunk.content) for chunk in chunks)
    assert any(chunk.usage_metadata for chunk in chunks)


@check
async def batch(servers: Servers) -> None:
    assert len(await of_model(servers, num_predict=4).abatch(["Hi"] * 4)) == 4


@check
def prompt(servers: Servers) -> None:
    assert OllamaLLM(model="smol", base_url=servers.model, num_predict=8).invoke("Once upon a time")


@check
def agent(servers: Servers) -> None:
    made: Any = create_agent(of_script(servers), tools=[weather])
    state = made.invoke({"messages": [HumanMessage("What is the weather in Paris?")]})
    assert state["messages"][-1].content == "It is 18 degrees in Paris."


@check
def typed_answer(servers: Servers) -> None:
    model = of_script(servers).with_structured_output(Place)
    assert model.invoke("Name a city with its country.") == Place(city="Paris", country="France")


@check
def embeddings(servers: Servers) -> None:
    embedder = OllamaEmbeddings(model="smol", base_url=servers.model)
    assert len(embedder.embed_documents(["one", "two"])) == 2


main()
