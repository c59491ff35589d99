"""What Codex and others send beside a conversation's text: hints, tools and items of other kinds, reasoning."""

import base64
import json
from array import array
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.anthropic.serving import HERMES, ROOMY, SCHEMA, THINKING, THOUGHT
from tests.frontend.ignoring import HEADER, check_no_effect
from tests.frontend.responses.serving import named_events
from tests.frontend.serving import STRICT, TEMPLATE, Frontend, answering, in_process

WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
USER = {"role": "user", "content": "Hi"}
# Shows all that a template is given of messages.
PLAIN = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|{{ m.reasoning }}|"
    "{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}]"
    "{% endfor %}{% if tools %}<tool_call>{{ tools[0].function.name }}{{ tools[0].function.description }}{% endif %}"
)
ENCRYPTED = "reasoning.encrypted_content"


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", **fields}]}]}


async def told_and_prompt(tokenizer: Tokenizer, template: str, **body: Any) -> tuple[str | None, str]:
    """The header of an answer, and the prompt that the core was sent."""
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, template) as frontend:
        response = await frontend.http.post("/v1/responses", json={"input": "Hi", **body})
        assert response.status_code == 200, response.text
        (submit,) = frontend.core.sent(Submit)
    return response.headers.get(HEADER), tokenizer.decode(array("i", submit.prompt).tolist(), False)


@pytest.mark.parametrize(
    ("body", "plain", "name"),
    [
        ({"nope": 1}, {}, "nope"),
        ({"client_metadata": {"x": "y"}}, {}, "client_metadata"),
        ({"max_tool_calls": 3}, {}, "max_tool_calls"),
        ({"context_management": []}, {}, "context_management"),
        ({"include": ["file_search_call.results"]}, {}, "include.file_search_call.results"),
        ({"tools": [{"type": "web_search"}]}, {}, "tools.web_search"),
        ({"tools": [WEATHER, {"type": "namespace", "name": "x"}]}, {"tools": [WEATHER]}, "tools.namespace"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, {"tools": [WEATHER]}, "tools.defer_loading"),
        (part(nobody=1), part(), "input.content.nobody"),
        ({"input": [{**USER, "phase": "final_answer"}]}, {"input": [USER]}, "input.phase"),
        ({"input": [USER, {"type": "web_search_call", "id": "w"}]}, {"input": [USER]}, "input.web_search_call"),
        ({"input": [USER, {"type": "mcp_list_tools"}]}, {"input": [USER]}, "input.mcp_list_tools"),
        ({"input": [USER, {"type": "file_search_call"}]}, {"input": [USER]}, "input.file_search_call"),
    ],
)
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, body: dict[str, Any], plain: dict[str, Any], name: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        return in_process(answering(tokenizer, "ok", ROOMY), tokenizer, HERMES, server=server)

    base = {"input": "Hi", "store": False}
    await check_no_effect(serve, "/v1/responses", base | body, base | plain, name)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ],
)
async def test_hints_that_an_answer_repeats_are_told_too(tokenizer: Tokenizer, body: dict[str, Any], name: str) -> None:
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, **body)
    assert (header, prompt) == (name, "<|start|>user: Hi<|end|><|start|>")
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, server=STRICT) as frontend:
        refusal = await frontend.http.post("/v1/responses", json={"input": "Hi", **body})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, name)


async def test_annotations_are_told_and_no_strict_server_refuses_them(tokenizer: Tokenizer) -> None:
    assert (await told_and_prompt(tokenizer, TEMPLATE, **part(annotations=[1])))[0] == "input.content.annotations"
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, server=STRICT) as frontend:
        assert (await frontend.http.post("/v1/responses", json=part(annotations=[1]))).status_code == 200


@pytest.mark.parametrize("streamed", [True, False])
async def test_reasoning_goes_there_and_back_as_encrypted_content(tokenizer: Tokenizer, streamed: bool) -> None:
    body: dict[str, Any] = {"input": [USER], "store": False, "include": [ENCRYPTED]}
    async with in_process(answering(tokenizer, THOUGHT, ROOMY), tokenizer, THINKING) as frontend:
        response = await frontend.http.post("/v1/responses", json={**body, "stream": streamed})
        without = await frontend.http.post("/v1/responses", json={**body, "include": None})
    assert HEADER not in response.headers
    events = named_events(response.text) if streamed else []
    output = (events[-1]["response"] if streamed else response.json())["output"]
    reasoning = output[0]
    assert reasoning["type"] == "reasoning"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == (output if streamed else [])
    assert "encrypted_content" not in without.json()["output"][0]
    text = reasoning["content"][0]["text"]
    assert text.strip() == "Hm 🙂."
    # As Codex sends it back: without the text.
    kept = {name: reasoning[name] for name in ("type", "id", "summary", "encrypted_content")} | {"content": None}
    message = {"role": "assistant", "content": "Hello"}
    header, prompt = await told_and_prompt(tokenizer, PLAIN + "<think>", input=[USER, kept, message, USER])
    assert (header, f"[assistant|Hello||{text}|]" in prompt) == (None, True)


async def test_reasoning_of_another_server_is_told_and_left_out(tokenizer: Tokenizer) -> None:
    for foreign in ("gAAAAABotherserver==", "x", "", base64.b64encode(b"\xff\xfe").decode(), "é"):
        item = {"type": "reasoning", "summary": [], "encrypted_content": foreign}
        message = {"role": "assistant", "content": "Hello"}
        header, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, item, message, USER])
        assert header == "input.encrypted_content"
        assert prompt == "[user|Hi|||][assistant|Hello|||][user|Hi|||]"
    readable = {**item, "summary": [{"type": "summary_text", "text": "sum"}]}
    header, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, readable, message, USER])
    assert (header, "[assistant|Hello||sum|]" in prompt) == (None, True)


@pytest.mark.parametrize(
    ("call", "output", "function"),
    [
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls -l"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
            'c:run:{"input": "ls -l"}',
        ),
        (
            {
                "type": "local_shell_call",
                "id": "c",
                "call_id": "c",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5},
            },
            {"type": "local_shell_call_output", "id": "c", "output": "done"},
            'c:local_shell:{"command": ["ls"], "timeout_ms": 5}',
        ),
        (
            {
                "type": "apply_patch_call",
                "call_id": "c",
                "operation": {"type": "create_file", "path": "a", "diff": "+x"},
            },
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "done"},
            'c:apply_patch:{"type": "create_file", "path": "a", "diff": "+x"}',
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Rome"}'},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
            'c:weather:{"city": "Rome"}',
        ),
    ],
)
async def test_calls_of_every_kind_are_told_to_the_model(
    tokenizer: Tokenizer, call: dict[str, Any], output: dict[str, Any], function: str
) -> None:
    header, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, call, output], tools=[WEATHER])
    assert header is None
    assert prompt == f"[user|Hi|||][assistant||||{function}][tool|done|c||]<tool_call>weather"


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "function_call", "call_id": "c"}, "input[0].name"),
        ({"type": "custom_tool_call", "call_id": "c"}, "input[0].name"),
        ({"type": "additional_tools"}, "input[0].tools"),
        ({"type": "message", "content": "x"}, "input[0].role"),
        ({"type": "nope", "role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0]"),
    ],
)
async def test_what_an_item_lacks_is_named(tokenizer: Tokenizer, item: dict[str, Any], field: str) -> None:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer) as frontend:
        response = await frontend.http.post("/v1/responses", json={"input": [item]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("choice", [{"type": "web_search"}, "required", {"type": "mcp", "name": "x"}])
async def test_a_tool_of_a_server_that_must_be_called_is_refused(tokenizer: Tokenizer, choice: Any) -> None:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, HERMES) as frontend:
        body = {"input": "Hi", "tools": [{"type": "web_search"}], "tool_choice": choice}
        response = await frontend.http.post("/v1/responses", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_tool_of_a_server_is_not_in_the_prompt(tokenizer: Tokenizer) -> None:
    tools = [WEATHER, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    header, prompt = await told_and_prompt(tokenizer, HERMES, tools=tools)
    assert header == "tools.server_label, tools.web_search, tools.mcp"
    assert ("weather" in prompt, "web_search" in prompt, "mcp" in prompt) == (True, False, False)


async def test_tools_that_the_caller_runs_are_in_the_prompt(tokenizer: Tokenizer) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "custom", "name": "run", "description": "Runs."},
        {"type": "local_shell"},
        {"type": "apply_patch"},
    ]
    header, prompt = await told_and_prompt(tokenizer, HERMES, tools=tools[:1], input=[USER])
    assert (header, '"name": "run"' in prompt) == (None, True)
    added = {"type": "additional_tools", "role": "developer", "tools": tools[1:]}
    header, prompt = await told_and_prompt(
        tokenizer, HERMES, input=[USER, added], tool_choice="required", tools=[WEATHER]
    )
    assert header is None
    for name in ("weather", "local_shell", "apply_patch"):
        assert f'"name": "{name}"' in prompt


async def test_output_tokens_beyond_the_context_are_told(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer) as frontend:
        response = await frontend.http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 1_000_000})
        (submit,) = frontend.core.sent(Submit)
    room = ROOMY.max_model_len - len(submit.prompt) // 4
    assert (response.headers["pyllm-max-tokens"], submit.max_tokens) == (str(room), room)


IMAGE = "[An image was here. Images are not supported yet.]"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (None, ""),
        ({"degrees": 5}, '{"degrees":5}'),
        ([{"degrees": 5}], '[{"degrees":5}]'),
        (5, "5"),
        ([{"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": "data:x"}], f"See:\n{IMAGE}"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "the file"}}], "the file"),
        ([{"type": "json", "json": {"degrees": 5}}], '{"json":{"degrees":5}}'),
        ({"type": "computer_screenshot", "image_url": "data:x"}, IMAGE),
    ],
)
async def test_a_result_is_read_whatever_it_is(tokenizer: Tokenizer, output: Any, shown: str) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": None}
    result = {"type": "function_call_output", "output": output}
    _, prompt = await told_and_prompt(tokenizer, PLAIN, input=[call, result], tools=[WEATHER])
    assert prompt == f"[assistant||||a:weather:{{}}][tool|{shown}|a||]<tool_call>weather"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(None, {}), ("", {}), ({"city": "Rome"}, {"city": "Rome"}), (["Rome"], {"INVALID_JSON": '["Rome"]'})],
)
async def test_a_calls_arguments_may_be_anything(tokenizer: Tokenizer, arguments: Any, shown: dict[str, Any]) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": arguments}
    _, prompt = await told_and_prompt(tokenizer, PLAIN, input=[call], tools=[WEATHER])
    assert f"a:weather:{json.dumps(shown)}]" in prompt


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (
            {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}},
            '[assistant||||c:computer:{"type": "wait"}]',
        ),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            '[assistant||||c:shell:{"commands": ["ls"]}]',
        ),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a"}]}, '[tool|[{"stdout":"a"}]|c||]'),
        ({"type": "image_generation_call", "id": "i", "result": "eA=="}, f"[assistant|{IMAGE}|||]"),
        (
            {"type": "compaction", "encrypted_content": "x"},
            "[assistant|[A part of type compaction was here. It is not supported yet.]|||]",
        ),
        ({"type": "compaction", "summary": [{"type": "summary_text", "text": "so far"}]}, "[assistant|so far|||]"),
        ({"type": "nope", "role": "user", "content": "so far"}, "[user|so far|||]"),
        ({"role": "assistant", "content": None}, "[assistant||||]"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "[assistant|No.|||]"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}, f"[assistant|{IMAGE}|||]"),
    ],
)
async def test_no_item_of_the_history_is_refused(tokenizer: Tokenizer, item: dict[str, Any], shown: str) -> None:
    _, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, item], tools=[WEATHER])
    assert prompt == f"[user|Hi|||]{shown}<tool_call>weather"


async def test_tools_that_a_server_lists_need_no_type(tokenizer: Tokenizer) -> None:
    listed = {"type": "mcp_list_tools", "server_label": "x", "tools": [{"name": "f", "input_schema": {}}]}
    header, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, listed])
    assert (prompt, "input.mcp_list_tools" in (header or "")) == ("[user|Hi|||]", True)
    _, prompt = await told_and_prompt(tokenizer, PLAIN, input=[USER, {**listed, "type": "additional_tools"}])
    assert prompt == "[user|Hi|||]"
