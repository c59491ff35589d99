"""Reasoning of the embedded model, which its template opens, ends when its budget is used up; in every API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyllm import LLM, SamplingParams, StructuredOutputsParams
from pyllm.errors import RequestError
from tests import in_process
from tests.e2e.server import Server
from tests.e2e.titles import CORE, WORKER
from tests.in_process import KV_CACHE
from tests.tiers import full

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Which city is the capital of France? Tell me about it."}]
CLOSING = [9617, 17400, 46]  # `</`, `think`, `>`
FORM = StructuredOutputsParams(choice=["Paris", "Rome"])
BUDGETS = [0, 1, 5]
DRAWN = {"temperature": 0.8, "seed": 5, "max_tokens": 40}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    with Server("--chat-template", str(template)) as server:
        yield server


def ask(server: Server, path: str, **body: Any) -> dict[str, Any]:
    with server.http() as http:
        response = http.post(path, json={"model": server.model(), **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def chat(server: Server, **body: Any) -> dict[str, Any]:
    return ask(server, "/v1/chat/completions", messages=MESSAGES, **body)


def num_tokens(server: Server, text: str) -> int:
    return int(ask(server, "/tokenize", prompt=text, add_special_tokens=False)["count"])


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_answer_has_so_many_tokens_of_reasoning(thinking: Server, budget: int) -> None:
    whole = chat(thinking, **DRAWN, n=2, thinking_token_budget=budget)
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * (budget + len(CLOSING))
    unbounded = chat(thinking, **DRAWN, n=2)["choices"]
    for choice, free in zip(whole["choices"], unbounded, strict=True):
        message = choice["message"]
        assert free["message"]["reasoning"].startswith(message.get("reasoning") or "")
        assert not free["message"]["content"]
        assert num_tokens(thinking, message.get("reasoning") or "") <= budget
        assert message["content"]
        assert "think>" not in message["content"]


@pytest.mark.parametrize("budget", BUDGETS)
def test_responses_and_messages_count_them_too(thinking: Server, budget: int) -> None:
    own = {"temperature": 0, "input": MESSAGES[0]["content"], "max_output_tokens": 40}
    response = ask(thinking, "/v1/responses", **own, thinking_token_budget=budget)
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == budget + len(CLOSING)
    bounded = {"type": "enabled", "budget_tokens": budget}
    own = {"temperature": 0, "messages": MESSAGES, "max_tokens": 40}
    blocks = ask(thinking, "/v1/messages", **own, thinking=bounded)["content"]
    texts = {block["type"]: block[block["type"]] for block in blocks}
    assert texts["text"] == response["output"][-1]["content"][0]["text"]
    assert num_tokens(thinking, texts.get("thinking", "")) <= budget


def test_a_plain_prompt_that_opens_reasoning_is_bounded(thinking: Server) -> None:
    own = {"temperature": 0, "max_tokens": 24, "thinking_token_budget": 6, "logprobs": 1}
    prompts = ["Q: 2+2? A: <think>\n", "Q: 2+2? A:"]
    opened, plain = ask(thinking, "/v1/completions", prompt=prompts, **own)["choices"]
    free = ask(thinking, "/v1/completions", prompt=prompts, **own | {"thinking_token_budget": -1})["choices"]
    assert opened["logprobs"]["tokens"][:9] == [*free[0]["logprobs"]["tokens"][:6], "</", "think", ">"]
    assert plain == free[1]


def test_python_bounds_reasoning_by_the_models_template() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, thinking_token_budget=4)
    with LLM(chat_template=TEMPLATE, kv_cache_memory_bytes=KV_CACHE) as llm:
        (outputs,) = llm.chat(MESSAGES, params)
        prompt = outputs.prompt_token_ids
    with in_process.engine(chat_template=TEMPLATE) as engine:
        (same,) = in_process.generate(engine, [{"prompt_token_ids": prompt}], params)
        with pytest.raises(RequestError, match="structured_outputs leave no room for reasoning"):
            engine.add_request("form", prompt, SamplingParams(thinking_token_budget=4, structured_outputs=FORM))
    tokens = outputs.outputs[0].token_ids
    assert tokens[4:7] == CLOSING
    assert same.outputs[0].token_ids == tokens


def test_a_format_follows_the_end_of_reasoning(thinking: Server) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": {**schema, "additionalProperties": False}}}
    for budget in BUDGETS:
        whole = chat(thinking, temperature=0, max_tokens=60, response_format=form, thinking_token_budget=budget)
        (choice,) = whole["choices"]
        assert json.loads(choice["message"]["content"])["city"] in ("Paris", "Rome")
        assert choice["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + len(CLOSING)


@pytest.mark.parametrize(
    ("title", "num_events"),
    [
        (WORKER, 4),
        (CORE, 12),
        full(WORKER, 12),
        full(CORE, 4),
    ],
)
def test_an_answer_goes_on_after_a_crash_as_it_would_have(thinking: Server, title: str, num_events: int) -> None:
    """Before its reasoning has ended, and after that."""
    body: dict[str, Any] = {"messages": MESSAGES, **DRAWN, "thinking_token_budget": 9}
    expected = chat(thinking, **DRAWN, thinking_token_budget=9)["choices"][0]["message"]
    texts = {"reasoning": "", "content": ""}
    process = thinking.titled(title)
    with thinking.http() as http, http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {"))
        for index, line in enumerate(lines):
            if index == num_events:
                process.kill()
            delta = json.loads(line)["choices"][0]["delta"]
            for name in texts:
                texts[name] += delta.get(name) or ""
    assert texts == {name: expected[name] for name in texts}
    assert thinking.titled(title).pid != process.pid
