"""Tools that the caller runs: what is asked of the model, and the items that its calls become."""

import json
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.anthropic.serving import HERMES
from tests.frontend.responses.test_routes import WEATHER, create, last_prompt, refused, saying
from tests.frontend.serving import in_process

PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "+" /[a-z"\\n]+/'},
}
SHELL = {"type": "local_shell"}
APPLY = {"type": "apply_patch"}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_a_custom_tools_call_is_a_text(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, call("patch", input='+"a\nb')), tokenizer, HERMES) as frontend:
        response = await create(frontend, tools=[PATCH, WEATHER])
        prompt = last_prompt(frontend, tokenizer)
        second = await create(
            frontend,
            request_id="two",
            tools=[PATCH],
            previous_response_id=response["id"],
            input=[{"type": "custom_tool_call_output", "call_id": response["output"][0]["call_id"], "output": "ok"}],
        )
        assert "patch" in last_prompt(frontend, tokenizer)
    (item,) = response["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", '+"a\nb')
    assert response["tools"][0] == PATCH
    assert "Edits files." in prompt
    assert second["status"] == "completed"


async def test_a_forced_custom_tools_input_is_the_whole_text_under_its_grammar(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "+ab"), tokenizer, HERMES) as frontend:
        choice = {"type": "custom", "name": "patch"}
        response = await create(frontend, tools=[PATCH, WEATHER], tool_choice=choice)
        *_, submit = frontend.core.sent(Submit)
    assert submit.sampling.grammar == PATCH["format"]["definition"]
    assert [(item["type"], item["input"]) for item in response["output"]] == [("custom_tool_call", "+ab")]


async def test_a_local_shells_call_is_an_action(tokenizer: Tokenizer) -> None:
    text = call("local_shell", command=["ls", "-l"], timeout_ms=100)
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        (item,) = (await create(frontend, tools=[SHELL]))["output"]
        limit = len(tokenizer.encode(text.partition(", ")[0])) + 20  # within the arguments
        (broken,) = (await create(frontend, request_id="two", tools=[SHELL], max_output_tokens=limit))["output"]
    assert (item["type"], item["status"], item["call_id"][:5]) == ("local_shell_call", "completed", "call_")
    wanted = {"type": "exec", "command": ["ls", "-l"], "timeout_ms": 100, "env": {}}
    assert item["action"] == {**wanted, "working_directory": None, "user": None}
    assert (broken["type"], broken["status"], broken["action"]["command"]) == ("local_shell_call", "incomplete", [])


async def test_a_change_of_a_file_is_an_operation(tokenizer: Tokenizer) -> None:
    operation = {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"}
    async with in_process(saying(tokenizer, call("apply_patch", **operation)), tokenizer, HERMES) as frontend:
        (item,) = (await create(frontend, tools=[APPLY, SHELL]))["output"]
        function = {"type": "function", "name": "apply_patch"}
        (plain,) = (await create(frontend, request_id="two", tools=[function]))["output"]
    assert (item["type"], item["operation"]) == ("apply_patch_call", operation)
    assert plain["type"] == "function_call"


@pytest.mark.parametrize(
    ("tools", "choice", "kind"),
    [
        ([SHELL, WEATHER], {"type": "local_shell"}, "local_shell_call"),
        ([SHELL, WEATHER], {"type": "function", "name": "weather"}, "function_call"),
    ],
)
async def test_one_tool_can_be_forced(
    tokenizer: Tokenizer, tools: list[dict[str, Any]], choice: dict[str, Any], kind: str
) -> None:
    async with in_process(saying(tokenizer, "{}"), tokenizer, HERMES) as frontend:
        response = await create(frontend, tools=tools, tool_choice=choice)
    assert [item["type"] for item in response["output"]] == [kind]
    assert response["tool_choice"]["type"] == choice["type"]


async def test_the_model_is_told_of_allowed_tools_only(tokenizer: Tokenizer) -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, {"type": "local_shell"}]}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        await create(frontend, tools=[SHELL, WEATHER, {"type": "web_search"}], tool_choice=allowed)
        prompt = last_prompt(frontend, tokenizer)
    assert "local_shell" in prompt
    assert "weather" not in prompt


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}}]}, "tools"),
        ({"tools": [SHELL, SHELL]}, "tools[1]"),
    ],
)
async def test_what_cannot_be_called_is_refused(tokenizer: Tokenizer, body: dict[str, Any], field: str) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        parameter, _ = await refused(frontend, **{"tools": [WEATHER, {"type": "web_search"}], **body})
    assert parameter == field
