"""A request that is repeated with its key reads the answer that is on its way, whichever process it comes to."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.idempotency_records import READER_ABSENCE
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Abort, Rejected, Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.serving import Frontend, behind_uvicorn, events
from tests.waiting import until

TEXT = "Hello 🙂 world, how is the sea? "
LONG_TEXT = TEXT * 12
LONG = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)
PATH = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "x", "stream": True, "max_tokens": 100}
KEY = {"idempotency-key": "key"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """API processes with the state that they share, each over a core of its own."""

    def __init__(self, frontends: list[Frontend], state: SharedState, clock: Clock) -> None:
        self.frontends = frontends
        self.state = state
        self.clock = clock

    @property
    def submits(self) -> list[Submit]:
        return [submit for frontend in self.frontends for submit in frontend.core.sent(Submit)]

    async def post(self, index: int, headers: dict[str, str], **changes: Any) -> httpx.Response:
        return await self.frontends[index].http.post(PATH, json=BODY | changes, headers=headers)


@asynccontextmanager
async def serving(tokenizer: Tokenizer, text: str = TEXT, count: int = 2) -> AsyncGenerator[Server, None]:
    clock = Clock()
    state = SharedState(SharedConfig(), clock)
    tokens = [*tokenizer.encode(text), 0]
    cores = [ScriptedCore(lambda prompt, sample: tokens, LONG) for _ in range(count)]
    async with AsyncExitStack() as stack:
        frontends = [
            await stack.enter_async_context(behind_uvicorn(core, tokenizer, shared=LocalState(state, owner)))
            for owner, core in enumerate(cores)
        ]
        yield Server(frontends, state, clock)


def text_of(response: httpx.Response) -> str:
    return texts_of(response.text)


def texts_of(body: str) -> str:
    blocks = [block.rpartition("data: ")[2] for block in body.split("\n\n")[:-1]]
    assert blocks.pop() == "[DONE]"
    return "".join(msgspec.json.decode(block)["choices"][0]["text"] for block in blocks)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_repeated_request_is_the_same_answer_and_runs_once(tokenizer: Tokenizer, streamed: bool) -> None:
    async with serving(tokenizer) as server:
        answers = await asyncio.gather(*(server.post(index % 2, KEY, stream=streamed) for index in range(6)))
        answers.append(await server.post(1, KEY, stream=streamed))
    assert len({answer.content for answer in answers}) == len(server.submits) == 1
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["content-type"] for answer in answers} == {answers[0].headers["content-type"]}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 7
    text = text_of(answers[0]) if streamed else answers[0].json()["choices"][0]["text"]
    assert text == TEXT


async def test_one_that_comes_later_reads_from_the_beginning_while_the_first_still_runs(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG_TEXT) as server:
        async with server.frontends[0].http.stream("POST", PATH, json=BODY | {"max_tokens": 300}, headers=KEY) as first:
            await anext(aiter(first.aiter_raw()))
            server.frontends[0].core.paused = True
            second = asyncio.create_task(server.post(1, KEY, max_tokens=300))
            (record,) = server.state.records._by_number.values()
            await until(lambda: len(record.readers) == 2)
        assert not second.done()
        server.frontends[0].core.resume()  # the first client has gone
        assert len(text_of(await second)) > 100
        assert len(server.submits) == 1
        assert server.frontends[0].core.sent(Abort) == []


async def test_a_reader_goes_on_after_the_last_event_that_it_saw(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as server:
        whole = (await server.post(0, KEY)).text
        blocks = whole.split("\n\n")
        event = blocks[2].partition("\n")[0].removeprefix("id: ")
        rest = await server.post(1, KEY | {"last-event-id": event})
        assert rest.text == "\n\n".join(blocks[3:])
        assert len(server.submits) == 1
        # An id that the record does not have: the request resumes by itself.
        far = f"{event.rpartition('.')[0]}.5"
        other = await server.post(1, KEY | {"last-event-id": far})
        assert other.text in whole
        assert len(server.submits) == 2
        fresh = await server.post(1, {"idempotency-key": "other", "last-event-id": event})
        assert fresh.text == rest.text
        assert len(server.submits) == 3
        assert len(server.state.records) == 1


async def test_another_request_with_the_same_key_is_refused(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, count=1) as server:
        await server.post(0, KEY)
        other = await server.post(0, KEY, prompt="y")
        chat = await server.frontends[0].http.post("/v1/chat/completions", json=BODY, headers=KEY)
        tenant = await server.post(0, KEY | {"x-llm-d-inference-fairness-id": "acme"}, prompt="y")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_conflict")
    assert chat.status_code == 422
    assert tenant.status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "\u00e4"])
async def test_a_key_is_short_and_printable(tokenizer: Tokenizer, key: str) -> None:
    async with serving(tokenizer, count=1) as server:
        headers = [(b"idempotency-key", key.encode("latin-1"))]
        answer = await server.frontends[0].http.post(PATH, json=BODY, headers=headers)
        assert (await server.post(0, {"idempotency-key": "x" * 255})).status_code == 200
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("streamed", [True, False])
async def test_errors_are_answered_and_not_kept(tokenizer: Tokenizer, streamed: bool) -> None:
    async with serving(tokenizer, count=1) as server:
        refused = await server.post(0, KEY, stream=streamed, max_tokens=-2)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
        assert (await server.post(0, KEY, stream=streamed)).status_code == 200

        core = server.frontends[0].core
        handle = core.handle

        def reject(message: Any) -> None:
            if isinstance(message, Submit):
                core.say(Rejected(message.request, "error", "not now"))
            else:
                handle(message)

        core.handle = reject  # type: ignore[method-assign]  # the script of this test
        other = {"idempotency-key": "other"}
        assert (await server.post(0, other, stream=streamed)).status_code == 500
        core.handle = handle  # type: ignore[method-assign]
        assert (await server.post(0, other, stream=streamed)).status_code == 200


async def test_a_stream_that_ended_with_an_error_is_not_kept(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG_TEXT) as server:
        one, _ = server.frontends
        async with one.http.stream("POST", PATH, json=BODY | {"max_tokens": 300}, headers=KEY) as first:
            pieces = first.aiter_raw()
            await anext(pieces)
            one.core.end()
            rest = b"".join([piece async for piece in pieces])
        assert rest.endswith(b"[DONE]\n\n")
        assert b"the engine was shut down" in rest
        assert LONG_TEXT.startswith(text_of(await server.post(1, KEY, max_tokens=300)))
        assert len(server.submits) == 2


async def test_a_request_with_a_key_outlives_its_reader_for_a_while(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG_TEXT, count=1) as server:
        core = server.frontends[0].core
        core.paused = True
        asking = asyncio.create_task(server.post(0, KEY, max_tokens=300))
        await until(lambda: core.sent(Submit))
        asking.cancel()
        (record,) = server.state.records._by_number.values()
        await until(lambda: not record.readers)
        server.clock.now = READER_ABSENCE - 1
        server.state.records.sweep()
        await asyncio.sleep(0)
        assert core.sent(Abort) == []
        server.clock.now = READER_ABSENCE
        server.state.records.sweep()
        await until(lambda: core.sent(Abort))
        await until(lambda: core.running == {})
        assert len(server.state.records) == 0


async def test_what_a_dead_process_ran_goes_on_in_another(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, TEXT * 4) as server:
        one, two = server.frontends
        first = asyncio.create_task(server.post(0, KEY))
        await until(lambda: one.core.sent(Submit))
        async with two.http.stream("POST", PATH, json=BODY, headers=KEY) as second:
            pieces = second.aiter_raw()
            received = await anext(pieces)
            one.core.paused = True
            first.cancel()
            (record,) = server.state.records._by_number.values()
            await until(lambda: list(record.readers) == [1])
            server.state.drop(0)  # what the state sees of a process that was killed
            received += b"".join([piece async for piece in pieces])
        again = await server.post(1, KEY)
    assert again.content == received
    assert (TEXT * 4).startswith(text_of(again))
    assert len(text_of(again)) > 90
    seeds = [submit.seed for submit in server.submits]
    assert (len(seeds), len(set(seeds))) == (2, 1)


async def test_a_reader_whose_record_is_lost_gets_the_rest_by_itself(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG_TEXT, count=1) as server:
        (one,) = server.frontends
        async with one.http.stream("POST", PATH, json=BODY, headers=KEY) as answer:
            pieces = answer.aiter_raw()
            body = await anext(pieces)
            one.core.paused = True
            (record,) = server.state.records._by_number.values()
            server.state.records._max_bytes = 1
            server.state.records.append(record.run, b"more than there is room for")
            await until(lambda: one.core.sent(Abort))  # nobody can read it any more
            server.state.records._max_bytes = 1 << 20
            one.core.resume()
            body += b"".join([piece async for piece in pieces])
        again = await server.post(0, KEY)
        assert (len(server.submits), again.status_code) == (3, 200)
        assert texts_of(body.decode()) == texts_of(again.text)


async def test_a_plain_answer_whose_record_is_lost_before_it_began_is_run_again(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, LONG_TEXT, count=1) as server:
        (one,) = server.frontends
        one.core.paused = True
        asking = asyncio.create_task(server.post(0, KEY, stream=False))
        await until(lambda: len(server.submits) == 1)
        (record,) = server.state.records._by_number.values()
        server.state.records._lose(record)
        one.core.resume()
        answer = await asking
        assert (answer.status_code, len(server.submits)) == (200, 2)
        assert LONG_TEXT.startswith(answer.json()["choices"][0]["text"])


async def test_other_routes_and_methods_pass(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, count=1) as server:
        http = server.frontends[0].http
        assert (await http.get("/v1/models", headers=KEY)).status_code == 200
        assert (await http.get("/health", headers=KEY)).status_code == 200
        plain = await server.post(0, {})
    assert "".join(chunk["choices"][0]["text"] for chunk in events(plain.text)) == TEXT
    assert len(server.state.records) == 0


async def test_a_reader_that_takes_nothing_holds_no_one_up(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, TEXT * 100, count=1) as server:
        reader, writer = await asyncio.open_connection(*server.frontends[0].address, limit=1024)
        body = msgspec.json.encode(BODY | {"max_tokens": 2000})
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: key\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: server.submits)
        other = await server.post(0, KEY, max_tokens=2000)
        assert len(text_of(other)) > 1500
        assert server.frontends[0].core.running == {}
        writer.close()
        await writer.wait_closed()
        del reader
