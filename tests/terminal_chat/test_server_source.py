import asyncio
import contextlib
from typing import Any

import pytest

from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.terminal_chat.answers import AnswerPiece, Fields
from pyllm.terminal_chat.server_source import PAUSES, ServerSource
from pyllm.wire.server_client import Usage
from tests.terminal_chat.scripted_server import Script, ScriptedServer, chat_events, completion_events

MESSAGES = [{"role": "user", "content": "Hello"}]
PLAIN: Fields = {}


class Pauses:
    """Waits for nothing, and says for how long."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def answer(server: ScriptedServer, pauses: Pauses, fields: Fields = PLAIN, **options: Any) -> list[AnswerPiece]:
    source = ServerSource(server.address, pause=pauses, **options)
    await source.start(for_chat=False)
    try:
        async with contextlib.aclosing(source.answer(MESSAGES, fields)) as pieces:
            return [piece async for piece in pieces]
    finally:
        await source.close()


def text_of(pieces: list[AnswerPiece]) -> str:
    return "".join(piece.content for piece in pieces)


async def test_a_chat_is_streamed_with_reasoning_and_usage() -> None:
    fields = {"temperature": 0.5, "stop": ["x"], "response_format": {"type": "json_object"}}
    async with ScriptedServer([Script(chat_events("Hel", "lo", reasoning="hm"))], key="secret") as server:
        pieces = await answer(server, Pauses(), fields, api_key="secret")
    assert text_of(pieces) == "Hello"
    assert "".join(piece.reasoning for piece in pieces) == "hm"
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert [piece.usage for piece in pieces if piece.usage] == [Usage(7, 2)]
    (listed, asked) = server.requests
    assert listed[0] == "/v1/models"
    path, headers, body = asked
    assert (path, headers["accept"], headers["authorization"]) == (
        "/v1/chat/completions",
        "text/event-stream",
        "Bearer secret",
    )
    assert body == {
        "model": "first",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


async def test_a_completion_has_choices() -> None:
    async with ScriptedServer([Script(completion_events((0, "a"), (1, "b"), (0, "c")))]) as server:
        source = ServerSource(server.address, model="mine")
        await source.start(for_chat=False)
        pieces = [piece async for piece in source.answer("x", {"n": 2})]
        await source.close()
    assert [(piece.choice, piece.content) for piece in pieces if piece.content] == [(0, "a"), (1, "b"), (0, "c")]
    path, _, body = server.requests[0]
    assert (path, body["prompt"], body["n"], body["model"]) == ("/v1/completions", "x", 2, "mine")


async def test_a_broken_stream_goes_on_after_its_last_event() -> None:
    events = chat_events("one ", "two ", "three")
    scripts = [
        Script(events[:2], ids=["a.1", "a.2"], is_whole=False, tail=b'id: a.3\ndata: {"choices": [{"ind'),
        Script(status=503, content=b'{"error": {"message": "recovering"}}'),
        Script(events[2:3], ids=["a.3"], is_whole=False, tail=b"id: a.4\ndata: "),
        Script(events[3:], ids=["a.4", "a.5", "a.6"]),
    ]
    pauses = Pauses()
    async with ScriptedServer(scripts) as server:
        pieces = await answer(server, pauses)
    assert text_of(pieces) == "one two three"
    assert pieces[-1].usage == Usage(7, 3)
    posts = server.requests[1:]
    assert [headers.get("last-event-id") for _, headers, _ in posts] == [None, "a.2", "a.2", "a.3"]
    assert all(body == posts[0][2] for _, _, body in posts)
    assert pauses.seconds == [PAUSES[0], PAUSES[1], PAUSES[0]]


async def test_a_stream_that_never_goes_on_is_given_up() -> None:
    scripts = [Script(chat_events("one")[:2], ids=["a.1", "a.2"], is_whole=False)]
    scripts += [Script(is_whole=False) for _ in PAUSES]
    pauses = Pauses()
    async with ScriptedServer(scripts) as server:
        with pytest.raises(PyllmError, match=f"{len(PAUSES)} tries to go on failed"):
            await answer(server, pauses)
    assert pauses.seconds == list(PAUSES)


async def test_a_stream_without_ids_is_not_begun_anew() -> None:
    async with ScriptedServer([Script(chat_events("one")[:2], is_whole=False)]) as server:
        with pytest.raises(PyllmError, match="the stream broke off"):
            await answer(server, Pauses())
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (Script(status=400, content=b'{"error": {"message": "too long"}}'), RequestError, "answered 400: too long"),
        (Script(status=404, content=b'{"detail": "Not Found"}'), RequestError, "Not Found"),
        (Script(status=502, content=b"<html>bad gateway"), PyllmError, "502: <html>bad gateway"),
        (Script([{"error": {"message": "out of memory"}}]), PyllmError, "out of memory"),
        (Script(tail=b"data: nonsense\n\n"), PyllmError, "no chunk of an answer"),
        (Script(content=b'{"choices": []}'), PyllmError, "text/event-stream"),
    ],
)
async def test_what_goes_wrong_is_said(script: Script, error: type[PyllmError], text: str) -> None:
    async with ScriptedServer([script]) as server:
        with pytest.raises(error, match=text):
            await answer(server, Pauses())


async def test_a_server_that_wants_a_key_says_how_to_give_it() -> None:
    async with ScriptedServer(key="secret") as server:
        with pytest.raises(RequestError, match=r"no such key .give the server's key by --api-key"):
            await answer(server, Pauses())


async def test_a_server_that_is_not_there_is_not_asked_again() -> None:
    async with ScriptedServer() as server:
        pass
    with pytest.raises(PyllmError, match=r"cannot reach http://127.0.0.1:\d+: .*is the server running"):
        await answer(server, Pauses())
    with pytest.raises(PyllmError, match="cannot reach"):
        await answer(server, Pauses(), model="named")


async def test_leaving_an_answer_ends_its_request() -> None:
    async with ScriptedServer([Script(chat_events("one")[:2], ids=["1", "2"], holds=True)]) as server:
        source = ServerSource(server.address, model="mine")
        pieces = source.answer(MESSAGES, PLAIN)
        assert (await anext(pieces)).content == ""
        await pieces.aclose()
        await asyncio.wait_for(server.left.wait(), 10)
        await source.close()


async def test_another_model_is_selected_by_its_name() -> None:
    async with ScriptedServer() as server:
        source = ServerSource(server.address)
        await source.start(for_chat=False)
        assert source.description == f"first at {server.address}"
        await source.select("second")
        assert source.model == "second"
        with pytest.raises(ConfigError, match="has no model 'third', but first, second"):
            await source.select("third")
        assert source.model == "second"
        await source.close()


async def test_a_server_whose_model_cannot_chat_is_not_asked_to() -> None:
    async with ScriptedServer(has_chat_template=False) as server:
        source = ServerSource(f"{server.address}/v1")
        with pytest.raises(PyllmError, match=f"the model at {server.address} has no chat template"):
            await source.start(for_chat=True)
        await source.start(for_chat=False)
        await source.close()
    async with ScriptedServer() as server:
        source = ServerSource(server.address)
        await source.start(for_chat=True)
        assert source.model == "first"
        await source.close()


async def test_a_server_that_is_not_there_is_reported_as_such_to_a_chat() -> None:
    source = ServerSource("http://127.0.0.1:9")
    with pytest.raises(PyllmError, match="cannot reach"):
        await source.start(for_chat=True)
    await source.close()
