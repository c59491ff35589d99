"""What one HTTP request has the engine do, as every API tells of it."""

import asyncio
import re
from array import array
from typing import Any

import msgspec
import pytest

from pyllm.client.logprobs import LogprobEntries
from pyllm.errors import PyllmError
from pyllm.frontend.requests.admission_ticket import Ticket
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.messages import FinishCode, Submit
from tests.client.fake_core import MODEL, ExpiringCore, FakeCore, Row, connected
from tests.frontend.serving import answering, in_process, state_of
from tests.waiting import until

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


async def test_a_prompt_alone_counts_as_no_output_and_ends_for_the_reason_that_it_had(tokenizer: Tokenizer) -> None:
    body = {"prompt": "x", "n_predict": 0}
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        whole = (await frontend.http.post("/v1/completions", json=body)).json()
        metrics = (await frontend.http.get("/metrics")).text
        frontend.core.paused = True
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body))
        await until(lambda: len(frontend.core.sent(Submit)) == 2)
        request = frontend.core.sent(Submit)[-1].request
        frontend.core.say_rows(Row(request, [], 0, 0, FinishCode.ABORT))
        aborted = (await asking).json()
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert (whole["usage"]["completion_tokens"], whole["usage"]["prompt_tokens_details"]) == (0, {"cached_tokens": 2})
    assert re.search(r"^vllm:generation_tokens_total\{.*\} 0\.0$", metrics, re.MULTILINE)
    assert re.search(r"^vllm:time_to_first_token_seconds_count\{.*\} 1\.0$", metrics, re.MULTILINE)
    assert [choice["finish_reason"] for choice in aborted["choices"]] == ["abort"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": [USER]}), ("/v1/completions", {"prompt": "x"})],
)
async def test_an_answer_without_tokens_must_be_meant(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        refused = await frontend.http.post(path, json={**body, "max_tokens": 0})
        scored = await frontend.http.post(path, json={**body, "max_tokens": 0, "prompt_logprobs": 1})
    assert (refused.status_code, scored.status_code) == (400, 200), scored.text
    text = "max_tokens must be at least 1, or -1 for no limit, got 0"
    assert (refused.json()["error"]["param"], refused.json()["error"]["message"]) == ("max_tokens", text)
    assert scored.json()["usage"]["completion_tokens"] == 0


class Kept:
    """A sink that keeps each choice's texts and ends."""

    def __init__(self) -> None:
        self.deltas: list[tuple[int, str, str | None]] = []

    def delta(self, index: int, delta: TextDelta) -> None:
        self.deltas.append((index, delta.text, delta.finish_reason))

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        raise AssertionError

    def error(self, error: PyllmError) -> None:
        raise error


async def test_limited_choices_are_shortened_and_end_early_once_all_have_their_text(tokenizer: Tokenizer) -> None:
    core, kept = FakeCore(), Kept()
    client = await connected(core)
    state = state_of(client, tokenizer)
    context = RequestContext("id", ticket=Ticket(state.shared, 1, 0.0))
    generation = Generation(state, [[5], [6]], SamplingParams(n=2), SchedulingParams(), context)
    generation.limit_texts([lambda text: (text[:2], text == "Hello")] * 4)
    generation.start(kept)
    positions = [0] * 4
    (end,), (other,) = (tokenizer.encode(text, add_special_tokens=False) for text in ("Hello", "x"))

    def say(choice: int, tokens: list[int], finish: FinishCode = FinishCode.NONE) -> None:
        prompt, sample = divmod(choice, 2)
        core.say_rows(Row(1 + prompt, tokens, positions[choice], sample, finish))
        positions[choice] += len(tokens)

    for choice, token in [(0, end), (3, other), (0, other), (2, end)]:
        say(choice, [token])
    say(1, [], FinishCode.LENGTH)
    assert not generation.finished
    say(3, [end])
    assert generation.finished
    texts = [(0, "He"), (3, "x"), (0, "x"), (2, "He"), (1, ""), (3, "He"), (0, ""), (2, ""), (3, "")]
    reasons = [None] * 4 + ["length", None] + ["abort"] * 3
    assert kept.deltas == [(*text, reason) for text, reason in zip(texts, reasons, strict=True)]
    client.close()


@pytest.mark.parametrize("starts", [False, True])
async def test_a_generation_submits_from_its_start_on_and_a_closed_one_gives_nothing_more(
    tokenizer: Tokenizer, starts: bool
) -> None:
    core, kept = FakeCore(), Kept()
    client = await connected(core)
    state = state_of(client, tokenizer)
    context = RequestContext("id", ticket=Ticket(state.shared, 1, 0.0))
    generation = Generation(state, [[5]], SamplingParams(), SchedulingParams(), context)
    assert core.sent(Submit) == []
    if starts:
        generation.start(kept)
        core.say_rows(Row(1, tokenizer.encode("a"), 0))
    generation.close()
    generation.close()
    if starts:
        core.say_rows(Row(1, tokenizer.encode("b"), 1))
    assert (generation.finished, len(core.sent(Submit))) == (True, int(starts))
    assert [text for _, text, _ in kept.deltas] == ["a"] * starts
    client.close()
