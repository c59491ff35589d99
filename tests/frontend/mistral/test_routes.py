"""`/v1/fim/completions` over a scripted core: the prompt, the answer, the stream, and its refusal."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.serving import Frontend, answering, in_process
from tests.frontend.text import tiny_tokenizers

PATH = "/v1/fim/completions"
TEXT = "return a + b"


@pytest.fixture
def coder(tmp_path: Path) -> Tokenizer:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"])
    return tiny_tokenizers.load(made, tmp_path)


async def fill(frontend: Frontend, **body: Any) -> Any:
    response = await frontend.http.post(PATH, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(tokenizer: Tokenizer, submit: Submit) -> str:
    return tokenizer.decode(array("i", submit.prompt).tolist(), False)


async def test_an_answer_has_the_shape_of_a_chat(coder: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT), coder) as frontend:
        answer = await fill(frontend, prompt="def add", suffix="\n", max_tokens=50, metadata={"a": "b"})
        (submit,) = frontend.core.sent(Submit)
    assert prompt_of(coder, submit) == "<|fim_prefix|>def add<|fim_suffix|>\n<|fim_middle|>"
    assert coder.added_token_id("<|fim_pad|>") in array("i", submit.stop_token_ids)
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", TEXT)
    assert answer["usage"]["completion_tokens"] == len(coder.encode(TEXT)) + 1


async def test_mistrals_parameters_reach_the_engine(coder: Tokenizer) -> None:
    body = {"prompt": "a", "suffix": "b", "max_tokens": 6, "min_tokens": 2, "random_seed": 7, "temperature": 0.5}
    async with in_process(answering(coder, TEXT), coder) as frontend:
        limited = await fill(frontend, **body, top_p=0.9)
        stopped = await fill(frontend, prompt="a", suffix="b", stop=["+"])
        first, _ = frontend.core.sent(Submit)
    assert (first.max_tokens, first.sampling.min_tokens, first.seed) == (6, 2, 7)
    assert (first.sampling.temperature, first.sampling.top_p) == (0.5, 0.9)
    assert limited["choices"][0]["finish_reason"] == "length"
    assert stopped["choices"][0]["message"]["content"] == "return a "


async def test_a_stream_adds_up_to_the_answer_and_each_chunk_has_a_choice(coder: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT), coder) as frontend:
        whole = await fill(frontend, prompt="a", suffix="b")
        response = await frontend.http.post(PATH, json={"prompt": "a", "suffix": "b", "stream": True})
    *events, done = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    chunks = [json.loads(event) for event in events if not event.startswith("id: ")]
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == whole["usage"]


async def test_without_a_suffix_the_prompt_goes_on(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        for body in ({}, {"suffix": ""}, {"suffix": None}):
            assert (await fill(frontend, prompt="a", **body))["choices"][0]["message"]["content"] == TEXT
        assert {prompt_of(tokenizer, submit) for submit in frontend.core.sent(Submit)} == {"a"}


async def test_a_model_without_tokens_for_it_refuses_as_completions_do(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        refused, same = [
            await frontend.http.post(path, json={"prompt": "a", "suffix": "b"}) for path in (PATH, "/v1/completions")
        ]
    assert refused.status_code == same.status_code == 400
    assert refused.json() == same.json()
