"""Comments come where nothing else does, and one sweep sends them all."""

import asyncio

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.http.keep_alive import COMMENT, COMMENTS_PER_TURN, SILENT_SWEEPS, KeepAlive
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Rejected, Submit
from tests.frontend.serving import answering, behind_uvicorn, events
from tests.waiting import until

LONG_INTERVAL = ServerConfig(sse_keep_alive_interval=3600.0)


class Stream:
    def __init__(self, is_silent: bool = True) -> None:
        self.is_silent = is_silent
        self.num_ticks = 0
        self.num_comments = 0

    def tick(self) -> bool:
        self.num_ticks += 1
        return self.is_silent

    def send_comment(self) -> None:
        self.num_comments += 1


async def test_only_silent_streams_get_comments_and_only_while_they_are_open() -> None:
    keep_alive = KeepAlive(3600.0)
    silent, busy, gone = Stream(), Stream(is_silent=False), Stream()
    for stream in (silent, busy, gone):
        keep_alive.add(stream)
    keep_alive.remove(gone)
    keep_alive.sweep()
    assert [stream.num_comments for stream in (silent, busy, gone)] == [1, 0, 0]
    assert [stream.num_ticks for stream in (silent, busy, gone)] == [1, 1, 0]
    keep_alive.remove(silent)
    keep_alive.remove(busy)
    keep_alive.remove(busy)


async def test_it_sweeps_by_itself_and_rests_where_nothing_is_open() -> None:
    keep_alive = KeepAlive(0.001)
    stream = Stream()
    keep_alive.add(stream)
    await until(lambda: stream.num_comments > 2)
    keep_alive.remove(stream)
    assert keep_alive._timer is None


async def test_without_an_interval_nothing_is_followed() -> None:
    keep_alive = KeepAlive(0.0)
    stream = Stream()
    keep_alive.add(stream)
    keep_alive.sweep()
    assert stream.num_ticks == 0


async def test_many_comments_take_several_turns() -> None:
    keep_alive = KeepAlive(3600.0)
    streams = [Stream() for _ in range(COMMENTS_PER_TURN + 5)]
    for stream in streams:
        keep_alive.add(stream)
    keep_alive.sweep()
    assert sum(stream.num_comments for stream in streams) == COMMENTS_PER_TURN
    keep_alive.remove(streams[-1])  # ended meanwhile
    await asyncio.sleep(0)
    assert [stream.num_comments for stream in streams] == [1] * (len(streams) - 1) + [0]
    for stream in streams:
        keep_alive.remove(stream)


@pytest.mark.parametrize("headers", [{}, {"accept": "text/event-stream"}])
async def test_a_stream_that_waits_for_its_first_token_gets_comments(
    tokenizer: Tokenizer, headers: dict[str, str]
) -> None:
    core = answering(tokenizer, "Hello")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, server=LONG_INTERVAL) as frontend:
        body = {"prompt": "x", "stream": True}
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body, headers=headers))
        await until(lambda: core.sent(Submit))
        for _ in range(2 * SILENT_SWEEPS):
            frontend.state.keep_alive.sweep()
        core.resume()
        text = (await asking).text
    comment = COMMENT.decode()
    assert text.startswith(comment * 2 + ("id: " if headers else "data: "))
    assert text.count(comment) == 2
    if not headers:
        assert events(text.replace(comment, ""))[0]["choices"][0]["text"] == "Hello"


async def test_an_error_after_a_comment_is_an_event(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "Hello")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, server=LONG_INTERVAL) as frontend:
        body = {"prompt": "x", "stream": True}
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body))
        await until(lambda: core.sent(Submit))
        for _ in range(SILENT_SWEEPS):
            frontend.state.keep_alive.sweep()
        core.say(Rejected(core.sent(Submit)[0].request, "invalid", "it can never fit"))
        response = await asking
    assert response.status_code == 200
    (error,) = events(response.text.replace(COMMENT.decode(), ""))
    assert error["error"]["message"] == "it can never fit"
