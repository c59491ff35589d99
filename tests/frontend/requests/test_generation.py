"""What one HTTP request has the engine do, as every API tells of it."""

from array import array
from typing import Any

import msgspec
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ExpiringCore
from tests.frontend.serving import answering, in_process

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/chat/completions", {"messages": [USER]}, lambda answer: answer["choices"][0]["finish_reason"]),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9}, lambda answer: answer["stop_reason"]),
        ("/v1/responses", {"input": "x"}, lambda answer: answer["incomplete_details"]["reason"]),
    ],
)
async def test_a_deadline_looks_like_a_length_and_the_usage_tells_it(
    tokenizer: Tokenizer, path: str, body: dict[str, Any], reason: Any
) -> None:
    async with in_process(ExpiringCore(lambda prompt, sample: tokenizer.encode("ok")), tokenizer) as frontend:
        answer = (await frontend.http.post(path, json=body, headers={"x-request-timeout": "0.5"})).json()
    assert reason(answer) in ("length", "max_tokens", "max_output_tokens")
    assert answer["usage"]["finish_reason"] == "deadline"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": [USER]}, "max_tokens"),
        ("/v1/chat/completions", {"messages": [USER]}, "max_completion_tokens"),
        ("/v1/completions", {"prompt": "x"}, "max_tokens"),
        ("/v1/responses", {"input": "x"}, "max_output_tokens"),
    ],
)
async def test_minus_one_is_no_limit(tokenizer: Tokenizer, path: str, body: dict[str, Any], field: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await frontend.http.post(path, json={**body, field: -1})
        refusal = await frontend.http.post(path, json={**body, field: -2})
        (submit,) = frontend.core.sent(Submit)
    assert answer.status_code == 200, answer.text
    assert submit.max_tokens == MODEL.max_model_len - len(array("i", submit.prompt))
    assert refusal.status_code == 400


async def test_an_answer_has_only_so_many_log_probabilities_of_a_vocabulary(tokenizer: Tokenizer) -> None:
    model = msgspec.structs.replace(MODEL, max_logprobs=MODEL.vocab_size)
    whole: dict[str, Any] = {"prompt": "x", "n": 8, "logprobs": -1}
    async with in_process(answering(tokenizer, "ok", model), tokenizer) as frontend:
        refusals = [
            await frontend.http.post("/v1/completions", json=body)
            for body in (
                whole | {"max_tokens": 250},
                {"prompt": [[5] * 250] * 8, "max_tokens": 1, "prompt_logprobs": -1},
            )
        ]
        few = await frontend.http.post("/v1/completions", json=whole | {"max_tokens": 2})
        narrow = await frontend.http.post("/v1/completions", json=whole | {"logprobs": 20, "max_tokens": 250})
    assert [refusal.status_code for refusal in refusals] == [400] * 2
    assert [refusal.json()["error"]["param"] for refusal in refusals] == ["logprobs", "prompt_logprobs"]
    assert "250 output tokens of 8 choices with 601 each are 1202000" in refusals[0].text
    assert (few.status_code, narrow.status_code) == (200, 200), few.text
