"""A check generates one real token; however many ask, few are generated."""

import asyncio

import pytest

from pyllm.errors import GivenUpError
from pyllm.frontend.generation_check import VALIDITY, GenerationCheck
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Abort, Submit
from tests.client.fake_core import ScriptedCore, connected
from tests.frontend.serving import answering, in_process


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def submits(core: ScriptedCore) -> list[Submit]:
    return [message for message in core.received if isinstance(message, Submit)]


async def test_one_token_answers_all_who_ask_within_a_second(tokenizer: Tokenizer) -> None:
    core, clock = answering(tokenizer, "ok"), Clock()
    client = await connected(core)
    check = GenerationCheck(client, clock)
    assert await asyncio.gather(*(check.trouble() for _ in range(50))) == [""] * 50
    clock.now += VALIDITY / 2
    assert await check.trouble() == ""
    assert [(submit.max_tokens, submit.n) for submit in submits(core)] == [(1, 1)]
    clock.now += VALIDITY / 2
    assert await check.trouble() == ""
    assert len(submits(core)) == 2
    client.close()


async def test_without_a_token_it_says_so_and_ends_its_request(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    client = await connected(core)
    assert await GenerationCheck(client, patience=0.01).trouble() == "the engine gave no token within 0.01 s"
    assert len([message for message in core.received if isinstance(message, Abort)]) == 1
    client.close()


async def test_tokens_of_others_show_the_same(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    client = await connected(core)
    counts = iter([5, 6])
    core.on_stats = lambda: {"num_computed_tokens": next(counts)}
    assert await GenerationCheck(client, patience=0.01).trouble() == ""
    client.close()


async def test_who_leaves_does_not_end_it_for_the_others(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    client = await connected(core)
    check = GenerationCheck(client, lambda: 0)
    first, second = asyncio.create_task(check.trouble()), asyncio.create_task(check.trouble())
    await asyncio.sleep(0)
    first.cancel()
    core.resume()
    assert await second == ""
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(submits(core)) == 1
    client.close()


async def test_the_route_is_a_probe(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        good = await frontend.http.get("/health_generate")
        assert (good.status_code, good.json()["status"]) == (200, "generating")
        assert len(submits(frontend.core)) == 1
        frontend.client.give_up(GivenUpError("core 0 died 10 times"))
        bad = await frontend.http.get("/health_generate")
        assert (bad.status_code, bad.json()["reason"]) == (503, "core 0 died 10 times")
