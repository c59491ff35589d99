"""`/tokenize` and `/detokenize` are vLLM's."""

import threading
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL
from tests.frontend.serving import STRICT, TEMPLATE, answering, in_process

MESSAGES = [{"role": "user", "content": "Hello"}]


async def post(tokenizer: Tokenizer, route: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post(route, json=body)
        return response.status_code, response.json()


async def test_a_prompt_is_counted_and_spelt(tokenizer: Tokenizer) -> None:
    _, answer = await post(tokenizer, "/tokenize", {"prompt": "Hello world", "return_token_strs": True})
    tokens = tokenizer.encode("Hello world")
    assert answer == {"count": 2, "max_model_len": 256, "tokens": tokens, "token_strs": ["Hello", "Ġworld"]}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "<|start|>user: Hello<|end|><|start|>"),
        ({"add_generation_prompt": False}, "<|start|>user: Hello<|end|>"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "<|start|>user: Hello"),
    ],
)
async def test_a_conversation_is_what_chat_would_make_of_it(
    tokenizer: Tokenizer, options: dict[str, Any], text: str
) -> None:
    _, answer = await post(tokenizer, "/tokenize", {"messages": MESSAGES, **options})
    assert answer["tokens"] == tokenizer.encode(text)
    assert answer["token_strs"] is None


async def test_what_is_longer_than_the_context_is_counted_too(tokenizer: Tokenizer) -> None:
    for body in ({"prompt": "x" * 10_000}, {"messages": [{"role": "user", "content": "x" * 10_000}]}):
        status, answer = await post(tokenizer, "/tokenize", body)
        assert status == 200
        assert answer["count"] >= 10_000


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": MESSAGES}, "prompt"),
        ({"prompt": "x", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": []}, "messages"),
        ({"messages": MESSAGES, "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    ],
)
async def test_what_is_no_prompt_is_refused_by_name(tokenizer: Tokenizer, body: dict[str, Any], parameter: str) -> None:
    status, answer = await post(tokenizer, "/tokenize", body)
    assert (status, answer["error"]["param"]) == (400, parameter)


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"messages": MESSAGES}])
async def test_unknown_fields_are_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, body: dict[str, Any]
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        plain = await frontend.http.post("/tokenize", json=body)
        told = await frontend.http.post("/tokenize", json={**body, "nope": 1})
    assert (told.status_code, told.json()) == (200, plain.json())
    assert told.headers["pyllm-ignored-fields"] == "nope"
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=STRICT) as frontend:
        refusal = await frontend.http.post("/tokenize", json={**body, "nope": 1})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "nope")


@pytest.mark.parametrize("number", [1, 1000])
async def test_many_tokens_are_looked_up_off_the_event_loop(tokenizer: Tokenizer, number: int) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        thread = await frontend.state.prompts.run(number, threading.current_thread)
    assert (thread is threading.current_thread()) == (number == 1)


async def test_long_prompts_are_spelt_and_become_text_again(tokenizer: Tokenizer) -> None:
    text = "Hello world" * 500
    _, answer = await post(tokenizer, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert answer["token_strs"] == tokenizer.token_names(answer["tokens"])
    assert await post(tokenizer, "/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})


async def test_tokens_become_the_text_that_they_came_from(tokenizer: Tokenizer) -> None:
    text = "<|start|>Hello 🙂 world<|end|>"
    assert await post(tokenizer, "/detokenize", {"tokens": tokenizer.encode(text)}) == (200, {"prompt": text})
    assert await post(tokenizer, "/detokenize", {"tokens": []}) == (200, {"prompt": ""})


@pytest.mark.parametrize("token", [-1, 600, 2**63])
async def test_a_token_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, token: int) -> None:
    status, answer = await post(tokenizer, "/detokenize", {"tokens": [5, token]})
    assert (status, answer["error"]["param"]) == (400, "tokens")
    assert str(token) in answer["error"]["message"]


@pytest.mark.parametrize(("route", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})])
async def test_another_model_is_not_found(tokenizer: Tokenizer, route: str, body: dict[str, Any]) -> None:
    status, answer = await post(tokenizer, route, {"model": "other", **body})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_the_tokenizer_says_what_lm_eval_asks_of_it(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        info = (await frontend.http.get("/tokenizer_info")).json()
        assert info["chat_template"] == TEMPLATE
        assert info["model_max_length"] == MODEL.max_model_len
        # lm-eval takes the first token of the text for the token's id.
        body = {"prompt": info["eos_token"], "add_special_tokens": False}
        assert (await frontend.http.post("/tokenize", json=body)).json()["tokens"] == list(MODEL.eos_token_ids)
    async with in_process(answering(tokenizer, "ok"), tokenizer, template=None) as frontend:
        assert (await frontend.http.get("/tokenizer_info")).json()["chat_template"] is None
