"""LangChain and LangGraph: chat, streams, agents with tools, typed answers both ways, embeddings."""

from typing import Any

from checks import Servers, check, main
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel


class Place(BaseModel):
    """What a typed answer is."""

    city: str
    country: str


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


def of_model(servers: Servers, **options: Any) -> ChatOpenAI:
    """The embedded model."""
    return ChatOpenAI(model="smol", base_url=f"{servers.model}/v1", max_retries=0, **options)


def of_script(servers: Servers, **options: Any) -> ChatOpenAI:
    """The scripted model."""
    return ChatOpenAI(model="scripted", base_url=f"{servers.scripted}/v1", max_retries=0, **options)


@check
def chat(servers: Servers) -> None:
    assert of_model(servers, max_tokens=8).invoke("Hi").content


@check
def stream(servers: Servers) -> None:
    chunks = list(of_model(servers, max_tokens=8, stream_usage=True).stream("Hi"))
    assert "".join(str(chunk.content) for chunk in chunks)
    assert any(chunk.usage_metadata for chunk in chunks)


@check
def completion(servers: Servers) -> None:
    assert OpenAI(model="smol", base_url=f"{servers.model}/v1", max_tokens=8).invoke("Once upon a time")


@check
async def batch(servers: Servers) -> None:
    answers = await of_model(servers, max_tokens=4).abatch(["Hi"] * 4)
    assert len(answers) == 4


@check
def agent(servers: Servers) -> None:
    made: Any = create_agent(of_script(servers), tools=[weather])
    state = made.invoke({"messages": [HumanMessage("What is the weather in Paris?")]})
    assert state["messages"][-1].content == "It is 18 degrees in Paris."


@check
def agent_with_typed_answer(servers: Servers) -> None:
    made: Any = create_agent(of_script(servers), tools=[weather], response_format=ProviderStrategy(Place))
    state = made.invoke({"messages": [HumanMessage("Look, then answer with a typed city.")]})
    assert state["structured_response"] == Place(city="Paris", country="France")


@check
def responses_agent(servers: Servers) -> None:
    made: Any = create_agent(of_script(servers, use_responses_api=True), tools=[weather])
    state = made.invoke({"messages": [HumanMessage("What is the weather in Paris?")]})
    assert state["messages"][-1].text == "It is 18 degrees in Paris."


@check
def graph(servers: Servers) -> None:
    model = of_script(servers).bind_tools([weather])
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    builder.add_edge("tools", "model")
    state = builder.compile().invoke({"messages": [HumanMessage("What is the weather in Paris?")]})
    assert state["messages"][-1].content == "It is 18 degrees in Paris."


@check
def typed_answer(servers: Servers) -> None:
    model = of_script(servers).with_structured_output(Place)
    assert model.invoke("Name a city with its country.") == Place(city="Paris", country="France")


@check
def typed_answer_by_a_call(servers: Servers) -> None:
    model = of_script(servers).with_structured_output(Place, method="function_calling")
    assert model.invoke("Call it typed.") == Place(city="Paris", country="France")


@check
def embeddings(servers: Servers) -> None:
    # Without the flag it sends token ids of a tokenizer that it would have to download.
    embedder = OpenAIEmbeddings(model="smol", base_url=f"{servers.model}/v1", check_embedding_ctx_length=False)
    assert len(embedder.embed_documents(["one", "two"])) == 2


main()
