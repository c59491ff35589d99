"""One embedding over a fake core: it comes once, whole, or with the reason why not."""

import asyncio
from array import array

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.embedding import Embedding
from pyllm.errors import DeadlineError, EngineDeadError, PyllmError, RequestError, RequestTooLargeError
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.messages import POOLING, PROTOCOL_VERSION, Abort, FinishCode, Ready, Rejected, Submit
from tests.client.fake_core import EPOCH, MODEL, FakeCore, Row, connected

VECTOR = (0.5, -0.25, 0.125, 1.0)


async def asked(core: FakeCore) -> tuple[EngineClient, "asyncio.Task[Embedding]", int]:
    """A client that waits for an embedding, and the request's number on the wire."""
    client = await connected(core)
    embedding = asyncio.create_task(client.embed([5, 6, 7]))
    await asyncio.sleep(0)
    return client, embedding, core.sent(Submit)[-1].request


async def test_the_vector_comes_with_the_end_of_the_request() -> None:
    core = FakeCore()
    client, embedding, request = await asked(core)
    core.say_rows(Row(999, [], embedding=(9.0,)), Row(request, [], 0, 0, FinishCode.STOP, 2, embedding=VECTOR))
    assert await embedding == Embedding(array("f", VECTOR), 2)
    assert (client.num_requests, core.sent(Abort)) == (0, [])


async def test_what_is_asked_is_the_prompt_and_its_place_among_others() -> None:
    core = FakeCore()
    client = await connected(core)
    scheduling = SchedulingParams(priority=3, tenant="acme", timeout=5.0, cache_salt="salt", kv_cache_retention="none")
    embedding = asyncio.create_task(client.embed([5] * MODEL.max_model_len, scheduling))
    await asyncio.sleep(0)
    (submit,) = core.sent(Submit)
    assert (submit.prompt, submit.max_tokens) == (array("i", [5] * MODEL.max_model_len).tobytes(), 0)
    assert (submit.sampling, submit.n, submit.outputs) == (POOLING["last"], 1, ())
    assert (submit.priority, submit.tenant, submit.timeout) == (3, "acme", 5.0)
    assert (submit.cache_salt, submit.kv_cache_retention) == ("salt", "none")
    embedding.cancel()


@pytest.mark.parametrize("kind", ["mean", "cls"])
async def test_the_kind_of_pooling_is_the_models(kind: str) -> None:
    core = FakeCore(msgspec.structs.replace(MODEL, pooling=kind))
    _, embedding, _ = await asked(core)
    assert core.sent(Submit)[-1].sampling == POOLING[kind]
    embedding.cancel()


@pytest.mark.parametrize(("sizes", "refused"), [((), "from 1 to 4, got 5"), ((2, 4), "one of 2, 4, got 3, for which")])
async def test_it_is_cut_where_the_model_was_trained_for_it(sizes: tuple[int, ...], refused: str) -> None:
    core = FakeCore(msgspec.structs.replace(MODEL, is_matryoshka=True, matryoshka_dimensions=sizes))
    client = await connected(core)
    embedding = asyncio.create_task(client.embed([5], dimensions=2))
    await asyncio.sleep(0)
    core.say_rows(Row(core.sent(Submit)[-1].request, [], 0, 0, FinishCode.STOP, embedding=(3.0, 4.0, 9.0, 9.0)))
    assert (await embedding).values == array("f", (0.6, 0.8))
    with pytest.raises(RequestError, match=refused):
        await client.embed([5], dimensions=3 if sizes else 5)


async def test_a_core_that_forgot_the_client_is_asked_again() -> None:
    core = FakeCore()
    _, embedding, request = await asked(core)
    core.say(Ready(PROTOCOL_VERSION, EPOCH, MODEL, "fingerprint"))
    first, again = core.sent(Submit)
    assert (again.prompt, again.sampling, again.outputs) == (first.prompt, first.sampling, ())
    core.say_rows(Row(request, [], finish=FinishCode.STOP, embedding=(9.0,)))
    core.say_rows(Row(again.request, [], finish=FinishCode.STOP, embedding=VECTOR))
    assert (await embedding).values == array("f", VECTOR)


async def test_cancelling_aborts_the_request() -> None:
    core = FakeCore()
    client, embedding, request = await asked(core)
    embedding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await embedding
    assert core.sent(Abort) == [Abort(EPOCH, request)]
    core.say_rows(Row(request, [], finish=FinishCode.ABORT))
    assert client.num_requests == 0


@pytest.mark.parametrize(
    ("finish", "error", "text"),
    [
        (FinishCode.DEADLINE, DeadlineError, "timeout"),
        (FinishCode.ABORT, PyllmError, "aborted"),
        (FinishCode.STOP, EngineDeadError, "without an embedding"),
        (FinishCode.ERROR, EngineDeadError, "without an embedding"),
    ],
)
async def test_an_end_without_a_vector_is_an_error(finish: FinishCode, error: type[PyllmError], text: str) -> None:
    core = FakeCore()
    _, embedding, request = await asked(core)
    core.say_rows(Row(request, [], finish=finish))
    with pytest.raises(error, match=text):
        await embedding


async def test_what_the_core_rejects_fails() -> None:
    core = FakeCore()
    _, embedding, request = await asked(core)
    core.say(Rejected(request, "too_large", "it can never fit"))
    with pytest.raises(RequestTooLargeError, match="never fit"):
        await embedding


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "empty"),
        ([5, MODEL.vocab_size], "outside the vocabulary of 600"),
        ([5] * (MODEL.max_model_len + 1), "maximum context length is 256 tokens. However, your input has 257"),
    ],
)
async def test_what_cannot_run_is_refused_at_once(prompt: list[int], text: str) -> None:
    core = FakeCore()
    client = await connected(core)
    with pytest.raises(RequestError, match=text):
        await client.embed(prompt)
    assert core.sent(Submit) == []
