"""Figures of a load, the answers that it refuses to count, and its requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.servers.load import (
    Figures,
    Request,
    conversation_requests,
    equal_requests,
    measure,
    mixed_requests,
    natural_requests,
)

DONE = "[DONE]"
Pieces = list[bytes]


def chunk(text: str, finish_reason: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def usage(prompt_tokens: int, completion_tokens: int) -> str:
    return json.dumps(
        {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}}
    )


def answer(*events: str) -> bytes:
    """An HTTP answer in which each event is a chunk."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in (f"data: {event}\n\n".encode() for event in events))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


@asynccontextmanager
async def server(pieces: Pieces, seen: list[dict[str, object]]) -> AsyncIterator[str]:
    """Answers every request with the same pieces, each sent by itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        seen.append(json.loads(await reader.readexactly(length)))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        host, port = listener.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def load(pieces: Pieces, number: int = 1, concurrency: int = 1, output_tokens: int = 3) -> Figures:
    async with server(pieces, []) as address:
        return await measure(address, "model", [Request("a prompt", output_tokens)] * number, concurrency)


WHOLE = answer(chunk("a"), chunk("b"), chunk("cd"), usage(5, 3), DONE)


async def test_the_figures_of_a_load() -> None:
    figures = await load([WHOLE], number=5, concurrency=2)
    assert (figures.requests, figures.concurrency, figures.prompt_tokens) == (5, 2, 5)
    assert figures.tokens_per_chunk == 1.0
    assert 0 <= figures.ttft_p50_ms <= figures.e2e_p50_ms


@pytest.mark.parametrize(
    ("pieces", "what"),
    [
        ([answer(chunk("a"), usage(5, 2), DONE)], "2 tokens came from .*, 3 were asked for"),
        ([answer(chunk("a"), DONE)], "no usage"),
        ([WHOLE[:200]], "broke off"),
    ],
)
async def test_a_load_with_an_answer_that_is_not_whole_gives_no_figures(pieces: Pieces, what: str) -> None:
    with pytest.raises(RuntimeError, match=what):
        await load(pieces)


async def test_what_is_asked_for() -> None:
    seen: list[dict[str, object]] = []
    async with server([answer(chunk("a"), usage(2, 1), DONE)], seen) as address:
        await measure(address, "model", [Request("two words", 1)], 1)
    (body,) = seen
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("two words", 1, 0)
    assert body["ignore_eos"]
    assert body["stream"]


def test_prompts_share_what_they_are_told_to_and_no_more() -> None:
    prompts = [request.prompt.split() for request in equal_requests(4, 30, 7, shared_tokens=20, seed=3)]
    assert {len(prompt) for prompt in prompts} == {30}
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 1
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 4
    assert equal_requests(4, 30, 7, 20, 3) == equal_requests(4, 30, 7, 20, 3) != equal_requests(4, 30, 7, 20, 4)


def test_natural_prompts_begin_sentences_and_share_no_beginning() -> None:
    prompts = [request.prompt for request in natural_requests(64, 80, 7, seed=3)]
    assert {len(prompt.split()) for prompt in prompts} == {80}
    assert len({tuple(prompt.split()[:8]) for prompt in prompts}) == 64
    assert natural_requests(4, 80, 7, 3) == natural_requests(4, 80, 7, 3) != natural_requests(4, 80, 7, 4)


def test_mixed_requests_keep_to_their_bounds() -> None:
    requests = mixed_requests(200, 5, 9)
    assert {len(request.prompt.split()) for request in requests} == {5, 6, 7, 8, 9}
    assert {request.output_tokens for request in requests} == {5, 6, 7, 8, 9}


def test_conversations_grow_and_share_nothing_with_others() -> None:
    requests = [request.prompt.split() for request in conversation_requests(50, (1, 2), 20, 8)]
    assert [len(prompt) for prompt in requests] == 50 * [20] + 50 * [40]
    assert all(later[:20] == first for first, later in zip(requests[:50], requests[50:], strict=True))
    assert len({tuple(prompt[:8]) for prompt in requests}) == 50
