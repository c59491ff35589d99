"""`/v1/responses` over a core that says what a model would."""

import asyncio
import re
from array import array
from functools import partial
from typing import Any

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Abort, Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.anthropic.serving import CALLS, HERMES, ROOMY, SCHEMA, THINKING, THOUGHT
from tests.frontend.responses.serving import folded, named_events
from tests.frontend.serving import Frontend, answering, in_process
from tests.waiting import until

TEXT = "Hello 🙂 world"
WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
CLOCK = {"type": "function", "name": "clock"}


def saying(tokenizer: Tokenizer, text: str) -> ScriptedCore:
    return answering(tokenizer, text, ROOMY)


async def create(frontend: Frontend, **body: Any) -> dict[str, Any]:
    """The whole response; the streamed one is checked to add up to it."""
    body = {"input": "Hi", "request_id": "one", **body}
    streamed = await frontend.http.post("/v1/responses", json={**body, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8", streamed.text
    await frontend.http.delete(f"/v1/responses/resp_{body['request_id']}")  # The other is to have the same id.
    response = await frontend.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    events = named_events(streamed.text)
    assert folded(events) == whole["output"]
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"
    times = {"created_at": 0, "completed_at": 0}
    assert last["response"] | times == whole | times
    return whole


async def refused(frontend: Frontend, **body: Any) -> tuple[str, str]:
    """The field that is at fault, and what is said of it."""
    response = await frontend.http.post("/v1/responses", json={"input": "Hi", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def last_prompt(frontend: Frontend, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(array("i", frontend.core.sent(Submit)[-1].prompt).tolist(), False)


async def test_an_answer_has_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        response = await create(
            frontend, instructions="Be brief.", temperature=0.5, max_output_tokens=50, metadata={"a": "b"}, user="me"
        )
        prompt = last_prompt(frontend, tokenizer)
    assert prompt == "<|start|>system: Be brief.<|end|><|start|>user: Hi<|end|><|start|>"
    num_prompt, num_output = len(tokenizer.encode(prompt)), len(tokenizer.encode(TEXT)) + 1
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    assert response.pop("created_at") <= response.pop("completed_at")
    assert response == {
        "id": "resp_one",
        "object": "response",
        "model": "tiny",
        "status": "completed",
        "output": [
            {"type": "message", "id": "msg_one_0", "role": "assistant", "status": "completed", "content": [part]}
        ],
        "usage": {
            "input_tokens": num_prompt,
            "input_tokens_details": {
                "cached_tokens": 2,
                "cache_write_tokens": num_prompt - num_prompt % MODEL.block_size - 2,
            },
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_output,
        },
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": None,
        "service_tier": None,
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text", **dict.fromkeys(("name", "schema", "description", "strict"))},
                 "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": "me",
    }  # fmt: skip


async def test_an_answer_that_is_cut_off_says_so(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        response = await create(frontend, max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


async def test_thoughts_texts_and_calls_are_items(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, THOUGHT), tokenizer, THINKING) as frontend:
        response = await create(frontend, tools=[WEATHER, CLOCK])
    reasoning, message, weather, clock = response["output"]
    assert (reasoning["type"], reasoning["content"][0]["text"].strip()) == ("reasoning", "Hm 🙂.")
    assert message["content"][0]["text"] == "So:"
    assert (weather["type"], weather["name"], weather["arguments"]) == (
        "function_call",
        "weather",
        '{"city": "Zürich"}',
    )
    assert weather["call_id"].startswith("call_")
    assert weather["call_id"] != clock["call_id"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert response["status"] == "completed"


async def test_items_become_messages(tokenizer: Tokenizer) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|{{ m.reasoning }}|"
        "{% for c in m.tool_calls or [] %}"
        "{{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }} {% endfor %}"
        "]{% endfor %}{{ tools }}<tool_call><think>"
    )

    def call(number: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"c{number}", "name": "weather", "arguments": '{"city": "Rome"}'}

    items = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "e"},
        {"role": "assistant", "content": "f"},
    ]
    async with in_process(saying(tokenizer, "ok"), tokenizer, template) as frontend:
        await create(frontend, input=items)
        assert last_prompt(frontend, tokenizer) == (
            '[developer|d|||][user|a\nb|||][assistant|c||t|c1:weather:{"city": "Rome"} c2:weather:{"city": "Rome"} ]'
            "[tool|sunny|c1||][tool|rain|c2||][assistant|e|||][assistant|f|||]None<tool_call><think>"
        )


async def test_tools_forms_and_extras_reach_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, '{"city": "Rome"}'), tokenizer, HERMES) as frontend:
        named = await create(frontend, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
        assert "city" in frontend.core.sent(Submit)[-1].sampling.grammar
        form = {"type": "json_schema", "name": "city", "schema": SCHEMA}
        await create(frontend, request_id="two", text={"format": form}, top_k=7, cache_salt="s", seed=3)
        submit = frontend.core.sent(Submit)[-1]
    assert named["output"][0]["arguments"] == '{"city": "Rome"}'
    assert "city" in submit.sampling.grammar
    assert (submit.sampling.top_k, submit.cache_salt, submit.seed) == (7, "s", 3)


async def test_tools_with_a_format_give_calls_or_content(tokenizer: Tokenizer) -> None:
    form = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    call = CALLS.partition("\n")[2]
    for strict in (False, True):
        tools = [{**WEATHER, "strict": strict}, CLOCK]
        async with in_process(saying(tokenizer, call), tokenizer, HERMES) as frontend:
            output = (await create(frontend, tools=tools, text=form))["output"]
        assert [item.get("name") for item in output] == ["weather", "clock"]
        async with in_process(saying(tokenizer, '{"city": "<tool_call>"}'), tokenizer, HERMES) as frontend:
            (item,) = (await create(frontend, tools=tools, text=form))["output"]
        assert item["content"][0]["text"] == '{"city": "<tool_call>"}'
    async with in_process(saying(tokenizer, '{"city": "Rome"}'), tokenizer, HERMES) as frontend:
        choice = {"type": "function", "name": "weather"}
        (item,) = (await create(frontend, tools=[WEATHER], text=form, tool_choice=choice))["output"]
    assert (item["type"], item["arguments"]) == ("function_call", '{"city": "Rome"}')


async def test_log_probabilities_go_with_the_text(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, "a 🙂"), tokenizer) as frontend:
        response = await create(frontend, include=["message.output_text.logprobs"], top_logprobs=1)
    logprobs = response["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs[:2]] == ["a", " "]
    assert len(logprobs) == len(tokenizer.encode("a 🙂")) + 1
    assert [len(entry["top_logprobs"]) for entry in logprobs] == [1] * len(logprobs)


async def test_a_response_goes_on_from_another(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, CALLS), tokenizer, HERMES) as frontend:
        first = await create(frontend, instructions="I", tools=[WEATHER, CLOCK])
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
            for item in first["output"]
            if item["type"] == "function_call"
        ]
        second = await create(frontend, input=outputs, previous_response_id=first["id"], request_id="two")
        prompt = last_prompt(frontend, tokenizer)
        listed = await frontend.http.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"})
    assert "<|start|>system: I" not in prompt
    calls = "".join(f"\n{call}" for call in CALLS.splitlines()[1:])
    assert f"<|start|>user: Hi<|end|><|start|>assistant: So:{calls[:20]}" in prompt
    assert prompt.count("<|start|>tool: sunny<|end|>") == 2
    kinds = ["message", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert [item["type"] for item in listed.json()["data"]] == kinds
    assert second["previous_response_id"] == "resp_one"


async def test_items_are_listed_in_pages(tokenizer: Tokenizer) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        identity = (await create(frontend, input=items))["id"]
        texts = []
        after = {}
        while True:
            response = await frontend.http.get(f"/v1/responses/{identity}/input_items", params={"limit": 2, **after})
            page = response.json()
            texts += [item["content"][0]["text"] for item in page["data"]]
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
        wrong = [
            (await frontend.http.get(f"/v1/responses/{identity}/input_items", params=params)).status_code
            for params in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "nope"}, {"nope": 1})
        ]
    assert texts == list("43210")
    assert wrong == [400] * 5


async def test_a_stored_response_is_fetched_and_deleted(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        response = await create(frontend)
        fetched = await frontend.http.get("/v1/responses/resp_one")
        not_streamed = await frontend.http.get("/v1/responses/resp_one", params={"stream": "true"})
        deleted = await frontend.http.delete("/v1/responses/resp_one")
        again = await frontend.http.delete("/v1/responses/resp_one")
        gone = await frontend.http.get("/v1/responses/resp_one")
        next_one = await frontend.http.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_one"})
    assert fetched.json() == response
    assert not_streamed.json()["error"]["param"] == "stream"
    assert deleted.json() == {"id": "resp_one", "object": "response", "deleted": True}
    for missing in (again, gone, next_one):
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_callers_id_replaces_no_stored_response(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        post = partial(frontend.http.post, "/v1/responses")
        headers = {"x-request-id": "mine"}
        first, second = [await post(json={"input": text}, headers=headers) for text in ("one", "two")]
        assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
        keyed = [
            await post(json={"input": text}, headers={**headers, "idempotency-key": text}) for text in ("three", "four")
        ]
        assert len({response.json()["id"] for response in (first, second, *keyed)}) == 4
        items = await frontend.http.get(f"/v1/responses/{first.json()['id']}/input_items")
        assert items.json()["data"][0]["content"][0]["text"] == "one"
        assert (await post(json={"input": "one", "request_id": "own"})).json()["id"] == "resp_own"
        parameter, text = await refused(frontend, input="two", request_id="own")
        assert (parameter, "resp_own" in text) == ("request_id", True)
        assert (await post(json={"input": "two", "request_id": "own", "store": False})).status_code == 200


async def test_a_stream_is_taken_up_with_the_id_of_its_response(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        for body in ({"input": "Hi"}, {"input": "Hi", "request_id": "own"}):
            headers = {"x-request-id": "mine", "accept": "text/event-stream"}
            whole = await frontend.http.post("/v1/responses", json={**body, "stream": True}, headers=headers)
            *_, last = [line.removeprefix("id: ") for line in whole.text.splitlines() if line.startswith("id: ")][:3]
            rest = await frontend.http.post(
                "/v1/responses", json={**body, "stream": True}, headers={"last-event-id": last}
            )
            assert rest.status_code == 200, rest.text
            assert whole.text.split(f"id: {last}\n")[1].partition("\n\n")[2].count("\n\n") == rest.text.count("\n\n")
            ids = {re.findall(r'"id":"(resp_\w+)"', text)[-1] for text in (whole.text, rest.text)}
            assert len(ids) == 1


async def test_what_is_not_to_be_stored_is_not(tokenizer: Tokenizer) -> None:
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        response = await create(frontend, store=False)
        assert response["store"] is False
        assert (await frontend.http.get("/v1/responses/resp_one")).status_code == 404


async def test_another_tenants_response_is_not_found(tokenizer: Tokenizer) -> None:
    acme = {"x-llm-d-inference-fairness-id": "acme"}
    async with in_process(saying(tokenizer, TEXT), tokenizer) as frontend:
        await create(frontend, user="me")
        assert (await frontend.http.get("/v1/responses/resp_one")).status_code == 200
        assert (await frontend.http.get("/v1/responses/resp_one", headers=acme)).status_code == 404
        assert (await frontend.http.post("/v1/responses/resp_one/cancel", headers=acme)).status_code == 404
        body = {"input": "Hi", "previous_response_id": "resp_one"}
        assert (await frontend.http.post("/v1/responses", json=body, headers=acme)).status_code == 404


async def test_a_background_response_keeps_its_place_until_it_ends(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, TEXT)
    core.paused = True
    server = ServerConfig(max_concurrent_requests=1)
    async with in_process(core, tokenizer, server=server) as frontend:
        body = {"input": "Hi", "background": True}
        first = (await frontend.http.post("/v1/responses", json=body)).json()
        assert (await frontend.http.post("/v1/responses", json=body)).status_code == 429
        await frontend.http.post(f"/v1/responses/{first['id']}/cancel")
        assert (await frontend.http.post("/v1/responses", json=body)).status_code == 200


async def test_a_background_response_runs_on_by_itself(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, TEXT)
    core.paused = True
    async with in_process(core, tokenizer) as frontend:
        answer = await frontend.http.post("/v1/responses", json={"input": "Hi", "background": True})
        response = answer.json()
        path = f"/v1/responses/{response['id']}"
        assert (response["status"], response["output"]) == ("in_progress", [])
        assert (await frontend.http.get(path)).json() == response
        next_one = await frontend.http.post(
            "/v1/responses", json={"input": "x", "previous_response_id": response["id"]}
        )
        assert next_one.json()["error"]["param"] == "previous_response_id"
        core.resume()
        await until(lambda: not core.running)
        while (fetched := (await frontend.http.get(path)).json())["status"] == "in_progress":
            await asyncio.sleep(0)
    assert fetched["status"] == "completed"
    assert fetched["output"][0]["content"][0]["text"] == TEXT


async def test_a_background_response_is_cancelled(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, TEXT)
    core.paused = True
    async with in_process(core, tokenizer) as frontend:
        response = (await frontend.http.post("/v1/responses", json={"input": "Hi", "background": True})).json()
        path = f"/v1/responses/{response['id']}"
        cancelled = (await frontend.http.post(f"{path}/cancel")).json()
        again = (await frontend.http.post(f"{path}/cancel")).json()
        assert len(core.sent(Abort)) == 1
        core.resume()
        assert (await frontend.http.get(path)).json() == cancelled == again
        plain = await create(frontend)
        refusal = await frontend.http.post(f"/v1/responses/{plain['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    assert refusal.status_code == 400


async def test_a_background_response_that_is_deleted_ends(tokenizer: Tokenizer) -> None:
    core = saying(tokenizer, TEXT)
    core.paused = True
    async with in_process(core, tokenizer) as frontend:
        response = (await frontend.http.post("/v1/responses", json={"input": "Hi", "background": True})).json()
        await frontend.http.delete(f"/v1/responses/{response['id']}")
        assert len(core.sent(Abort)) == 1
        assert (await frontend.http.get(f"/v1/responses/{response['id']}")).status_code == 404


async def test_a_server_that_stores_nothing_says_so(tokenizer: Tokenizer) -> None:
    server = ServerConfig(max_stored_responses=0)
    async with in_process(saying(tokenizer, TEXT), tokenizer, server=server) as frontend:
        answers = [
            (await frontend.http.post("/v1/responses", json={"input": "Hi", **body})).json()
            for body in ({}, {"store": True}, {"background": True})
        ]
        assert (await frontend.http.get(f"/v1/responses/{answers[0]['id']}")).status_code == 404
    assert answers[0]["store"] is False
    assert [answer["error"]["param"] for answer in answers[1:]] == ["store", "background"]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"conversation": "x"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": {}}, "guided_json"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"max_completion_tokens": 2}, "max_completion_tokens"),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(
    tokenizer: Tokenizer, body: dict[str, Any], parameter: str
) -> None:
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        assert (await refused(frontend, **body))[0] == parameter
        assert (await create(frontend))["status"] == "completed"


async def test_the_tokens_of_an_input_are_counted_as_the_request_would_have_them(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"input": "Hi", "instructions": "Be brief.", "temperature": 0.5}
    async with in_process(saying(tokenizer, "ok"), tokenizer) as frontend:
        first = (await frontend.http.post("/v1/responses", json=body)).json()
        counted = await frontend.http.post("/v1/responses/input_tokens", json=body)
        following = {"input": "And?", "previous_response_id": first["id"]}
        second = (await frontend.http.post("/v1/responses", json=following)).json()
        longer = (await frontend.http.post("/v1/responses/input_tokens", json=following)).json()
        wrong = await frontend.http.post("/v1/responses/input_tokens", json={"input": "x", "n_probs": 3})
        num_submits = len(frontend.core.sent(Submit))
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": first["usage"]["input_tokens"]}
    assert longer["input_tokens"] == second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert (wrong.status_code, num_submits) == (400, 2)
