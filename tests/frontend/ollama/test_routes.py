"""`/api/chat` and `/api/generate`, streamed and not, over a core that says what a model would."""

import asyncio
import json
from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllm.frontend.http.keep_alive import SILENT_SWEEPS
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import ScriptedCore
from tests.frontend.anthropic.serving import CALLS, HERMES, ROOMY, SCHEMA, THINKING, THOUGHT, USER
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import STRICT, TEMPLATE, Frontend, answering, behind_uvicorn, in_process
from tests.frontend.text import tiny_tokenizers
from tests.waiting import until

WEATHER = {"type": "function", "function": {"name": "weather", "description": "It.", "parameters": SCHEMA}}
CLOCK = {"function": {"name": "clock", "parameters": {"type": "object"}}}
# Of the times an answer has, no two are the same.
TIMES = ("created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def saying(tokenizer: Tokenizer, text: str) -> ScriptedCore:
    return answering(tokenizer, text, ROOMY)


async def ask(frontend: Frontend, path: str, **body: Any) -> dict[str, Any]:
    """The whole answer; the streamed one is checked to add up to it."""
    body = {"model": "tiny", **({"messages": [USER]} if path == "/api/chat" else {}), **body}
    body["options"] = {"request_id": "one", **body.get("options", {})}
    whole = await frontend.http.post(path, json={**body, "stream": False})
    assert whole.status_code == 200, whole.text
    streamed = await frontend.http.post(path, json=body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    answer: dict[str, Any] = whole.json()
    assert steady(folded([json.loads(line) for line in streamed.text.splitlines()])) == steady(answer)
    return answer


def steady(answer: dict[str, Any]) -> dict[str, Any]:
    assert all(isinstance(answer[name], str if name == "created_at" else int) for name in TIMES)
    return {name: value for name, value in answer.items() if name not in TIMES}


def folded(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the lines of a stream add up to."""
    *parts, last = lines
    assert [part["done"] for part in lines] == [False] * len(parts) + [True]
    if "message" in last:
        whole = last["message"]
        assert whole == {"role": "assistant", "content": ""}
        parts = [part["message"] for part in parts]
    else:
        whole = last
    for part in parts:
        for name in ("content", "response", "thinking", "tool_calls"):
            if part.get(name):
                whole[name] = whole.get(name, type(part[name])()) + part[name]
    return last


def prompts(frontend: Frontend, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(array("i", submit.prompt).tolist(), False) for submit in frontend.core.sent(Submit)]


async def refusal(frontend: Frontend, path: str, body: dict[str, Any], status: int = 400) -> str:
    response = await frontend.http.post(path, json=body)
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    return str(response.json()["error"])


async def test_a_chats_answer_has_ollamas_shape(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "Hello 🙂"), tokenizer) as frontend:
        answer = await ask(frontend, "/api/chat")
        assert prompts(frontend, tokenizer)[0] == "<|start|>user: Hi<|end|><|start|>"
    assert steady(answer) == {
        "model": "tiny",
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": len(tokenizer.encode("<|start|>user: Hi<|end|><|start|>", add_special_tokens=False)),
        "eval_count": len(tokenizer.encode("Hello 🙂", add_special_tokens=False)) + 1,
        "message": {"role": "assistant", "content": "Hello 🙂"},
    }
    assert answer["created_at"].endswith("Z")
    assert answer["total_duration"] >= answer["prompt_eval_duration"] > 0


async def test_a_name_with_latest_is_the_same_model(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        assert (await ask(frontend, "/api/chat", model="tiny:latest"))["model"] == "tiny:latest"
        for name in ("tiny:4b", "other", "other:latest"):
            text = await refusal(frontend, "/api/chat", {"model": name, "messages": [USER]}, 404)
            assert text == f"model '{name}' not found"
    async with in_process(saying(tokenizer, "ok"), tokenizer, model_aliases=("qwen3:latest",)) as frontend:
        assert (await ask(frontend, "/api/chat", model="qwen3"))["model"] == "qwen3"


async def test_options_are_parameters(tokenizer: Tokenizer) -> None:
    options = {"num_predict": 3, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 5, "stop": ["!"]}
    penalties = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    async with in_process(saying(tokenizer, "Hello you"), tokenizer) as frontend:
        answer = await ask(frontend, "/api/chat", options={**options, **penalties})
        (submit, *_) = frontend.core.sent(Submit)
        unlimited = [
            await ask(frontend, "/api/generate", prompt="Hi", options={"num_predict": number}) for number in (0, -1)
        ]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, 0.25)
    assert (submit.seed, submit.max_tokens) == (5, 3)
    assert (answer["done_reason"], answer["eval_count"]) == ("length", 3)
    assert [each["done_reason"] for each in unlimited] == ["stop", "stop"]


async def test_hints_are_told_and_what_would_change_the_answer_is_refused(tokenizer: Tokenizer) -> None:
    body = {"model": "tiny", "messages": [USER], "stream": False, "keep_alive": "5m"}
    hints = {"num_ctx": 9, "num_gpu": 1, "num_thread": 2, "numa": True, "vocab_only": False, "mirostat_tau": 1.0}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.post("/api/chat", json={**body, "options": hints})
        assert set(answer.headers[HEADER].split(", ")) == {"keep_alive", *(f"options.{name}" for name in hints)}
        for options, said in (
            ({"mirostat": 1}, "options.mirostat is not supported yet"),
            ({"tfs_z": 0.5}, "options.tfs_z is not supported yet"),
            ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
            ({"temperature": -1}, "options.temperature"),
            ({"num_predict": -3}, "options.num_predict"),
            ({"logit_bias": {"999999": 1}}, "token id 999999"),
        ):
            assert said in await refusal(frontend, "/api/chat", {**body, "options": options})
        picture = {"role": "user", "content": "", "images": ["aGk="]}
        text = await refusal(frontend, "/api/chat", {**body, "messages": [USER, picture]})
        assert text == "messages[1].images is not supported yet; leave it out"
        for field in ({"images": ["aGk="]}, {"context": [1]}, {"template": "{{ .Prompt }}"}):
            (name,) = field
            assert f"{name} is not supported" in await refusal(
                frontend, "/api/generate", {"model": "tiny", "prompt": "Hi", **field}
            )
    async with in_process(saying(tokenizer, "ok"), tokenizer, server=STRICT) as frontend:
        assert "options.num_ctx" in await refusal(frontend, "/api/chat", {**body, "options": {"num_ctx": 9}})


async def test_calls_come_whole_with_arguments_as_objects(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        answer = await ask(frontend, "/api/chat", tools=[WEATHER, CLOCK])
        assert '"name": "weather"' in prompts(frontend, tokenizer)[0]
    calls = answer["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "weather", "arguments": {"city": "Zürich"}},
        {"index": 1, "name": "clock", "arguments": {}},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert (answer["message"]["content"].strip(), answer["done_reason"]) == ("So:", "stop")


async def test_a_call_that_is_cut_off_keeps_what_there_is(tokenizer: Tokenizer) -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zü'
    async with in_process(saying(tokenizer, text), tokenizer, HERMES) as frontend:
        answer = await ask(frontend, "/api/chat", tools=[WEATHER])
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"INVALID_JSON": '{"city": "Zü'}


async def test_results_of_tools_are_shown_without_ids(tokenizer: Tokenizer) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    result = {"role": "tool", "content": "42", "tool_name": "f"}
    async with in_process(saying(tokenizer, "ok"), tokenizer, HERMES) as frontend:
        await ask(frontend, "/api/chat", messages=[USER, called, result], tools=[WEATHER])
        assert "tool: 42" in prompts(frontend, tokenizer)[0]
        text = await refusal(frontend, "/api/chat", {"model": "tiny", "messages": [USER, called]})
    assert "send its result" in text


@pytest.mark.parametrize(("think", "opens"), [(None, False), (True, True), (False, False)])
async def test_thinking_is_beside_the_answer(think: bool | None, opens: bool, tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "<think>\nHm.\n</think>\n\nYes."), tokenizer, THINKING) as frontend:
        answer = await ask(frontend, "/api/chat", think=think)
        prompt = prompts(frontend, tokenizer)[0]
        generated = await ask(frontend, "/api/generate", prompt="Hi", think=think)
    assert ("<think>" in prompt) is opens
    assert answer["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
    assert (generated["response"], generated["thinking"]) == ("Yes.", "Hm.")


async def test_thinking_of_a_model_that_does_not_is_a_hint(tokenizer: Tokenizer) -> None:
    body = {"model": "tiny", "messages": [USER], "stream": False}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        for think in (True, "low"):
            answer = await frontend.http.post("/api/chat", json={**body, "think": think})
            assert (answer.status_code, answer.headers[HEADER]) == (200, "think")
        off = await frontend.http.post("/api/chat", json={**body, "think": False})
        assert (off.status_code, HEADER in off.headers) == (200, False)


async def test_calls_come_after_thoughts(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, THOUGHT), tokenizer, THINKING) as frontend:
        message = (await ask(frontend, "/api/chat", tools=[WEATHER, CLOCK], think=True))["message"]
    assert (message["thinking"], len(message["tool_calls"])) == ("Hm 🙂.", 2)


async def test_earlier_thoughts_reach_the_template(tokenizer: Tokenizer) -> None:
    template = TEMPLATE.replace("{{ message.content }}", "{{ message.reasoning_content }}|{{ message.content }}")
    said = {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await ask(frontend, "/api/chat", messages=[USER, said, USER])
        assert "Hm.|Yes." in prompts(frontend, tokenizer)[0]


async def test_a_last_message_of_the_assistant_is_continued(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, " more"), tokenizer) as frontend:
        await ask(frontend, "/api/chat", messages=[USER, {"role": "assistant", "content": "Once"}])
        assert prompts(frontend, tokenizer)[0].endswith("assistant: Once")


@pytest.mark.parametrize(("given", "wanted"), [("json", '"object"'), (SCHEMA, '"city"')])
async def test_a_format_is_a_constraint(given: Any, wanted: str, tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, '{"city": "Bern"}'), tokenizer) as frontend:
        await ask(frontend, "/api/chat", format=given)
        await ask(frontend, "/api/generate", prompt="Hi", format=given)
        await ask(frontend, "/api/chat", format="")
        grammars = [submit.sampling.grammar for submit in frontend.core.sent(Submit)]
        text = await refusal(
            frontend,
            "/api/chat",
            {"model": "tiny", "messages": [USER], "format": given, "options": {"structured_outputs": {"regex": "a"}}},
        )
    assert [wanted in (grammar or "") for grammar in grammars] == [True] * 4 + [False] * 2
    assert ('"additionalProperties":false' in (grammars[0] or "")) == (given == SCHEMA)
    assert text.startswith("format cannot be combined")


async def test_log_probabilities_have_ollamas_names(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "Hello"), tokenizer) as frontend:
        body = {"model": "tiny", "messages": [USER], "logprobs": True, "top_logprobs": 2, "stream": False}
        answer = (await frontend.http.post("/api/chat", json=body)).json()
        streamed = await frontend.http.post("/api/chat", json={**body, "stream": True})
        text = await refusal(frontend, "/api/chat", {**body, "logprobs": False})
    (first, *_) = answer["logprobs"]
    assert first.keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert len(first["top_logprobs"]) == 2
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert [entry for line in lines for entry in line.get("logprobs", [])] == answer["logprobs"]
    assert "top_logprobs requires logprobs" in text


async def test_a_prompt_is_a_message_or_a_text(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        answer = await ask(frontend, "/api/generate", prompt="Hi", system="Be short.")
        await ask(frontend, "/api/generate", prompt="Hi", raw=True)
        shown, _, raw, _ = prompts(frontend, tokenizer)
        text = await refusal(frontend, "/api/generate", {"model": "tiny", "prompt": "a", "raw": True, "system": "b"})
    assert (answer["response"], "message" in answer) == ("ok", False)
    assert shown == "<|start|>system: Be short.<|end|><|start|>user: Hi<|end|><|start|>"
    assert raw == tokenizer.decode(tokenizer.encode("Hi"), False)
    assert text == "system is a part of the chat template, and raw mode has none; leave it out"


async def test_without_a_template_prompts_are_continued_and_chats_refused(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer, None) as frontend:
        assert (await ask(frontend, "/api/generate", prompt="Hi"))["response"] == "ok"
        chat = await refusal(frontend, "/api/chat", {"model": "tiny", "messages": [USER]})
        system = await refusal(frontend, "/api/generate", {"model": "tiny", "prompt": "a", "system": "b"})
    assert "has no chat template" in chat
    assert "without a chat template" in system


async def test_a_suffix_is_filled_in_before(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    coder = tiny_tokenizers.load(made, tmp_path)
    async with in_process(saying(coder, "b"), coder) as frontend:
        answer = await ask(frontend, "/api/generate", prompt="a", suffix="c")
        assert prompts(frontend, coder)[0] == "<|fim_prefix|>a<|fim_suffix|>c<|fim_middle|>"
    async with in_process(saying(tokenizer, "b"), tokenizer) as frontend:
        text = await refusal(frontend, "/api/generate", {"model": "tiny", "prompt": "a", "suffix": "c"})
    assert answer["response"] == "b"
    assert text.startswith("suffix: this model's vocabulary has no tokens to fill in the middle")


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [(None, "load"), ("5m", "load"), (-1, "load"), (0, "unload"), ("0", "unload"), ("0s", "unload"), ("0m", "unload")],
)
async def test_nothing_to_answer_loads_or_unloads(keep_alive: Any, reason: str, tokenizer: Tokenizer) -> None:
    body = {"model": "tiny", **({} if keep_alive is None else {"keep_alive": keep_alive})}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        chat = (await frontend.http.post("/api/chat", json={**body, "messages": []})).json()
        generate = (await frontend.http.post("/api/generate", json=body)).json()
        assert frontend.core.sent(Submit) == []
        assert "not found" in await refusal(frontend, "/api/generate", {**body, "model": "other"}, 404)
    assert (chat["done"], chat["done_reason"]) == (generate["done"], generate["done_reason"]) == (True, reason)
    assert (chat["message"], generate["response"]) == ({"role": "assistant", "content": ""}, "")


async def test_what_cannot_fit_is_refused(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        too_long = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 20_000}]}
        assert "tokens" in await refusal(frontend, "/api/chat", too_long)


async def test_a_stream_that_fails_ends_with_a_line_that_says_why(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, "Hello " * 5000)
    async with behind_uvicorn(core, tokenizer) as frontend:
        body = {"model": "tiny", "messages": [USER]}
        async with frontend.http.stream("POST", "/api/chat", json=body) as response:
            lines = response.aiter_lines()
            first = json.loads(await anext(lines))
            core.paused = True
            await frontend.state.drain(0.0)
            rest = [json.loads(line) async for line in lines]
    assert (first["done"], first["message"]["content"][:5]) == (False, "Hello")
    assert "shut down before this request was finished" in rest[-1]["error"]


async def test_curls_own_type_of_a_body_is_taken_here_only(tokenizer: Tokenizer) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:

        async def post(path: str, **more: str) -> httpx.Response:
            body = json.dumps({"model": "tiny", "messages": [USER]}).encode()
            return await frontend.http.post(path, content=body, headers={**headers, **more})

        assert (await post("/api/chat")).status_code == 200
        assert (await post("/v1/chat/completions")).status_code == 415
        assert (await post("/api/chat", origin="https://elsewhere.example")).status_code == 403
        text = await frontend.http.post("/api/chat", content=b"{}", headers={"content-type": "text/plain"})
        assert text.status_code == 415


async def test_a_silent_stream_has_no_comments(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, "Hello")
    core.paused = True
    async with behind_uvicorn(core, tokenizer) as frontend:

        async def text(path: str) -> str:
            """A stream's text, in which all comments have come that were due before the first token."""
            body = {"model": "tiny", "messages": [USER], "stream": True}
            asking = asyncio.ensure_future(frontend.http.post(path, json=body))
            count = len(core.sent(Submit))
            await until(lambda: len(core.sent(Submit)) > count)
            for _ in range(SILENT_SWEEPS):
                frontend.state.keep_alive.sweep()
            core.resume()
            answer = (await asking).text
            core.paused = True
            return answer

        assert ": keep-alive" in await text("/v1/chat/completions")
        assert ": keep-alive" not in await text("/api/chat")
