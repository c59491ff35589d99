"""Tools and reasoning in chat completions, streamed and not, over a core that says what a model would."""

import json
from array import array
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.chat.parsers.parser_selection import ToolCallParser
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.ignoring import check_no_effect
from tests.frontend.serving import STRICT, TEMPLATE, UNFILLED, Frontend, answering, events, in_process

ROOMY = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time."}}
HERMES = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}" + TEMPLATE
THINKING = TEMPLATE.replace("<|start|>{% endif %}", "<|start|><think>\n{% endif %}")
CALLS = (
    'So:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def saying(tokenizer: Tokenizer, text: str) -> ScriptedCore:
    return answering(tokenizer, text, ROOMY)


async def chat(frontend: Frontend, **body: Any) -> dict[str, Any]:
    """The whole answer; the streamed one is checked to add up to it."""
    body = {"messages": [USER], **body}
    response = await frontend.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    response = await frontend.http.post("/v1/chat/completions", json={**body, "stream": True})
    for choice in answer["choices"]:
        chunks = [chunk["choices"][0] for chunk in events(response.text)]
        mine = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        message = added_up([chunk["delta"] for chunk in mine])
        whole = {key: value for key, value in choice["message"].items() if value}
        assert without_ids(message) == without_ids(whole)
        reasons = [chunk["finish_reason"] for chunk in mine]
        assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]
    return answer


def added_up(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for delta in deltas:
        for key in ("role", "content", "reasoning"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
            if call["index"] == len(calls):
                assert call[kind][text] == ""
                calls.append({**call, kind: {**call[kind]}})
                del calls[-1]["index"]
            else:
                assert call.keys() == {"index", kind}
                assert call[kind].keys() == {text}
                calls[call["index"]][kind][text] += call[kind][text]
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": len(call["id"])} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}


def prompt_of(frontend: Frontend, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(array("i", frontend.core.sent(Submit)[0].prompt).tolist(), False)


def grammar_of(frontend: Frontend) -> str:
    return str(frontend.core.sent(Submit)[0].sampling.grammar)


async def refused(frontend: Frontend, **body: Any) -> tuple[str, str]:
    """The field that is at fault, and what is said of it."""
    response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


async def test_calls_have_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        answer = await chat(frontend, tools=[WEATHER, CLOCK])
        assert prompt_of(frontend, tokenizer).startswith('[{"type": "function", "function": {"name": "weather"')
        assert frontend.core.sent(Submit)[0].sampling.grammar == ""
    choice = answer["choices"][0]
    first, second = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "So:", **UNFILLED, "reasoning": None}
    assert first["function"] == {"name": "weather", "arguments": '{"city": "Zürich"}'}
    assert second["function"] == {"name": "clock", "arguments": "{}"}
    assert first["type"] == second["type"] == "function"
    assert first["id"] != second["id"]
    assert choice["finish_reason"] == "tool_calls"


async def test_a_call_alone_has_no_content_and_a_cut_one_says_so(tokenizer: Tokenizer) -> None:
    call = CALLS.partition("\n")[2].partition("</tool_call>")[0]
    async with in_process(saying(tokenizer, call), tokenizer, HERMES) as frontend:
        assert (await chat(frontend, tools=[WEATHER]))["choices"][0]["message"]["content"] is None
        cut = (await chat(frontend, tools=[WEATHER], max_tokens=len(tokenizer.encode(call)) - 8))["choices"][0]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


async def test_a_request_that_is_run_again_names_its_calls_alike(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        name = frontend.state.chat.tool_call_id
    assert name("r", 0, 1) == name("r", 0, 1)
    assert len({name("r", 0, 1), name("r", 1, 0), name("s", 0, 1)}) == 3
    assert len(name("r", 0, 1)) == len("call_") + 24


async def test_without_tools_or_with_choice_none_text_is_text(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        for body in ({}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}, {"tool_choice": "auto"}):
            choice = (await chat(frontend, **body))["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": CALLS, **UNFILLED, "reasoning": None}
            assert choice["finish_reason"] == "stop"
        assert "<tool_call>" not in prompt_of(frontend, tokenizer)


async def test_one_call_at_most_where_they_are_not_parallel(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        answer = await chat(frontend, tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["weather"]


async def test_every_choice_has_calls_of_its_own(tokenizer: Tokenizer) -> None:
    texts = ["Hello", CALLS]
    core = ScriptedCore(lambda prompt, sample: [*tokenizer.encode(texts[sample]), 0], ROOMY)
    async with in_process(core, tokenizer, HERMES) as frontend:
        choices = (await chat(frontend, tools=[WEATHER], n=2))["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls"]
    assert choices[0]["message"]["content"] == "Hello"


async def test_log_probabilities_are_those_of_the_raw_tokens(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"tools": [WEATHER], "logprobs": True, "messages": [USER]}
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        answer = (await chat(frontend, **body))["choices"][0]
        response = await frontend.http.post("/v1/chat/completions", json={**body, "stream": True})
    entries = [
        entry
        for chunk in events(response.text)
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert entries == answer["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == CALLS + "<|end|>"


@pytest.mark.parametrize("name", ["required", "any"])  # which is Mistral's
async def test_a_required_call_is_kept_to_a_list_of_the_tools(tokenizer: Tokenizer, name: str) -> None:
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "clock", "parameters": {}}]'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        choice = (await chat(frontend, tools=[WEATHER, CLOCK], tool_choice=name))["choices"][0]
        grammar = grammar_of(frontend)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls == [{"name": "weather", "arguments": '{"city": "Rome"}'}, {"name": "clock", "arguments": "{}"}]
    assert "weather" in grammar
    assert "clock" in grammar


@pytest.mark.parametrize("num_tokens", range(1, 60, 4))
async def test_a_required_call_that_is_cut_off_is_no_content(tokenizer: Tokenizer, num_tokens: int) -> None:
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "clock", "parameters": {}}]'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        body = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "max_tokens": num_tokens}
        choice = (await chat(frontend, **body))["choices"][0]
    assert not choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    calls = [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]
    assert calls == ["weather", "clock"][: len(calls)]


async def test_a_named_call_is_its_arguments(tokenizer: Tokenizer) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    async with in_process(saying(tokenizer, '{"city": "Rome"}'), tokenizer, HERMES) as frontend:
        answer = (await chat(frontend, tools=[WEATHER, CLOCK], tool_choice=choice))["choices"][0]
        grammar = json.loads(grammar_of(frontend))["grammars"][0]["json_schema"]
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert answer["finish_reason"] == "tool_calls"
    assert grammar["properties"] == SCHEMA["properties"]


async def test_allowed_tools_are_the_only_ones(tokenizer: Tokenizer) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [clock_reference()]}}
    text = '[{"name": "clock", "parameters": {}}]'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        await chat(frontend, tools=[WEATHER, CLOCK], tool_choice=choice)
        assert "weather" not in grammar_of(frontend)
        assert "weather" not in prompt_of(frontend, tokenizer)


def clock_reference() -> dict[str, Any]:
    return {"type": "function", "function": {"name": "clock"}}


async def test_strict_tools_constrain_the_calls_that_are_made(tokenizer: Tokenizer) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        answer = await chat(frontend, tools=[strict, CLOCK])
        assert "<tool_call>" in grammar_of(frontend)
        assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    text = 'So: [TOOL_CALLS]weather[ARGS]{"city": "Rome"}'
    server = ServerConfig(tool_call_parser="mistral")
    async with in_process(saying(tokenizer, text), tokenizer, HERMES, server=server) as frontend:
        answer = await chat(frontend, tools=[strict, CLOCK])
        assert "TOOL_CALLS" in grammar_of(frontend)
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


FREE_CALLS = {
    "llama3_json": '{"name": "clock", "parameters": {}}',
    "gemma4": "<|tool_call>call:clock{}<tool_call|>",
    "pythonic": "[clock()]",
}


STRICT_WEATHER = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize(
    ("parser", "fields", "plain", "name"),
    [
        *((parser, {"tools": [CLOCK, STRICT_WEATHER]}, [CLOCK, WEATHER], "tools.strict") for parser in FREE_CALLS),
        ("gemma4", {"tools": [CLOCK], "response_format": {"type": "json_object"}}, [CLOCK], "response_format"),
        ("pythonic", {"tools": [CLOCK], "structured_outputs": {"regex": "a+"}}, [CLOCK], "structured_outputs"),
    ],
)
async def test_what_optional_calls_without_a_grammar_cannot_hold_is_told(
    tokenizer: Tokenizer, parser: ToolCallParser, fields: dict[str, Any], plain: Any, name: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        server = msgspec.structs.replace(server, tool_call_parser=parser)
        return in_process(saying(tokenizer, FREE_CALLS[parser]), tokenizer, HERMES, server=server)

    user = {"messages": [USER]}
    await check_no_effect(serve, "/v1/chat/completions", user | fields, {**user, "tools": plain}, name)
    async with serve(ServerConfig()) as frontend:
        (call,) = (await chat(frontend, **fields))["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "clock", "arguments": "{}"}
        assert grammar_of(frontend) == ""


@pytest.mark.parametrize(
    ("parser", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]'),
        ("llama3_json", '{"name": "weather", "parameters": {"city": "Rome"}}'),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
async def test_tools_with_a_format_give_calls_or_content(
    tokenizer: Tokenizer, parser: ToolCallParser, call: str, strict: bool
) -> None:
    answer = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    body: dict[str, Any] = {
        "tools": [{"type": "function", "function": {**WEATHER["function"], "strict": strict}}, CLOCK],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": answer}},
    }
    server = ServerConfig(tool_call_parser=parser)
    async with in_process(saying(tokenizer, call), tokenizer, HERMES, server=server) as frontend:
        choice = (await chat(frontend, **body))["choices"][0]
        first, *others = json.loads(grammar_of(frontend))["grammars"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (called,) = choice["message"]["tool_calls"]
    assert called["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert [grammar["json_schema"]["properties"] for grammar in others] == [answer["properties"]]
    assert "city" in first["lark_grammar"]  # Beside a format calls follow their schemas, strict or not.
    for text in ('{"name": "weather"}', f'{{"name": {json.dumps(call)}}}'):
        async with in_process(saying(tokenizer, text), tokenizer, HERMES, server=server) as frontend:
            choice = (await chat(frontend, **body))["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"] == {"role": "assistant", "content": text, **UNFILLED, "reasoning": None}


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a+"}}]
)
async def test_a_forced_call_wins_over_a_format_and_choice_none_leaves_it(
    tokenizer: Tokenizer, form: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"tools": [WEATHER], **form}
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}]'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        alone = await chat(frontend, tools=[WEATHER], tool_choice="required")
        grammar = grammar_of(frontend)
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        both = await chat(frontend, **body, tool_choice="required")
        assert grammar_of(frontend) == grammar
    assert without_ids(both["choices"][0]["message"]) == without_ids(alone["choices"][0]["message"])
    named = {"type": "function", "function": {"name": "weather"}}
    async with in_process(saying(tokenizer, '{"city": "Rome"}'), tokenizer, HERMES) as frontend:
        choice = (await chat(frontend, **body, tool_choice=named))["choices"][0]
        assert "city" in grammar_of(frontend)
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    async with in_process(saying(tokenizer, "{}"), tokenizer, HERMES) as frontend:
        assert (await chat(frontend, **form))["choices"][0]["message"]["content"] == "{}"
        grammar = grammar_of(frontend)
    async with in_process(saying(tokenizer, "{}"), tokenizer, HERMES) as frontend:
        assert (await chat(frontend, **body, tool_choice="none"))["choices"][0]["message"]["content"] == "{}"
        assert grammar_of(frontend) == grammar


def custom(syntax: str, definition: str = "") -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    form = {"type": "text"} if syntax == "text" else grammar
    return {"type": "custom", "custom": {"name": "shell", "description": "Runs it.", "format": form}}


SHELL_CHOICE = {"type": "custom", "custom": {"name": "shell"}}


@pytest.mark.parametrize("tool", [custom("text"), custom("regex", '[a-z "\n]+'), custom("lark", "start: /[^x]+/")])
async def test_a_custom_tool_is_given_text(tokenizer: Tokenizer, tool: dict[str, Any]) -> None:
    text = 'echo "ü"\n🙂'
    call = json.dumps({"name": "shell", "arguments": {"input": text}})
    answer = f"<tool_call>\n{call}\n</tool_call>\n" + CALLS.removeprefix("So:\n")
    async with in_process(saying(tokenizer, answer), tokenizer, HERMES) as frontend:
        choice = (await chat(frontend, tools=[tool, WEATHER, CLOCK]))["choices"][0]
        prompt = prompt_of(frontend, tokenizer)
    first, second, third = choice["message"]["tool_calls"]
    assert {key: first[key] for key in ("type", "custom")} == {
        "type": "custom",
        "custom": {"name": "shell", "input": text},
    }
    assert first.keys() == {"id", "type", "custom"}
    assert (second["type"], third["function"]["name"]) == ("function", "clock")
    assert choice["finish_reason"] == "tool_calls"
    described = json.loads(prompt.partition(" in <tool_call>")[0])[0]["function"]
    assert described["name"] == "shell"
    assert described["parameters"]["properties"] == {"input": {"type": "string"}}
    assert described["description"].startswith("Runs it.")
    definition = tool["custom"]["format"].get("grammar", {}).get("definition", "")
    assert definition in described["description"]


@pytest.mark.parametrize(
    ("tool", "text", "other"),
    [
        (custom("text"), 'anything\n"at" all', None),
        (custom("regex", "[a-z]+ [0-9]+"), "abc 12", "abc"),
        (custom("lark", 'start: WORD "!" NL\nWORD: /[a-z"]+/\nNL: /\\n/'), 'a"b!\n', "ab!"),
    ],
)
async def test_a_custom_tools_input_keeps_to_its_format(
    tokenizer: Tokenizer, tool: dict[str, Any], text: str, other: str | None
) -> None:
    guide = LLTokenizer("byte")

    def accepts(grammar: str, text: str) -> bool:
        matcher = LLMatcher(guide, grammar, log_level=0)
        data = list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    def in_call(key: str, text: str) -> str:
        return json.dumps({"name": "shell", key: {"input": text}})

    def marked(text: str) -> str:
        return f"<tool_call>\n{in_call('arguments', text)}\n</tool_call>"

    form = {"type": "json_object"}
    for choice, fields, written in (
        (SHELL_CHOICE, {"response_format": form}, str),
        ("required", {}, lambda text: f"[{in_call('parameters', text)}]"),
        ("auto", {"response_format": form}, marked),
        ("auto", {}, marked),
    ):
        body = {"tools": [tool, CLOCK], "tool_choice": choice, **fields}
        async with in_process(saying(tokenizer, written(text)), tokenizer, HERMES) as frontend:
            answer = (await chat(frontend, **body))["choices"][0]
            grammar = grammar_of(frontend)
        (call,) = answer["message"]["tool_calls"]
        assert (call["type"], call["custom"]) == ("custom", {"name": "shell", "input": text})
        assert answer["finish_reason"] == "tool_calls"
        assert not answer["message"]["content"]
        if other is None and choice == "auto" and not fields:
            assert grammar == ""
            continue
        assert accepts(grammar, written(text))
        assert other is None or not accepts(grammar, written(other))


async def test_a_grammar_that_no_call_can_hold_is_refused_unless_the_tool_is_named(tokenizer: Tokenizer) -> None:
    tool = custom("lark", 'start: "(" start? ")"')
    async with in_process(saying(tokenizer, "(())"), tokenizer, HERMES) as frontend:
        for choice in ("auto", "required"):
            name, text = await refused(frontend, tools=[tool], tool_choice=choice)
            assert name == "tools"
            assert "start" in text
        answer = (await chat(frontend, tools=[tool], tool_choice=SHELL_CHOICE))["choices"][0]
    assert answer["message"]["tool_calls"][0]["custom"] == {"name": "shell", "input": "(())"}
    server = ServerConfig(tool_call_parser="llama3_json")
    text = '{"name": "shell", "parameters": {"input": "b"}}'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES, server=server) as frontend:
        body = {"messages": [USER], "tools": [CLOCK, custom("regex", "a")]}
        answer = await frontend.http.post("/v1/chat/completions", json=body)
        assert answer.headers["pyllm-ignored-fields"] == "tools.format"
        assert answer.json()["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "b"
        assert grammar_of(frontend) == ""


async def test_a_custom_call_that_is_sent_back_is_a_function_to_the_template(tokenizer: Tokenizer) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "a\nb"}}
    template = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}"
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await chat(frontend, messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
        (message,) = json.loads(prompt_of(frontend, tokenizer))
    function = {"name": "shell", "arguments": {"input": "a\nb"}}
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": function}]


async def test_allowed_tools_may_be_custom(tokenizer: Tokenizer) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [SHELL_CHOICE]}}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        await chat(frontend, tools=[custom("text"), WEATHER], tool_choice=choice)
        assert '"shell"' in prompt_of(frontend, tokenizer)
        assert '"weather"' not in prompt_of(frontend, tokenizer)


async def test_a_template_without_tools_has_them_explained(tokenizer: Tokenizer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    async with in_process(saying(tokenizer, CALLS), tokenizer) as frontend:
        answer = await chat(frontend, messages=messages, tools=[WEATHER])
        prompt = prompt_of(frontend, tokenizer)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    assert prompt.startswith("<|start|>system: Be brief.\n\nYou can call functions")
    assert json.dumps(WEATHER) in prompt
    assert '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|end|>' in prompt
    assert "user: <tool_response>\nnoon\n</tool_response><|end|>" in prompt


async def test_a_template_with_tools_gets_messages_as_it_knows_them(tokenizer: Tokenizer) -> None:
    template = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}"
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": '{"zone": [1]}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "noon"}]},
    ]
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await chat(frontend, messages=messages)
        first, second = json.loads(prompt_of(frontend, tokenizer))
    assert first["tool_calls"][0] == {**call, "function": {"name": "clock", "arguments": {"zone": [1]}}}
    assert (first["content"], first["reasoning"], first["reasoning_content"]) == ("", "hm", "hm")
    assert second == {"role": "tool", "content": "noon", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("template", "text"),
    [(HERMES + "{# <think> #}", "<think>\nWell, ü.\n</think>\n\nHello"), (THINKING, "Well, ü.\n</think>\n\nHello")],
)
async def test_reasoning_is_told_apart_and_counted(tokenizer: Tokenizer, template: str, text: str) -> None:
    async with in_process(saying(tokenizer, text), tokenizer, template) as frontend:
        answer = await chat(frontend)
        hidden = await chat(frontend, include_reasoning=False)
        body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
        response = await frontend.http.post("/v1/chat/completions", json=body)
        cut = await chat(frontend, max_tokens=12)
    message = answer["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello", **UNFILLED, "reasoning": "Well, ü."}
    assert hidden["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello",
        **UNFILLED,
        "reasoning": None,
    }
    count = len(tokenizer.encode(text.partition("</think>")[0] + "</think>"))
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": count}
    assert events(response.text)[-1]["usage"] == answer["usage"]
    assert cut["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}
    assert cut["choices"][0]["message"]["content"] is None


async def test_a_call_at_the_end_of_unclosed_reasoning_is_a_call_and_a_draft_is_none(tokenizer: Tokenizer) -> None:
    template = HERMES + "{# <think> #}"
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    async with in_process(saying(tokenizer, f"<think>\nI look.\n\n{call}\n"), tokenizer, template) as frontend:
        choice = (await chat(frontend, tools=[WEATHER]))["choices"][0]
        raw = (await chat(frontend, tools=[WEATHER], separate_reasoning=False))["choices"][0]
        plain = (await chat(frontend))["choices"][0]
    for found in (choice, raw):
        assert found["finish_reason"] == "tool_calls"
        assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "I look.")
    assert raw["message"]["content"] == "<think>\nI look."
    assert plain["message"]["reasoning"] == f"I look.\n\n{call}\n"
    async with in_process(saying(tokenizer, f"<think>\nI look: {call}</think>Hi"), tokenizer, template) as frontend:
        draft = (await chat(frontend, tools=[WEATHER]))["choices"][0]
    assert (draft["finish_reason"], draft["message"]["content"]) == ("stop", "Hi")
    assert draft["message"]["reasoning"] == f"I look: {call}"


async def test_a_form_holds_after_reasoning_only(tokenizer: Tokenizer) -> None:
    text = 'Well.</think>{"city": "Rome"}'
    choice = {"type": "function", "function": {"name": "weather"}}
    async with in_process(saying(tokenizer, text), tokenizer, THINKING) as frontend:
        message = (await chat(frontend, tools=[WEATHER], tool_choice=choice))["choices"][0]["message"]
        assert "</think>" in json.loads(grammar_of(frontend).replace("\\\\/", "/"))["grammars"][0]["lark_grammar"]
    assert message["reasoning"] == "Well."
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


async def test_template_variables_reach_the_template(tokenizer: Tokenizer) -> None:
    template = "{{ reasoning_effort }} {{ documents[0].text }} {{ mood }} {{ messages[0].content }}"
    body = {"reasoning_effort": "low", "documents": [{"text": "doc"}], "chat_template_kwargs": {"mood": "fine"}}
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await chat(frontend, **body)
        assert prompt_of(frontend, tokenizer) == "low doc fine Hi"
    async with in_process(saying(tokenizer, "ok"), tokenizer, "{{ enable_thinking }}") as frontend:
        await chat(frontend, reasoning_effort="none")
        assert prompt_of(frontend, tokenizer) == "False"
    async with in_process(saying(tokenizer, "ok"), tokenizer, "{{ enable_thinking }}", server=STRICT) as frontend:
        assert (await refused(frontend, reasoning_effort="low"))[0] == "reasoning_effort"


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"reasoning": {"exclude": True}, "reasoning_effort": "high"}, "high"),
        ({"think": "low"}, "low"),
        ({"think": False}, "none"),
        ({"think": True}, ""),
        ({"think": True, "reasoning_effort": "low"}, "low"),
        ({"think": False, "reasoning": {"enabled": False}, "reasoning_effort": "none"}, "none"),
    ],
)
async def test_other_servers_fields_of_reasoning_are_read(
    tokenizer: Tokenizer, fields: dict[str, Any], effort: str
) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, "{{ reasoning_effort }}!") as frontend:
        await chat(frontend, **fields)
        assert prompt_of(frontend, tokenizer) == f"{effort}!"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"think": False, "reasoning_effort": "low"}, "think and reasoning_effort"),
        ({"think": "high", "reasoning_effort": "low"}, "think and reasoning_effort"),
        ({"think": "high", "reasoning": {"effort": "low"}}, "think and reasoning.effort"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort and reasoning_effort"),
        ({"reasoning": {"enabled": False}, "reasoning_effort": "high"}, "reasoning.enabled and reasoning_effort"),
    ],
)
async def test_two_efforts_of_reasoning_are_refused(tokenizer: Tokenizer, fields: dict[str, Any], named: str) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, "{{ reasoning_effort }}!") as frontend:
        field, text = await refused(frontend, **fields)
    assert field == named.partition(" ")[0]
    assert text == f"{named} are one setting, and have two values; leave one of them out"


async def test_reasoning_is_left_out_where_it_is_excluded(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "<think>Well.</think>ok"), tokenizer, THINKING) as frontend:
        shown = (await chat(frontend))["choices"][0]["message"]
        hidden = (await chat(frontend, reasoning={"exclude": True}))["choices"][0]["message"]
    assert (shown["reasoning"], hidden.get("reasoning"), hidden["content"]) == ("Well.", None, "ok")


async def test_no_reasoning_is_what_a_model_without_any_does(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        await chat(frontend, reasoning_effort="none")
    for server, status in ((ServerConfig(), 200), (STRICT, 400)):
        async with in_process(saying(tokenizer, "ok"), tokenizer, THINKING, server=server) as frontend:
            body = {"messages": [USER], "reasoning_effort": "none"}
            response = await frontend.http.post("/v1/chat/completions", json=body)
            assert response.status_code == status
            assert response.headers.get("pyllm-ignored-fields") == (None if server is STRICT else "reasoning_effort")


async def test_a_template_of_the_request_needs_the_operators_trust(tokenizer: Tokenizer) -> None:
    body = {"chat_template": "{{ messages[0].content }} {{ eos_token }}"}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        name, text = await refused(frontend, **body)
        assert name == "chat_template"
        assert "--trust-request-chat-template" in text
    server = ServerConfig(trust_request_chat_template=True)
    async with in_process(saying(tokenizer, "ok"), tokenizer, TEMPLATE, server=server) as frontend:
        await chat(frontend, **body)
        assert prompt_of(frontend, tokenizer) == "Hi <|end|>"
        for source in ("{% if %}", "x" * 200_000):
            assert (await refused(frontend, chat_template=source))[0] == "chat_template"


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            },
            "tool_choice.allowed_tools",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [{"type": "custom", "function": {"name": "x"}}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}]},
            "tools[0].custom.format.grammar",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "clock"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom", "function": {"name": "weather"}}}, "tool_choice"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[0].tool_calls[0]",
        ),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": "required", "use_beam_search": True, "n": 2}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "min_tokens": 2}, "min_tokens"),
        ({"messages": [{**USER, "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": [{**USER, "content": {"text": "x"}}]}, "messages[0].content"),
        ({"messages": [{**USER, "audio": {"id": "x"}}]}, "messages[0].audio"),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(
    tokenizer: Tokenizer, body: dict[str, Any], parameter: str
) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        assert (await refused(frontend, **body))[0] == parameter


def _with_part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**USER, "content": [{"type": "text", "text": "x", **fields}]}]}


@pytest.mark.parametrize(
    ("body", "plain", "name"),
    [
        (_with_part(nobody=1), _with_part(), "messages.content.nobody"),
        (_with_part(cache_control={"type": "ephemeral"}), _with_part(), "messages.content.cache_control"),
        ({"messages": [{**USER, "tool_call_id": "c"}]}, {}, "messages.tool_call_id"),
        ({"messages": [{**USER, "reasoning_content": "c"}]}, {}, "messages.reasoning_content"),
        ({"messages": [{**USER, "function_call": {"name": "f"}}]}, {}, "messages.function_call"),
        ({"reasoning_effort": "low"}, {}, "reasoning_effort"),
        ({"reasoning_effort": "huge"}, {}, "reasoning_effort"),
        ({"chat_template_kwargs": {"mood": 1}}, {}, "chat_template_kwargs.mood"),
        ({"tools": [{"type": "namespace"}]}, {}, "tools.namespace"),
        ({"tools": [WEATHER, {"type": "web_search"}]}, {"tools": [WEATHER]}, "tools.web_search"),
        ({"tools": [{**WEATHER, "nobody": 1}]}, {"tools": [WEATHER]}, "tools.nobody"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather", "nobody": 1}}},
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
            "tool_choice.function.nobody",
        ),
    ],
)
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, body: dict[str, Any], plain: dict[str, Any], name: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        return in_process(saying(tokenizer, "ok"), tokenizer, HERMES, server=server)

    user = {"messages": [USER]}
    await check_no_effect(serve, "/v1/chat/completions", user | body, user | plain, name)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "function", "function": {"name": "web_search"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "web_search"}]}},
        "required",
    ],
)
async def test_a_tool_of_a_server_that_must_be_called_is_refused(tokenizer: Tokenizer, choice: Any) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        name, _ = await refused(frontend, tools=[{"type": "web_search"}], tool_choice=choice)
    assert name.startswith("tool_choice")


@pytest.mark.parametrize(
    "arguments",
    [
        ["Rome"],
        '{"a": "\\ud800"}',
        '{"a": NaN}',
        '{"a": ' + "[" * 1500 + "]" * 1500 + "}",
        '{"city": "Ro',
        "[1]",
        '"Rome"',
        "Rome",
    ],
)
@pytest.mark.parametrize("template", [HERMES, TEMPLATE])
async def test_arguments_that_are_no_object_are_shown_as_they_are(
    tokenizer: Tokenizer, arguments: Any, template: str
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": arguments}}
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await chat(frontend, messages=[USER, {"role": "assistant", "tool_calls": [call]}, USER])
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
        assert json.dumps({"INVALID_JSON": shown}) in prompt_of(frontend, tokenizer)


async def test_arguments_may_be_an_object(tokenizer: Tokenizer) -> None:
    call = {"id": "c", "function": {"name": "clock", "arguments": {"zone": "CET"}}}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        await chat(frontend, messages=[USER, {"role": "assistant", "tool_calls": [call]}, USER])
        assert '{"name": "clock", "arguments": {"zone": "CET"}}' in prompt_of(frontend, tokenizer)


@pytest.mark.parametrize("template", [HERMES, TEMPLATE])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_deep_schemas_are_no_failure_of_the_server(tokenizer: Tokenizer, template: str, choice: str) -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep, "strict": True}}
    body = {"messages": [USER], "tools": [tool], "tool_choice": choice, "max_tokens": 1}
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json=body)
    assert response.status_code in (200, 400), response.text


async def test_without_a_parser_only_forced_calls_go(tokenizer: Tokenizer) -> None:
    forced = saying(tokenizer, '[{"name": "clock", "parameters": {}}]')
    server = ServerConfig(tool_call_parser="none")
    async with in_process(forced, tokenizer, HERMES, server=server) as frontend:
        name, text = await refused(frontend, tools=[CLOCK])
        assert name == "tool_choice"
        assert "--tool-call-parser" in text
        answer = await chat(frontend, tools=[CLOCK], tool_choice="required")
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
    server = ServerConfig(tool_call_parser="mistral")
    async with in_process(saying(tokenizer, "ok"), tokenizer, TEMPLATE, server=server) as frontend:
        assert "leaves tools out" in (await refused(frontend, tools=[CLOCK]))[1]


async def test_tools_are_explained_where_the_template_shows_an_unknown_form(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, "{{ tools | tojson }}" + TEMPLATE) as frontend:
        answer = await chat(frontend, tools=[WEATHER])
        assert "You can call functions" in prompt_of(frontend, tokenizer)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2


UNIQUE = {"type": "object", "properties": {"ids": {"type": "list", "items": {"type": "int"}, "uniqueItems": True}}}
IDS = {"type": "function", "function": {"name": "ids", "parameters": {**UNIQUE, "required": ["ids"]}, "strict": True}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "ids"}}, "auto"])
@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "openai"])
async def test_a_tools_keywords_that_no_grammar_enforces_are_told(
    tokenizer: Tokenizer, choice: Any, parser: ToolCallParser
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        server = msgspec.structs.replace(server, tool_call_parser=parser)
        return in_process(saying(tokenizer, "[]"), tokenizer, HERMES, server=server)

    parameters = {"type": "object", "properties": {"ids": {"type": "list", "items": {"type": "int"}}}}
    plain_parameters = {**parameters, "required": ["ids"]}
    body: dict[str, Any] = {"messages": [USER], "tools": [IDS], "tool_choice": choice}
    async with serve(ServerConfig()) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.headers["pyllm-ignored-fields"] == "tools.ids.uniqueItems"
        with_keyword = grammar_of(frontend)
    matcher = LLMatcher(LLTokenizer("byte"), with_keyword)
    assert parser == "openai" or not matcher.is_error(), matcher.get_error()
    plain = {**body, "tools": [{**IDS, "function": {**IDS["function"], "parameters": plain_parameters}}]}
    async with serve(ServerConfig()) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json=plain)
        assert "pyllm-ignored-fields" not in response.headers
        assert grammar_of(frontend) == with_keyword
    async with serve(STRICT) as frontend:
        refusal = (await frontend.http.post("/v1/chat/completions", json=body)).json()["error"]
    assert refusal["param"] == "tools.ids.uniqueItems"


async def test_a_schema_that_cannot_be_read_names_its_tool_and_key(tokenizer: Tokenizer) -> None:
    wrong = {"type": "object", "properties": {"a": {"anyOf": [{"type": "objec"}]}}}
    tools = [WEATHER, {"type": "function", "function": {"name": "other", "parameters": wrong}}]
    async with in_process(saying(tokenizer, "[]"), tokenizer, HERMES) as frontend:
        for choice in ("required", {"type": "function", "function": {"name": "other"}}):
            name, text = await refused(frontend, tools=tools, tool_choice=choice)
            assert name == "tools"
            assert text.startswith(
                "tools: the parameters of 'other' are not a JSON schema: properties.a.anyOf.0.type must be one of "
            )


async def test_parameters_may_have_pythons_word_for_an_object(tokenizer: Tokenizer) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {**SCHEMA, "type": "dict"}}}
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}]'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        choice = (await chat(frontend, tools=[tool], tool_choice="required"))["choices"][0]
        assert '"type": "object"' in grammar_of(frontend)
    assert choice["finish_reason"] == "tool_calls"
