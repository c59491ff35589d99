"""`/v1/chat/completions`, streamed and not, over a scripted core."""

import json
import re
from array import array
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import INLINE_CHARACTERS, Tokenizer
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.ignoring import check_no_effect
from tests.frontend.serving import UNFILLED, Frontend, answering, events, in_process

TEXT = "Hello 🙂 world"
USER = {"role": "user", "content": "Hi"}


async def chat(frontend: Frontend, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    response = await frontend.http.post("/v1/chat/completions", json={"messages": messages or [USER], **body})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(frontend: Frontend, **body: Any) -> list[dict[str, Any]]:
    response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], "stream": True, **body})
    assert response.status_code == 200, response.text
    return events(response.text)


@pytest.mark.parametrize(
    ("body", "parameter", "text"),
    [
        ({"messages": [{**USER, "content": "a " * 20_000}]}, "messages", "maximum context length"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "x" * MAX_GRAMMAR_BYTES}}}},
            "response_format",
            "response_format: json must have",
        ),
        ({"use_beam_search": True, "stop": "x"}, "stop", "stop and use_beam_search exclude"),
        ({"use_beam_search": True, "seed": 0}, "seed", "is not random"),
        ({"length_penalty": 2.0}, "length_penalty", "set use_beam_search"),
    ],
)
async def test_errors_name_fields_of_the_request(
    tokenizer: Tokenizer, body: dict[str, Any], parameter: str, text: str
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], **body})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], text in error["message"]) == (parameter, True), error


async def test_an_answer_has_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        answer = await chat(frontend, model="tiny")
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, **UNFILLED, "reasoning": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ]
    assert (answer["prompt_logprobs"], answer["prompt_token_ids"]) == (None, None)
    read = ChatCompletion.model_validate(answer)  # OpenAI's SDK checks nothing when it reads an answer.
    assert (read.choices[0].message.content, read.choices[0].message.annotations) == (TEXT, None)
    assert re.fullmatch("fp_[0-9a-f]{12}", answer["system_fingerprint"])
    prompt = tokenizer.encode("<|start|>user: Hi<|end|><|start|>")
    assert array("i", frontend.core.sent(Submit)[0].prompt).tolist() == prompt
    assert answer["usage"]["prompt_tokens"] == len(prompt)


async def test_a_stream_is_a_role_then_text_then_a_reason_then_the_usage(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        answer = await chat(frontend)
        chunks = await stream(frontend, stream_options={"include_usage": True})
    role, *texts, last, usage = chunks
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [chunk["choices"][0]["delta"] for chunk in texts] == [
        {"content": text} for text in ("Hello", " ", "🙂", " world")
    ]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert (usage["choices"], usage["usage"]) == ([], answer["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_every_choice_has_its_own_role_and_reason(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*tokenizer.encode("ab")[: sample + 1], 0])
    async with in_process(core, tokenizer) as frontend:
        answer = await chat(frontend, n=2)
        chunks = [chunk["choices"][0] for chunk in await stream(frontend, n=2)]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "ab"]
    for index, text in enumerate(["a", "ab"]):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(chunk["delta"].get("content", "") for chunk in mine) == text
        assert [chunk["finish_reason"] for chunk in mine] == [None] * (len(mine) - 1) + ["stop"]


async def test_text_that_comes_with_the_end_is_in_the_last_chunk(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "abc"), tokenizer) as frontend:
        *_, last = await stream(frontend, max_tokens=2)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({"content": "b"}, "length")


async def test_without_a_limit_the_context_is_the_limit(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "x" * 500), tokenizer) as frontend:
        assert (await chat(frontend))["usage"]["total_tokens"] == 256
        assert (await chat(frontend, max_tokens=5))["usage"]["completion_tokens"] == 5
        assert (await chat(frontend, max_tokens=5, max_completion_tokens=3))["usage"]["completion_tokens"] == 3


async def test_parts_of_text_are_joined_by_lines(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await chat(frontend, {"role": "user", "content": parts}, {"role": "assistant", "content": None, "name": "x"})
    prompt = array("i", frontend.core.sent(Submit)[0].prompt).tolist()
    assert tokenizer.decode(prompt, False) == "<|start|>user: one\ntwo<|end|><|start|>assistant: <|end|><|start|>"


async def test_the_last_message_can_be_continued(tokenizer: Tokenizer) -> None:
    opening = {"role": "assistant", "content": "Well, "}
    options = {"add_generation_prompt": False, "continue_final_message": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await chat(frontend, USER, opening, **options)
    prompt = array("i", frontend.core.sent(Submit)[0].prompt).tolist()
    assert tokenizer.decode(prompt, False) == "<|start|>user: Hi<|end|><|start|>assistant: Well, "


async def test_a_long_conversation_is_rendered_the_same(tokenizer: Tokenizer) -> None:
    model = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
    message = {"role": "user", "content": "Hello" * INLINE_CHARACTERS}
    async with in_process(ScriptedCore(lambda prompt, sample: [0], model), tokenizer) as frontend:
        await chat(frontend, message)
    prompt = tokenizer.encode(f"<|start|>user: {message['content']}<|end|><|start|>")
    assert array("i", frontend.core.sent(Submit)[0].prompt).tolist() == prompt


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({}, None),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{**USER, "function_call": {}}]}, "messages[0].function_call"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[1].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
    ],
)
async def test_what_cannot_run_is_refused_by_name(
    tokenizer: Tokenizer, body: dict[str, Any], parameter: str | None
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, parameter)


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"prompt": "x"}, "prompt"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{**USER, "annotations": [{}]}]}, "messages.annotations"),
        ({"messages": [{**USER, "nobody": 1}]}, "messages.nobody"),
        ({"response_format": {"type": "text", "nobody": 1}}, "response_format.nobody"),
    ],
)
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, extra: dict[str, Any], name: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        return in_process(answering(tokenizer, TEXT), tokenizer, server=server)

    body = {"messages": [USER]}
    await check_no_effect(serve, "/v1/chat/completions", body | extra, body, name)


async def test_a_template_may_refuse(tokenizer: Tokenizer) -> None:
    template = "{{ raise_exception('system is not supported') }}"
    async with in_process(answering(tokenizer, "ok"), tokenizer, template) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER]})
        assert response.status_code == 400
        assert "system is not supported" in response.json()["error"]["message"]


async def test_a_model_without_template_says_so(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, template=None) as frontend:
        response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER]})
        assert response.status_code == 400
        assert "/v1/completions" in response.json()["error"]["message"]


async def test_log_probabilities_have_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "a🙂"), tokenizer) as frontend:
        choice = (await chat(frontend, logprobs=True, top_logprobs=1))["choices"][0]
        plain = (await chat(frontend, logprobs=True))["choices"][0]
        none = (await chat(frontend))["choices"][0]
    best = {"token": tokenizer.token_text(30), "logprob": -0.5, "bytes": list(tokenizer.token_bytes(30))}
    texts = [("a", b"a"), *(("�", bytes([byte])) for byte in "🙂".encode()), ("<|end|>", b"<|end|>")]
    assert choice["logprobs"] == {
        "content": [
            {"token": text, "logprob": -1.0, "bytes": list(raw), "top_logprobs": [best]} for text, raw in texts
        ],
        "refusal": None,
    }
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[]] * 6
    assert none["logprobs"] is None


async def test_tokens_that_a_request_names_come_in_place_of_the_likeliest(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "a"), tokenizer) as frontend:
        choice = (await chat(frontend, logprobs=True, top_logprobs=1, logprob_token_ids=[41, 40]))["choices"][0]
        refused = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], "logprob_token_ids": [41]})
    first, *_ = choice["logprobs"]["content"]
    told = [("a", -1.0), (tokenizer.token_text(41), -2.0), (tokenizer.token_text(40), -3.0)]
    assert [(each["token"], each["logprob"]) for each in first["top_logprobs"]] == told
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprob_token_ids")


async def test_a_streams_log_probabilities_add_up_to_the_answers(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "stop": "world!"}
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        answer = (await chat(frontend, **body))["choices"][0]
        chunks = [chunk["choices"][0] for chunk in await stream(frontend, **body)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == answer["message"]["content"]
    entries = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
    assert entries == answer["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TEXT + "<|end|>"
    top = [(place["logprob"], place["token"]) for place in entries[0]["top_logprobs"]]
    assert top == [(-0.5, tokenizer.token_text(30)), (-1.0, "Hello"), (-1.5, tokenizer.token_text(31))]


async def test_forty_stop_strings_end_the_message(tokenizer: Tokenizer) -> None:
    stops = [f"\nPerson {number}:" for number in range(39)] + ["world"]
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        choice = (await chat(frontend, stop=stops))["choices"][0]
        chunks = [chunk["choices"][0] for chunk in await stream(frontend, stop=stops)]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("Hello 🙂 ", "world")
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "Hello 🙂 "


async def test_log_probabilities_of_the_prompt_are_told_once(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await chat(frontend, n=2, prompt_logprobs=0)
        plain = await chat(frontend)
    others = tokenizer.encode("<|start|>user: Hi<|end|><|start|>")[1:]
    assert answer["prompt_logprobs"][0] is None
    assert [[*entry] for entry in answer["prompt_logprobs"][1:]] == [[str(token)] for token in others]
    assert plain["prompt_logprobs"] is None
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


async def test_log_probabilities_have_limits(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for body, name in (
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ):
            response = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], **body})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)


async def test_servers_may_change_what_requests_leave_out(tokenizer: Tokenizer) -> None:
    server = ServerConfig(enable_force_include_usage=True, return_tokens_as_token_ids=True, response_role="model")
    async with in_process(answering(tokenizer, "Hi"), tokenizer, server=server) as frontend:
        chunks = await stream(frontend, logprobs=True, stream_options={"include_usage": False})
        assert chunks[0]["choices"][0]["delta"]["role"] == "model"
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        answer = await chat(frontend, logprobs=True)
        assert answer["choices"][0]["message"]["role"] == "model"
        assert answer["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")


async def test_a_template_has_the_servers_variables_where_requests_have_none(tokenizer: Tokenizer) -> None:
    template = "{{ mood }}{% for message in messages %}{{ message.content }}{% endfor %}"
    server = ServerConfig(default_chat_template_kwargs={"mood": "calm ", "unknown": 1})
    core = answering(tokenizer, "ok")
    async with in_process(core, tokenizer, template, server=server) as frontend:
        await chat(frontend)
        await chat(frontend, chat_template_kwargs={"mood": "wild "})
    prompts = [memoryview(message.prompt).cast("i") for message in core.received if isinstance(message, Submit)]
    assert [tokenizer.decode(prompt.tolist()) for prompt in prompts] == ["calm Hi", "wild Hi"]


SETS = {"type": "array", "items": {"type": "integer", "format": "int32"}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SETS}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": SETS}}, "response_format"),
        ({"format": SETS}, "format"),
        ({"structured_outputs": {"json": SETS}}, "structured_outputs"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_format_is_enforced_as_far_as_a_grammar_can(
    tokenizer: Tokenizer, path: str, form: dict[str, Any], field: str
) -> None:
    body = {"messages": [USER]} if "chat" in path else {"prompt": "x"}
    async with in_process(answering(tokenizer, "[1]"), tokenizer) as frontend:
        response = await frontend.http.post(path, json=body | form)
        assert response.status_code == 200, response.text
        (submit,) = frontend.core.sent(Submit)
    assert response.headers["pyllm-ignored-fields"] == f"{field}.uniqueItems"
    (grammar,) = json.loads(submit.sampling.grammar)["grammars"]
    assert grammar["json_schema"]["items"] == {"type": "integer"}
    assert "uniqueItems" not in grammar["json_schema"]
    wrong = SETS | {"items": {"type": "decimal"}}
    form = json.loads(json.dumps(form).replace(json.dumps(SETS), json.dumps(wrong)))
    async with in_process(answering(tokenizer, "[1]"), tokenizer) as frontend:
        error = (await frontend.http.post(path, json=body | form)).json()["error"]
    assert (error["param"], f"{field}: json is not a JSON schema: items.type must be" in error["message"]) == (
        field,
        True,
    )


async def test_a_prefix_is_gone_on_with_where_it_is_last(tokenizer: Tokenizer) -> None:
    begun = {"role": "assistant", "content": "It is", "prefix": True}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await chat(frontend, USER, begun)
        await chat(frontend, USER, begun, USER)
        await chat(frontend, USER, begun | {"prefix": False})
        prompts = [tokenizer.decode(array("i", submit.prompt).tolist(), False) for submit in frontend.core.sent(Submit)]
    started = "<|start|>user: Hi<|end|><|start|>assistant: It is"
    assert prompts == [started, f"{started}<|end|><|start|>user: Hi<|end|><|start|>", f"{started}<|end|><|start|>"]


async def test_integers_may_be_written_as_floats(tokenizer: Tokenizer) -> None:
    body = {"max_tokens": 150.0, "top_k": 40.0, "seed": 42.0, "n": 1.0}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await chat(frontend, **body)
        (submit,) = frontend.core.sent(Submit)
        refusal = await frontend.http.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 1.5})
    assert (submit.max_tokens, submit.sampling.top_k, submit.seed, submit.n) == (150, 40, 42, 1)
    assert refusal.json()["error"]["param"] == "max_tokens"
