"""What Claude Code and others send of a conversation that has no effect, or is told to the model in another form."""

import json
from array import array
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.anthropic.serving import HERMES, ROOMY, THINKING, USER, WEATHER
from tests.frontend.ignoring import HEADER, check_no_effect
from tests.frontend.serving import STRICT, TEMPLATE, Frontend, answering, in_process

ALWAYS_THINKING = TEMPLATE + "<think>"
TEXT = {"type": "text", "text": "x"}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def with_block(**block: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [block]}]}


def with_tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{**WEATHER, **fields}]}


async def told_and_prompt(tokenizer: Tokenizer, template: str, **body: Any) -> tuple[str | None, str]:
    """The header of an answer, and the prompt that the core was sent."""
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, template) as frontend:
        response = await frontend.http.post("/v1/messages", json={"messages": [USER], "max_tokens": 5, **body})
        assert response.status_code == 200, response.text
        (submit,) = frontend.core.sent(Submit)
    return response.headers.get(HEADER), tokenizer.decode(array("i", submit.prompt).tolist(), False)


@pytest.mark.parametrize(
    ("body", "plain", "name"),
    [
        ({"nope": 1}, {}, "nope"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, {}, "context_management"),
        ({"mcp_servers": [{"url": "x"}]}, {}, "mcp_servers"),
        ({"speed": "fast"}, {}, "speed"),
        ({"output_config": {"effort": "high"}}, {}, "output_config.effort"),
        ({"output_config": {"nope": 1}}, {}, "output_config.nope"),
        ({"thinking": {"type": "adaptive"}}, {}, "thinking"),
        (with_block(**TEXT, citations=[{}]), with_block(**TEXT), "messages.content.citations"),
        (with_block(**TEXT, nope=1), with_block(**TEXT), "messages.content.nope"),
        (with_tool(defer_loading=True), with_tool(), "tools.defer_loading"),
        (with_tool(allowed_callers=["direct"]), with_tool(), "tools.allowed_callers"),
        ({"tools": [WEATHER, WEB_SEARCH]}, with_tool(), "tools.web_search_20250305"),
        ({"tools": [WEB_SEARCH]}, {}, "tools.web_search_20250305"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, path: str, body: dict[str, Any], plain: dict[str, Any], name: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        return in_process(answering(tokenizer, "ok", ROOMY), tokenizer, HERMES, server=server)

    user: dict[str, Any] = {"messages": [USER]} | ({"max_tokens": 10} if path == "/v1/messages" else {})
    await check_no_effect(serve, path, user | body, user | plain, name)


@pytest.mark.parametrize("name", ["container", "diagnostics", "inference_geo"])
async def test_hints_of_messages_are_told(tokenizer: Tokenizer, name: str) -> None:
    assert (await told_and_prompt(tokenizer, TEMPLATE, **{name: "x"}))[0] == name


@pytest.mark.parametrize(
    "body",
    [
        {"speed": "standard", "context_management": None, "cache_control": None, "service_tier": None, "thread": None},
        {"thinking": None, "output_config": None, "metadata": {"user_id": None}},
        with_block(**TEXT, cache_control=None, citations=None),
        with_tool(cache_control=None, defer_loading=False, strict=None, type=None),
    ],
)
async def test_what_asks_for_nothing_is_not_told(tokenizer: Tokenizer, body: dict[str, Any]) -> None:
    assert (await told_and_prompt(tokenizer, HERMES, **body))[0] is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"cache_control": {"type": "ephemeral"}}, "cache_control"),
        ({"service_tier": "auto"}, "service_tier"),
        (with_block(**TEXT, cache_control={"type": "ephemeral", "ttl": "1h"}), "messages.content.cache_control"),
        (with_tool(cache_control={"type": "ephemeral"}), "tools.cache_control"),
    ],
)
async def test_what_saves_no_more_than_money_is_told_and_no_strict_server_refuses_it(
    tokenizer: Tokenizer, body: dict[str, Any], name: str
) -> None:
    assert (await told_and_prompt(tokenizer, HERMES, **body))[0] == name
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, HERMES, server=STRICT) as frontend:
        response = await frontend.http.post("/v1/messages", json={"messages": [USER], "max_tokens": 5, **body})
    assert (response.status_code, response.headers.get(HEADER)) == (200, None)


@pytest.mark.parametrize(
    ("template", "kind", "told"),
    [
        (TEMPLATE, "disabled", None),
        (TEMPLATE, "enabled", "thinking"),
        (TEMPLATE, "adaptive", "thinking"),
        (THINKING, "disabled", None),
        (THINKING, "enabled", None),
        (THINKING, "adaptive", None),
        (ALWAYS_THINKING, "disabled", "thinking"),
        (ALWAYS_THINKING, "enabled", None),
        (ALWAYS_THINKING, "adaptive", None),
    ],
)
async def test_thinking_is_told_where_the_model_does_otherwise(
    tokenizer: Tokenizer, template: str, kind: str, told: str | None
) -> None:
    header, prompt = await told_and_prompt(tokenizer, template, thinking={"type": kind})
    assert header == told
    assert ("<think>" in prompt) == (template is ALWAYS_THINKING or (template is THINKING and kind != "disabled"))


async def test_a_display_of_thinking_and_a_budget_that_cannot_be_held_are_told(tokenizer: Tokenizer) -> None:
    for kind, template, told in [
        ("enabled", THINKING, "thinking.display"),
        ("adaptive", THINKING, "thinking.budget_tokens, thinking.display"),
        ("enabled", TEMPLATE, "thinking, thinking.budget_tokens, thinking.display"),
        ("enabled", TEMPLATE + "{# <|channel|>analysis #}", "thinking.budget_tokens, thinking.display"),
    ]:
        thinking = {"type": kind, "budget_tokens": 5, "display": "summarized"}
        header, prompt = await told_and_prompt(tokenizer, template, thinking=thinking)
        assert header is not None
        assert sorted(header.split(", ")) == told.split(", ")
        assert ("<think>" in prompt) == (template is THINKING)


async def test_a_budget_of_thinking_reaches_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer, THINKING) as frontend:
        body = {"messages": [USER], "max_tokens": 5}
        thinking = {"type": "enabled", "budget_tokens": 7}
        response = await frontend.http.post("/v1/messages", json={**body, "thinking": thinking})
        wrong = await frontend.http.post("/v1/messages", json={**body, "thinking": {**thinking, "budget_tokens": -5}})
        (submit,) = frontend.core.sent(Submit)
    assert HEADER not in response.headers
    assert submit.sampling.thinking_budget == 7
    assert tokenizer.decode(array("i", submit.sampling.thinking_ends[0]).tolist(), False) == "</think>"
    assert "thinking.budget_tokens must be 0 or more" in wrong.json()["error"]["message"]


async def test_an_effort_reaches_a_template_that_looks_at_it(tokenizer: Tokenizer) -> None:
    template = "{{ reasoning_effort }}" + TEMPLATE
    header, prompt = await told_and_prompt(tokenizer, template, output_config={"effort": "high"})
    assert (header, prompt.startswith("high<|start|>")) == (None, True)


async def test_variables_reach_the_template_and_thinking_is_the_field_of_its_own(tokenizer: Tokenizer) -> None:
    template = "{{ mood }}" + THINKING
    variables = {"mood": "calm", "enable_thinking": False}
    _, prompt = await told_and_prompt(tokenizer, template, chat_template_kwargs=variables)
    assert prompt.startswith("calm<|start|>")
    assert "<think>" not in prompt
    both = {"chat_template_kwargs": variables, "thinking": {"type": "adaptive"}}
    assert "<think>" in (await told_and_prompt(tokenizer, template, **both))[1]


async def test_a_system_message_keeps_its_place(tokenizer: Tokenizer) -> None:
    messages = [
        USER,
        {"role": "system", "content": [TEXT, {**TEXT, "text": "y"}]},
        {"role": "system", "content": "z"},
        USER,
    ]
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=messages, system="s")
    assert header is None
    assert prompt == (
        "<|start|>system: s<|end|><|start|>user: Hi<|end|><|start|>system: x\ny<|end|><|start|>system: z<|end|>"
        "<|start|>user: Hi<|end|><|start|>"
    )


async def test_a_tool_that_was_searched_for_is_named(tokenizer: Tokenizer) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}, "caller": None}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [TEXT, {"type": "tool_reference", "tool_name": "weather"}],
    }
    messages = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    header, prompt = await told_and_prompt(tokenizer, HERMES, messages=messages, tools=[WEATHER])
    assert header is None
    assert "<|start|>tool: x\nThe tool weather can be called now.<|end|>" in prompt


async def test_redacted_thinking_is_left_out(tokenizer: Tokenizer) -> None:
    blocks = [{"type": "redacted_thinking", "data": "c2VjcmV0"}, {"type": "text", "text": "Hello"}]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=messages)
    assert header == "messages.content.data"
    assert prompt == "<|start|>user: Hi<|end|><|start|>assistant: Hello<|end|><|start|>user: Hi<|end|><|start|>"


@pytest.mark.parametrize(
    "kind",
    [
        *("server_tool_use", "web_search_tool_result", "mcp_tool_use", "mcp_tool_result"),
        *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
    ],
)
async def test_what_tools_did_on_a_server_is_left_out(tokenizer: Tokenizer, kind: str) -> None:
    messages = [USER, {"role": "assistant", "content": [{"type": kind}, {"type": "text", "text": "Hello"}]}, USER]
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=messages)
    assert header == f"messages.content.{kind}"
    assert "<|start|>assistant: Hello<|end|>" in prompt


async def test_a_billing_header_is_left_out_of_the_prompt(tokenizer: Tokenizer) -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"}
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, system=[billing, {**TEXT, "text": "Be brief."}])
    assert header == "system.x-anthropic-billing-header"
    assert prompt == "<|start|>system: Be brief.<|end|><|start|>user: Hi<|end|><|start|>"
    _, prompt = await told_and_prompt(tokenizer, TEMPLATE, system=[billing])
    assert prompt == "<|start|>user: Hi<|end|><|start|>"
    # Elsewhere it is a text like any other.
    for kept in (billing["text"], [TEXT, billing]):
        header, prompt = await told_and_prompt(tokenizer, TEMPLATE, system=kept)
        assert (header, "cch=a1b2c" in prompt) == (None, True)


async def test_a_tool_of_a_server_is_not_in_the_prompt(tokenizer: Tokenizer) -> None:
    header, prompt = await told_and_prompt(tokenizer, HERMES, tools=[WEATHER, WEB_SEARCH])
    assert header == "tools.web_search_20250305"
    assert ("weather" in prompt, "web_search" in prompt) == (True, False)


@pytest.mark.parametrize(
    ("user_id", "tenant"),
    [
        ("me", "me"),
        ('{"device_id": "d", "account_uuid": "", "session_id": "s"}', "d"),
        ('{"device_id": "d", "account_uuid": "a", "session_id": "s"}', "a"),
        ('{"session_id": "s"}', '{"session_id": "s"}'),
        ('{"device_id": 5}', '{"device_id": 5}'),
    ],
)
async def test_claude_codes_sessions_are_one_tenant(tokenizer: Tokenizer, user_id: str, tenant: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "metadata": {"user_id": user_id}}
        assert (await frontend.http.post("/v1/messages", json=body)).status_code == 200
        (submit,) = frontend.core.sent(Submit)
    assert submit.tenant == tenant


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
IMAGE_NOTE = "[An image was here. Images are not supported yet.]"
FOUND = {"type": "search_result", "title": "Sea", "source": "https://x", "content": [{"type": "text", "text": "blue"}]}


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ({"degrees": 5}, '{"degrees":5}'),
        ([TEXT, IMAGE], f"x\n{IMAGE_NOTE}"),
        ([{**IMAGE, "type": "document"}], "[A document was here. Documents are not supported yet.]"),
        ([FOUND], "Sea\nhttps://x\nblue"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "the file"}}], "the file"),
        ([{"type": "hologram", "degrees": 5}], '{"degrees":5}'),
    ],
)
async def test_a_result_is_read_whatever_its_parts(tokenizer: Tokenizer, content: Any, shown: str) -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]}
    _, prompt = await told_and_prompt(tokenizer, HERMES, messages=[USER, called, result], tools=[WEATHER])
    assert f"<|start|>tool: {shown}<|end|>" in prompt


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"input": {"city": "Rome"}}, {"city": "Rome"}),
        ({"input": '{"city": "Rome"}'}, {"city": "Rome"}),
        ({"input": '{"city": "Ro'}, {"INVALID_JSON": '{"city": "Ro'}),
        ({"input": ["Rome"]}, {"INVALID_JSON": '["Rome"]'}),
        ({"input": None}, {}),
        ({}, {}),
    ],
)
async def test_a_calls_input_may_be_anything(
    tokenizer: Tokenizer, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "name": "weather", **given}]}
    result = {"role": "user", "content": [{"type": "tool_result", "content": "sun"}]}
    _, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=[USER, called, result])
    assert f'{{"name": "weather", "arguments": {json.dumps(shown)}}}' in prompt


@pytest.mark.parametrize(
    ("blocks", "shown"),
    [
        ([{"type": "compaction", "content": "So far."}, TEXT], "So far.\nx"),
        ([TEXT, IMAGE, TEXT], f"x\n{IMAGE_NOTE}\nx"),
        ([{"type": "hologram"}], "[A part of type hologram was here. It is not supported yet.]\n"),
        (None, ""),
    ],
)
async def test_no_block_of_an_answer_is_refused(tokenizer: Tokenizer, blocks: Any, shown: str) -> None:
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    header, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=messages)
    assert (header, f"<|start|>assistant: {shown}<|end|>" in prompt) == (None, True)


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"source": {"type": "text", "media_type": "text/plain", "data": "blue"}}, "blue"),
        ({"source": {"type": "content", "content": "blue"}, "title": "Sea"}, "Sea\nblue"),
        (
            {
                "source": {
                    "type": "content",
                    "content": [{"type": "text", "text": "blue"}, {"type": "text", "text": "green"}],
                },
                "title": "Sea",
                "context": "Of 1998.",
                "citations": {"enabled": False},
            },
            "Sea\nOf 1998.\nblue\ngreen",
        ),
    ],
)
async def test_a_document_that_is_text_is_its_text(tokenizer: Tokenizer, document: dict[str, Any], shown: str) -> None:
    block = {"type": "document", **document}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]}
    messages = [{"role": "user", "content": [block, TEXT]}, called, {"role": "user", "content": [result]}]
    _, prompt = await told_and_prompt(tokenizer, HERMES, messages=messages, tools=[WEATHER])
    assert f"user: {shown}\nx<|end|>" in prompt
    assert f"<|start|>tool: {shown}<|end|>" in prompt


async def test_a_search_result_of_the_users_is_its_text(tokenizer: Tokenizer) -> None:
    _, prompt = await told_and_prompt(tokenizer, TEMPLATE, messages=[{"role": "user", "content": [FOUND, TEXT]}])
    assert prompt == "<|start|>user: Sea\nhttps://x\nblue\nx<|end|><|start|>"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("image", IMAGE["source"]),
        ("document", IMAGE["source"]),
        ("document", {"type": "url", "url": "https://x/a.pdf"}),
        ("document", {"type": "file", "file_id": "a"}),
        ("document", {"type": "content", "content": [TEXT, IMAGE]}),
        ("document", {"type": "text"}),
        ("document", None),
        ("container_upload", IMAGE["source"]),
    ],
)
async def test_a_users_image_is_refused_by_name(tokenizer: Tokenizer, kind: str, source: Any) -> None:
    body = {"max_tokens": 5, **with_block(type=kind, source=source)}
    async with in_process(answering(tokenizer, "ok", ROOMY), tokenizer) as frontend:
        response = await frontend.http.post("/v1/messages", json=body)
    assert (response.status_code, f"type {kind} is not supported" in response.text) == (400, True)
