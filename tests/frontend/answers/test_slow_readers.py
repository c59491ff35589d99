"""What a stream holds for a reader that does not read: its text and tokens at most, and not for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from pyllm.frontend.answers.answer import StreamedAnswer
from pyllm.frontend.answers.resumable import ResumableAnswer
from pyllm.frontend.http.event_ids import Position
from pyllm.frontend.openai.completion_format import CompletionFormat
from pyllm.frontend.openai.protocol import CompletionRequest
from pyllm.frontend.requests.admission_ticket import Ticket
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.messages import Abort
from tests.client.fake_core import MODEL, ScriptedCore, connected
from tests.frontend.http.test_pushed_response import Socket, serve
from tests.frontend.serving import state_of
from tests.waiting import until

NUM_TOKENS = 2000
LONG = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)


@asynccontextmanager
async def answering(
    tokenizer: Tokenizer, n: int, *, has_ids: bool
) -> AsyncGenerator[tuple[StreamedAnswer | ResumableAnswer, ScriptedCore], None]:
    """One answer of `NUM_TOKENS` a choice, each of one character, and the core that it comes from."""
    tokens = tokenizer.encode("x" * NUM_TOKENS, add_special_tokens=False)
    core = ScriptedCore(lambda prompt, sample: tokens, LONG)
    client = await connected(core)
    state = state_of(client, tokenizer)
    context = RequestContext("id", ticket=Ticket(state.shared, 1, 0.0))
    params = SamplingParams(n=n, max_tokens=NUM_TOKENS)
    generation = Generation(state, [[5]], params, SchedulingParams(), context)
    answer_format = CompletionFormat(state, context, CompletionRequest(prompt="", n=n))
    if has_ids:
        yield ResumableAnswer.from_position(generation, answer_format, Position("id", 0)), core
    else:
        yield StreamedAnswer(generation, answer_format), core
    client.close()


def num_held(answer: Any) -> int:
    """Characters, tokens and bytes that wait for the reader."""
    pending = sum(len(delta.text) + len(delta.tokens) for delta in answer._pending.values())
    return pending + sum(len(message.get("body", b"")) for message in answer._channel._waiting)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("has_ids", [False, True])
async def test_what_waits_is_merged_and_nothing_is_lost(tokenizer: Tokenizer, n: int, has_ids: bool) -> None:
    async with answering(tokenizer, n, has_ids=has_ids) as (answer, core):
        socket = Socket()
        socket.open.clear()
        task = await serve(answer, socket)
        most = 0
        while core.running:
            most = max(most, num_held(answer))
            await asyncio.sleep(0)
        most = max(most, num_held(answer))
        assert n * NUM_TOKENS <= most <= 2 * n * NUM_TOKENS + 1000
        assert socket.taken == []
        socket.open.set()
        await task
    blocks = [block.rpartition(b"data: ")[2] for block in socket.body.split(b"\n\n")[:-1]]
    texts = [""] * n
    for block in blocks[:-1]:
        for choice in msgspec.json.decode(block)["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["x" * NUM_TOKENS] * n
    assert blocks[-1] == b"[DONE]"
    assert len(blocks) < 3 * n + 3


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("has_ids", [False, True])
async def test_a_reader_that_stops_is_aborted(tokenizer: Tokenizer, n: int, has_ids: bool) -> None:
    async with answering(tokenizer, n, has_ids=has_ids) as (answer, core):
        socket = Socket()
        socket.open.clear()
        task = await serve(answer, socket, patience=0.0)
        await task
        assert len(core.sent(Abort)) == 1
        assert core.running == {}


@pytest.mark.parametrize("has_ids", [False, True])
async def test_a_reader_that_leaves_frees_its_request_before_the_next_step(tokenizer: Tokenizer, has_ids: bool) -> None:
    async with answering(tokenizer, 2, has_ids=has_ids) as (answer, core):
        socket = Socket()
        task = await serve(answer, socket)
        await until(lambda: socket.body)
        core.paused = True  # no step is taken meanwhile
        socket.disconnected.set()
        await task
        assert len(core.sent(Abort)) == 1
        assert core.running == {}
