"""A load on a real socket: what the client notes is what the server's own record says."""

import asyncio
from collections.abc import Sequence

import pytest

from pyllm.bench.bench_defaults import CHAT, COMPLETIONS
from pyllm.bench.endpoint import Endpoint
from pyllm.bench.load_run import LoadResult, Timed, run_load
from pyllm.bench.prompt_sets import Prompt
from tests.bench.scripted_server import Script, ScriptedServer, scripted_server


def endpoint(server: ScriptedServer, *, chat: bool = False) -> Endpoint:
    return Endpoint(server.address, path=CHAT if chat else COMPLETIONS, chat=chat, model="scripted")


def prompts(number: int, tokens: int = 3) -> list[Prompt]:
    return [Prompt(f"prompt {index}", tokens) for index in range(number)]


async def load(
    there: Endpoint, sent: Sequence[Prompt], max_concurrency: int | None = None, seconds_each: float | None = None
) -> LoadResult:
    requests = [Timed(there.request(prompt)) for prompt in sent]
    with there.client() as client:
        return await run_load(client, requests, max_concurrency, seconds_each=seconds_each)


@pytest.mark.parametrize("chat", [False, True])
async def test_every_token_is_noted_after_the_server_sent_it(chat: bool) -> None:
    """Sending comes before receiving, and a token before its note: the client's latencies bound the server's."""
    async with scripted_server(Script(ttft=0.01, itl=0.002)) as server:
        result = await load(endpoint(server, chat=chat), prompts(6), 2)
    assert [record.error for record in result.records] == [""] * 6
    true = {sent.prompt: sent for sent in server.sent}
    for record in result.records:
        sent = true[f"prompt {record.prompt}"]
        assert len(record.arrivals) == record.output_tokens == len(sent.tokens) == 3
        assert record.ttft >= sent.ttft >= 0.01
        assert record.e2el >= sent.tokens[-1] - sent.received >= 0.014
    assert server.connections == 2  # which were kept for all six


async def test_no_more_run_at_once_than_allowed() -> None:
    async with scripted_server(Script(ttft=0.005)) as server:
        result = await load(endpoint(server), prompts(9), 3)
    spans = [(record.sent, record.ended) for record in result.records]
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= 3


async def test_requests_go_out_when_they_are_due() -> None:
    async with scripted_server() as server:
        there = endpoint(server)
        due = [0.0, 0.01, 0.02]
        requests = [Timed(there.request(prompt), at) for prompt, at in zip(prompts(3), due, strict=True)]
        with there.client() as client:
            result = await run_load(client, requests)
    assert all(record.sent >= record.due for record in result.records)
    assert [sent.prompt for sent in server.sent] == ["prompt 0", "prompt 1", "prompt 2"]


async def test_a_failure_is_named_and_ends_nothing_else() -> None:
    failures = {"prompt 1": "busy", "prompt 2": "error", "prompt 3": "break"}
    async with scripted_server(Script(fail=lambda prompt: failures.get(prompt, ""))) as server:
        result = await load(endpoint(server), prompts(5), 1)
    assert [record.error for record in result.records] == [
        "",
        "HTTP 429: too many requests",
        "an error in the stream: the model is lost",
        "the answer broke off after 1 chunks",
        "",
    ]


async def test_a_request_that_takes_too_long_fails() -> None:
    async with scripted_server(Script(ttft=60.0)) as server:
        result = await load(endpoint(server), prompts(2), seconds_each=0.02)
    assert [record.error for record in result.records] == ["no whole answer within 0.02 s"] * 2


async def test_a_connection_that_the_server_closed_is_replaced() -> None:
    async with scripted_server() as server:
        there = endpoint(server)
        request = Timed(there.request(Prompt("one", 1)))
        with there.client() as client:
            assert (await run_load(client, [request], 1)).records[0].error == ""
            server.close_connections()
            again = await run_load(client, [request], 1)
    assert again.records[0].error == ""
    assert server.connections == 2


async def test_cancelling_gives_what_was_measured() -> None:
    async with scripted_server(Script(fail=lambda prompt: "hang" if prompt == "prompt 1" else "")) as server:
        task = asyncio.create_task(load(endpoint(server), prompts(4), 1))
        while len(server.sent) < 2:
            await asyncio.sleep(0)
        task.cancel()
        result = await task
    assert [record.prompt for record in result.records] == [0]
    assert result.unfinished == 3


async def test_no_server_is_a_failure_of_each_request() -> None:
    async with scripted_server() as server:
        there = endpoint(server)
    result = await load(there, prompts(2))
    assert all(record.error.startswith("no connection") for record in result.records)
