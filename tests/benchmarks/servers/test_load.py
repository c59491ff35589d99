"""Figures of a load, the answers that it refuses to count, and its requests."""

import pytest

from benchmarks.servers.load import (
    conversation_requests,
    equal_requests,
    measure,
    mixed_requests,
    natural_requests,
)
from pyllm.bench.prompt_sets import Prompt
from tests.bench.scripted_server import Script, scripted_server


async def test_the_figures_of_a_load() -> None:
    async with scripted_server() as server:
        figures = await measure(server.address, "scripted", [Prompt("two words", 3)] * 5, 2)
    assert (figures["requests"], figures["concurrency"], figures["prompt_tokens"]) == (5, 2, 2)
    assert figures["tokens_per_chunk"] == 1.0
    assert 0 <= figures["ttft_p50_ms"] <= figures["e2e_p50_ms"]
    body = server.sent[0].body
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("two words", 3, 0)
    assert body["ignore_eos"]
    assert body["stream"]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (Script(fail=lambda _: "short"), "2 tokens came from .*, 3 were asked for"),
        (Script(with_usage=False), "no usage"),
        (Script(fail=lambda _: "break"), "broke off"),
    ],
)
async def test_a_load_with_an_answer_that_is_not_whole_gives_no_figures(script: Script, what: str) -> None:
    async with scripted_server(script) as server:
        with pytest.raises(RuntimeError, match=what):
            await measure(server.address, "scripted", [Prompt("a prompt", 3)], 1)


def test_prompts_share_what_they_are_told_to_and_no_more() -> None:
    prompts = [request.text.split() for request in equal_requests(4, 30, 7, shared_tokens=20, seed=3)]
    assert {len(prompt) for prompt in prompts} == {30}
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 1
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 4
    assert equal_requests(4, 30, 7, 20, 3) == equal_requests(4, 30, 7, 20, 3) != equal_requests(4, 30, 7, 20, 4)


def test_natural_prompts_begin_sentences_and_share_no_beginning() -> None:
    prompts = [request.text for request in natural_requests(64, 80, 7, seed=3)]
    assert {len(prompt.split()) for prompt in prompts} == {80}
    assert len({tuple(prompt.split()[:8]) for prompt in prompts}) == 64
    assert natural_requests(4, 80, 7, 3) == natural_requests(4, 80, 7, 3) != natural_requests(4, 80, 7, 4)


def test_mixed_requests_keep_to_their_bounds() -> None:
    requests = mixed_requests(200, 5, 9)
    assert {len(request.text.split()) for request in requests} == {5, 6, 7, 8, 9}
    assert {request.output_tokens for request in requests} == {5, 6, 7, 8, 9}


def test_conversations_grow_and_share_nothing_with_others() -> None:
    requests = [request.text.split() for request in conversation_requests(50, (1, 2), 20, 8)]
    assert [len(prompt) for prompt in requests] == 50 * [20] + 50 * [40]
    assert all(later[:20] == first for first, later in zip(requests[:50], requests[50:], strict=True))
    assert len({tuple(prompt[:8]) for prompt in requests}) == 50
