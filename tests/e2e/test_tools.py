"""Calls of tools that the embedded model has to make: valid by their schemas, streamed and whole."""

import json
import re
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


def test_tools_with_a_format_give_calls_or_content_and_a_forced_call_wins(server: Server) -> None:
    answer = {
        "type": "object",
        "properties": {"reply": {"type": "string", "maxLength": 20}, "polite": {"type": "boolean"}},
        "required": ["reply", "polite"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": answer, "strict": True}}
    reasons = set()
    with server.http() as http:
        for strict in (False, True):
            tools = [
                {"type": "function", "function": {**tool["function"], "strict": strict}} for tool in (ORDER, CLOCK)
            ]
            body = {"model": server.model(), "messages": MESSAGES, "tools": tools, "response_format": form}
            for seed in range(6):
                response = http.post("/v1/chat/completions", json={**body, "seed": seed, "max_tokens": 400})
                assert response.status_code == 200, response.text
                choice = response.json()["choices"][0]
                message, reason = choice["message"], choice["finish_reason"]
                reasons.add(reason)
                for call in message.get("tool_calls", []) if reason == "tool_calls" else []:
                    function = call["function"]
                    assert message["content"] is None
                    assert function["name"] in ("order_coffee", "clock")
                    assert isinstance(json.loads(function["arguments"]), dict)
                    if strict:
                        check(function["name"], function["arguments"])
                if reason == "stop":
                    assert json.loads(message["content"]).keys() == {"reply", "polite"}
            forced = {**body, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
            response = http.post("/v1/chat/completions", json=forced)
            assert response.status_code == 200, response.text
            (call,) = response.json()["choices"][0]["message"]["tool_calls"]
            check(call["function"]["name"], call["function"]["arguments"])
    assert reasons & {"stop", "tool_calls"}


def test_a_custom_tools_input_keeps_to_its_grammar(server: Server) -> None:
    definition = 'start: "order " COUNT " " SIZE NL\nCOUNT: /[1-9]/\nSIZE: "small" | "\\"large\\""\nNL: /\\n/'
    tool: Any = {
        "type": "custom",
        "custom": {
            "name": "shell",
            "description": "Runs a command.",
            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}},
        },
    }
    named: Any = {"type": "custom", "custom": {"name": "shell"}}
    with OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        for choice in ("required", named):
            answer = client.chat.completions.create(
                model=server.model(),
                messages=MESSAGES,
                temperature=0,
                tools=[tool],
                tool_choice=choice,
                parallel_tool_calls=False,
            ).choices[0]
            assert answer.finish_reason == "tool_calls"
            (call,) = answer.message.tool_calls or []
            assert call.type == "custom"
            assert call.custom.name == "shell"
            assert re.fullmatch(r'order [1-9] (small|"large")\n', call.custom.input)
