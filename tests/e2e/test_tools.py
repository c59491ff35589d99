"""Calls of tools that the embedded model has to make: valid by their schemas, streamed and whole."""

import json
from typing import Any

from openai import OpenAI

from tests.e2e.server import Server

SIZE = {"type": "string", "enum": ["small", "large"]}
ORDER: Any = {
    "type": "function",
    "function": {
        "name": "order_coffee",
        "description": "Order coffee.",
        "parameters": {
            "type": "object",
            "properties": {"size": SIZE, "cups": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["size", "cups"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "Tells the time."}}
MESSAGES: Any = [{"role": "user", "content": "Three large coffees, please."}]


def check(name: str, arguments: str) -> None:
    if name == "clock":
        assert json.loads(arguments) == {}
        return
    assert name == "order_coffee"
    order = json.loads(arguments)
    assert order.keys() == {"size", "cups"}
    assert order["size"] in SIZE["enum"]
    assert 1 <= order["cups"] <= 9


def test_a_required_call_is_valid(server: Server) -> None:
    with OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        for choice in ("required", {"type": "function", "function": {"name": "order_coffee"}}):
            body: Any = {"tools": [ORDER, CLOCK], "tool_choice": choice, "parallel_tool_calls": False}
            body |= {"model": server.model(), "messages": MESSAGES, "temperature": 0}
            answer = client.chat.completions.create(**body).choices[0]
            assert answer.finish_reason == "tool_calls"
            assert answer.message.content is None
            (call,) = answer.message.tool_calls or []
            check(call.function.name, call.function.arguments)
            with client.chat.completions.stream(**body) as stream:
                streamed = stream.get_final_completion().choices[0].message.tool_calls or []
            assert [each.function.name for each in streamed] == [call.function.name]
            assert [each.function.arguments for each in streamed] == [call.function.arguments]


def test_tools_that_need_not_be_called_leave_an_answer(server: Server) -> None:
    strict = {"type": "function", "function": {**ORDER["function"], "strict": True}}
    body = {"model": server.model(), "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    with server.http() as http:
        for tool in (ORDER, strict):
            response = http.post("/v1/chat/completions", json={**body, "tools": [tool]})
            assert response.status_code == 200, response.text
            for call in response.json()["choices"][0]["message"].get("tool_calls", []):
                assert call["function"]["name"] == "order_coffee"
