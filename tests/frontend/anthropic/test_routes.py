"""`/v1/messages`, streamed and not, over a core that says what a model would."""

import re
from array import array
from typing import Any

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.anthropic.serving import (
    CALLS,
    CLOCK,
    HERMES,
    ROOMY,
    SCHEMA,
    THINKING,
    THOUGHT,
    USER,
    WEATHER,
    folded,
    named_events,
)
from tests.frontend.serving import STRICT, Frontend, answering, in_process

WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


def saying(tokenizer: Tokenizer, text: str) -> ScriptedCore:
    return answering(tokenizer, text, ROOMY)


async def create(frontend: Frontend, **body: Any) -> dict[str, Any]:
    """The whole message; the streamed one is checked to add up to it."""
    body = {"messages": [USER], "max_tokens": 1000, "request_id": "one", **body}
    response = await frontend.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()
    streamed = await frontend.http.post("/v1/messages", json={**body, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert folded(named_events(streamed.text)) == message
    return message


def prompt_of(frontend: Frontend, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(array("i", frontend.core.sent(Submit)[0].prompt).tolist(), False)


async def refused(frontend: Frontend, **body: Any) -> str:
    """What is said of a request that is wrong."""
    response = await frontend.http.post("/v1/messages", json={"messages": [USER], "max_tokens": 10, **body})
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer.keys() == {"type", "error", "request_id"}
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    return str(answer["error"]["message"])


async def test_an_answer_has_anthropics_shape(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "Hello 🙂 world"), tokenizer) as frontend:
        message = await create(frontend, model="tiny", system="Be brief.")
        prompt = prompt_of(frontend, tokenizer)
    assert prompt == "<|start|>system: Be brief.<|end|><|start|>user: Hi<|end|><|start|>"
    assert message == {
        "id": "msg_one",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello 🙂 world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(tokenizer.encode(prompt)) - 2,
            "output_tokens": len(tokenizer.encode("Hello 🙂 world")) + 1,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
        },
    }


async def test_every_end_has_its_reason(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "one two stop three"), tokenizer) as frontend:
        cut = await create(frontend, max_tokens=3)
        stopped = await create(frontend, stop_sequences=["stop"])
    assert (cut["stop_reason"], cut["stop_sequence"], cut["usage"]["output_tokens"]) == ("max_tokens", None, 3)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "stop")
    assert stopped["content"] == [{"type": "text", "text": "one two "}]


async def test_forty_stop_sequences(tokenizer: Tokenizer) -> None:
    sequences = [f"</tag{number}>" for number in range(39)] + ["two"]
    async with in_process(saying(tokenizer, "one two stop three"), tokenizer) as frontend:
        message = await create(frontend, stop_sequences=sequences)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")
    assert message["content"] == [{"type": "text", "text": "one "}]


async def test_thoughts_texts_and_calls_are_blocks(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, THOUGHT), tokenizer, THINKING) as frontend:
        message = await create(frontend, tools=[WEATHER, CLOCK])
    thinking, text, weather, clock = message["content"]
    assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", "Hm 🙂.")
    assert text == {"type": "text", "text": "So:"}
    assert (weather.pop("id")[:6], clock.pop("id")[:6]) == ("toolu_", "toolu_")
    assert weather == {"type": "tool_use", "name": "weather", "input": {"city": "Zürich"}}
    assert clock == {"type": "tool_use", "name": "clock", "input": {}}
    assert message["stop_reason"] == "tool_use"


async def test_a_call_that_is_cut_off_has_its_text(tokenizer: Tokenizer) -> None:
    length = len(tokenizer.encode(CALLS.partition("ürich")[0]))
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        message = await create(frontend, tools=[WEATHER], max_tokens=length)
    assert message["content"][-1]["input"] == {"INVALID_JSON": '{"city": "Z'}
    assert message["stop_reason"] == "max_tokens"


async def test_tools_and_choices_reach_the_prompt_and_the_core(tokenizer: Tokenizer) -> None:
    forced = '{"city": "Rome"}'
    async with in_process(saying(tokenizer, forced), tokenizer, HERMES) as frontend:
        named = await create(frontend, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
        grammar = frontend.core.sent(Submit)[0].sampling.grammar
        prompt = prompt_of(frontend, tokenizer)
        none = await create(frontend, tools=[WEATHER], tool_choice={"type": "none"})
    assert '"name": "weather", "description": "The weather.", "parameters": {' in prompt
    assert "city" in grammar
    assert named["content"][0]["input"] == {"city": "Rome"}
    assert named["stop_reason"] == "tool_use"
    assert none["content"] == [{"type": "text", "text": forced}]


async def test_tools_with_a_format_give_calls_or_content(tokenizer: Tokenizer) -> None:
    form = {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"reply": {}}}}}
    call = CALLS.partition("\n")[2]
    for strict in (False, True):
        body: dict[str, Any] = {"tools": [{**WEATHER, "strict": strict}, CLOCK], "output_config": form}
        async with in_process(saying(tokenizer, call), tokenizer, HERMES) as frontend:
            message = await create(frontend, **body)
        assert [block.get("name") for block in message["content"]] == ["weather", "clock"]
        assert message["stop_reason"] == "tool_use"
        async with in_process(saying(tokenizer, '{"reply": "<tool_call>"}'), tokenizer, HERMES) as frontend:
            message = await create(frontend, **body)
        assert message["content"] == [{"type": "text", "text": '{"reply": "<tool_call>"}'}]
        assert message["stop_reason"] == "end_turn"
    listed = '[{"name": "weather", "parameters": {"city": "Rome"}}]'
    for choice, text in (({"type": "any"}, listed), ({"type": "tool", "name": "weather"}, '{"city": "Rome"}')):
        async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
            message = await create(frontend, tools=[WEATHER], tool_choice=choice, output_config=form)
            assert "reply" not in frontend.core.sent(Submit)[0].sampling.grammar
        assert message["content"][0]["input"] == {"city": "Rome"}
        assert message["stop_reason"] == "tool_use"


async def test_a_conversation_with_tools_becomes_messages(tokenizer: Tokenizer) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|{{ m.reasoning }}|"
        "{% for c in m.tool_calls or [] %}"
        "{{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}]"
        "{% endfor %}{{ tools }}<tool_call><think>"
    )
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "c"}, use],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "broken", "is_error": True},
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await create(frontend, messages=turns, system=[{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}])
        assert prompt_of(frontend, tokenizer) == (
            '[system|s1\ns2|||][user|a\nb|||][assistant|c||t|toolu_1:weather:{"city": "Rome"}]'
            "[tool|sunny|toolu_1||][tool|Error: broken|toolu_2||][user|d|||]None<tool_call><think>"
        )


async def test_a_last_message_of_the_assistants_goes_on(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "lo"), tokenizer) as frontend:
        message = await create(frontend, messages=[USER, {"role": "assistant", "content": "Hel"}])
        assert prompt_of(frontend, tokenizer) == "<|start|>user: Hi<|end|><|start|>assistant: Hel"
    assert message["content"] == [{"type": "text", "text": "lo"}]


async def test_a_form_of_the_output_reaches_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "{}"), tokenizer) as frontend:
        await create(frontend, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, cache_salt="s")
        (submit, _) = frontend.core.sent(Submit)
    assert "city" in submit.sampling.grammar
    assert submit.cache_salt == "s"


async def test_arguments_of_processors_reach_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        await create(frontend, vllm_xargs={"mine": {"x": 1}})
        (submit, _) = frontend.core.sent(Submit)
    assert submit.sampling.extra_args == {"mine": {"x": 1}}


async def test_sampling_fields_are_those_of_the_other_apis(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "one two stop three"), tokenizer) as frontend:
        kept = await create(frontend, stop_sequences=["stop"], no_stop_trim=True, min_new_tokens=1, timeout=60)
        await create(frontend, seed=3, repeat_penalty=1.5, ignore_eos=True, bad_words=["no"], stop_token_ids=[7])
        first, _, other, _ = frontend.core.sent(Submit)
    assert kept["content"] == [{"type": "text", "text": "one two stop"}]
    assert (first.sampling.min_tokens, other.sampling.repetition_penalty) == (1, 1.5)
    # Without the tokens that end an answer, but for those of the request.
    assert (other.seed, array("i", other.stop_token_ids).tolist()) == (3, [7])
    assert other.sampling.bad_words


async def test_thinking_is_turned_on_and_off_in_the_prompt(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, THINKING) as frontend:
        await create(frontend, thinking={"type": "disabled"})
        assert "<think>" not in prompt_of(frontend, tokenizer)
        frontend.core.received.clear()
        await create(frontend, thinking={"type": "enabled", "budget_tokens": 1000})
        assert "<think>" in prompt_of(frontend, tokenizer)


async def test_the_older_name_of_a_format_is_honoured(tokenizer: Tokenizer) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    async with in_process(saying(tokenizer, "{}"), tokenizer) as frontend:
        for body in ({"output_format": form}, {"output_format": form, "output_config": {"format": form}}):
            await create(frontend, **body)
            assert "city" in frontend.core.sent(Submit)[-1].sampling.grammar


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"system": [{"text": "x"}]}, "type"),
        ({"system": [{"type": "image", "source": {}}]}, "system.0: a block of type image is not supported"),
        ({"messages": [{"role": "system", "content": [CALL]}]}, "tool_use is not allowed in the role system"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "thinking"),
        ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "tool_result"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [{"type": "custom", "input_schema": {"type": "object"}}]}, "tools.0.name is missing"),
        ({"tools": [{"name": "weather"}]}, "tools.0.input_schema is missing"),
        ({"tools": [WEB_SEARCH], "tool_choice": {"type": "any"}}, "tool_choice any"),
        ({"tools": [WEB_SEARCH, WEATHER], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["x"]}, "stop is not supported; use stop_sequences"),
        ({"n": 2}, "n is not supported"),
        ({"chat_template": "x"}, "chat_template is not supported"),
        ({"continue_final_message": True}, "use a last message of the role assistant"),
        ({"reasoning_effort": "low"}, "use output_config.effort"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"response_format": {"type": "json_object"}}, "output_config.format"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            },
            "output_format",
        ),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(tokenizer: Tokenizer, body: dict[str, Any], text: str) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        assert text in await refused(frontend, **body)
        assert (await create(frontend))["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("body", "begin"),
    [
        ({"stop_sequences": [""]}, "stop_sequences must not"),
        ({"stop_sequences": ["x"] * 1025}, "stop_sequences must be at most 1024 strings, got 1025"),
        ({"tool_choice": {"type": "any"}}, "tool_choice any needs"),
        ({"output_config": {"effort": "low"}}, "output_config.effort has no effect"),
        ({"thinking": {"type": "adaptive"}}, "thinking has no effect"),
        ({"nope": 1}, "nope is not a known field"),
    ],
)
async def test_errors_name_fields_of_the_request(tokenizer: Tokenizer, body: dict[str, Any], begin: str) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, server=STRICT) as frontend:
        assert (await refused(frontend, **body)).startswith(begin)


@pytest.mark.parametrize("length", [1000, 200_000])
async def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words(tokenizer: Tokenizer, length: int) -> None:
    messages = [{"role": "user", "content": "x " * length}]
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        text = await refused(frontend, messages=messages)
        counted = await frontend.http.post("/v1/messages/count_tokens", json={"messages": messages})
    found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", text)
    assert found is not None
    number, limit = map(int, found.groups())
    assert limit < number <= counted.json()["input_tokens"]
    assert limit in (MODEL.max_model_len - 1, MODEL.max_model_len)


async def test_a_thread_is_refused_with_the_code_that_has_clients_send_all_of_it(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        body = {"messages": [USER], "max_tokens": 5, "thread": {"id": "thread_1"}}
        refusal = await frontend.http.post("/v1/messages", json=body)
        other = await frontend.http.post("/v1/messages", json={**body, "thread": None, "temperature": -1})
    error = refusal.json()["error"]
    assert (refusal.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert other.status_code == 400
    assert "details" not in other.json()["error"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "kind"),
    [
        (b"{", {"content-type": "application/json"}, 400, "invalid_request_error"),
        (b"a=b", {"content-type": "text/plain"}, 415, "invalid_request_error"),
        (b"x" * 10_000_001, {"content-type": "application/json"}, 413, "request_too_large"),
        (
            b'{"model": "other", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}',
            {"content-type": "application/json"},
            404,
            "not_found_error",
        ),
    ],
)
async def test_every_failure_has_anthropics_shape(
    tokenizer: Tokenizer, content: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/messages", content=content, headers=headers)
        nowhere = await frontend.http.get("/v1/messages/nowhere")
        wrong_method = await frontend.http.get("/v1/messages")
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert (nowhere.status_code, nowhere.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong_method.status_code, wrong_method.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_a_user_is_the_tenant_and_what_the_edge_refuses_has_anthropics_shape(tokenizer: Tokenizer) -> None:
    async with in_process(
        saying(tokenizer, "ok"), tokenizer, server=ServerConfig(max_requests_per_minute=1)
    ) as frontend:
        body = {"messages": [USER], "max_tokens": 5, "metadata": {"user_id": "me"}}
        assert (await frontend.http.post("/v1/messages", json=body)).status_code == 200
        refusal = await frontend.http.post("/v1/messages", json=body)
        malformed = await frontend.http.post("/v1/messages", json=body, headers={"x-request-timeout": "soon"})
    (submit,) = frontend.core.sent(Submit)
    assert submit.tenant == "me"
    assert (refusal.status_code, refusal.json()["error"]["type"]) == (429, "rate_limit_error")
    assert "retry-after" in refusal.headers
    assert (malformed.status_code, malformed.json()["type"]) == (400, "error")
    assert malformed.json()["request_id"] == malformed.headers["x-request-id"]


class DyingCore(ScriptedCore):
    """It ends all requests after the first token."""

    def _step(self) -> None:
        super()._step()
        self.end()


async def test_a_failure_in_a_stream_is_an_event(tokenizer: Tokenizer) -> None:
    core = DyingCore(lambda prompt, sample: tokenizer.encode("Hello world"))
    async with in_process(core, tokenizer) as frontend:
        body = {"messages": [USER], "max_tokens": 10, "stream": True, "request_id": "one"}
        response = await frontend.http.post("/v1/messages", json=body)
    *_, delta, error = named_events(response.text)
    assert delta["delta"] == {"type": "text_delta", "text": "Hello"}
    assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", "overloaded_error", "one")


async def test_tokens_are_counted(tokenizer: Tokenizer) -> None:
    body = {"messages": [USER], "system": "x", "tools": [WEATHER]}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        counted = await frontend.http.post("/v1/messages/count_tokens", json=body)
        message = await create(frontend, **body)
    usage = message["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


async def test_a_request_for_an_answer_can_be_counted_too(tokenizer: Tokenizer) -> None:
    body = {"messages": [USER], "temperature": 0.5, "top_k": 5, "stream": True}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES, server=STRICT) as frontend:
        counted = await frontend.http.post("/v1/messages/count_tokens", json=body)
        refused = await frontend.http.post("/v1/messages/count_tokens", json=body | {"temperature": -1})
    assert counted.json()["input_tokens"] > 0
    assert "pyllm-ignored-fields" not in counted.headers
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "temperature must be from 0 to 100, got -1",
    )
