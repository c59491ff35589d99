"""The server as it runs: real sockets, clients that leave, clients that do not read, and an orderly end."""

import asyncio
import contextlib
import logging
import signal
import socket

import msgspec
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Abort, Submit
from tests.client.fake_core import MODEL, ScriptedCore
from tests.frontend.serving import Frontend, answering, behind_uvicorn, events
from tests.waiting import until

LONG = msgspec.structs.replace(MODEL, max_model_len=10_000, kv_cache_tokens=10_000)


async def test_a_stream_over_a_socket(tokenizer: Tokenizer) -> None:
    async with (
        behind_uvicorn(answering(tokenizer, "Hello 🙂 world"), tokenizer) as frontend,
        frontend.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["server"] == "pyllm"
        chunks = events((await response.aread()).decode())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello 🙂 world"


async def test_many_streams_at_once(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, *prompt, *prompt, 0])

    async def one(frontend: Frontend, number: int) -> None:
        text = f"number {number} "
        body = {"prompt": text, "stream": number % 2 == 0, "max_tokens": 100}
        response = await frontend.http.post("/v1/completions", json=body, timeout=60)
        chunks = events(response.text) if body["stream"] else [response.json()]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text * 3

    async with behind_uvicorn(core, tokenizer) as frontend:
        await asyncio.gather(*(one(frontend, number) for number in range(60)))
        assert (frontend.client.num_requests, core.running) == (0, {})


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_is_aborted_at_once(tokenizer: Tokenizer, streamed: bool) -> None:
    core = ScriptedCore(lambda prompt, sample: tokenizer.encode("x" * 9_000), LONG)
    async with behind_uvicorn(core, tokenizer) as frontend:
        body = {"prompt": "x", "stream": streamed, "max_tokens": 9_000, "n": 2}
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json=body))
        await until(lambda: core.sent(Submit))
        asking.cancel()
        await until(lambda: core.sent(Abort))
        await until(lambda: frontend.client.num_requests == 0)
        assert core.running == {}
        assert {reason: count for reason, count in frontend.state.metrics.finished.items() if count} == {"abort": 2}
        assert (await frontend.http.get("/health")).status_code == 200


async def test_a_client_that_leaves_before_the_first_token_is_aborted(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    async with behind_uvicorn(core, tokenizer) as frontend:
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json={"prompt": "x", "stream": True}))
        await until(lambda: core.sent(Submit))
        asking.cancel()
        await until(lambda: core.sent(Abort))


async def test_a_slow_reader_gets_everything_and_holds_nobody_up(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: tokenizer.encode("Hello " * 2_000), LONG)
    async with behind_uvicorn(core, tokenizer, send_buffer=4096) as frontend:
        loop = asyncio.get_running_loop()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            await loop.sock_connect(reader, frontend.address)
            body = msgspec.json.encode({"prompt": "x", "stream": True, "max_tokens": 4_000})
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            await loop.sock_sendall(reader, head.encode() + body)
            await until(lambda: core.sent(Submit))
            await until(lambda: not core.running)  # every token has come, nothing was read
            assert frontend.client.num_requests == 0
            assert (await frontend.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200
            received = bytearray()
            while piece := await loop.sock_recv(reader, 65536):
                received += piece
    text = _unchunk(bytes(received).partition(b"\r\n\r\n")[2]).decode()
    chunks = events(text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello " * 2_000
    assert len(chunks) < 2_000  # what waited came in one piece


def _unchunk(body: bytes) -> bytes:
    whole = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        whole += body[:length]
        body = body[length + 2 :]
    return bytes(whole)


async def test_a_signal_lets_streams_finish_and_takes_nothing_new(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "Hello world")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, grace=3600) as frontend:
        assert frontend.server is not None
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json={"prompt": "x", "stream": True}))
        await until(lambda: core.sent(Submit))
        frontend.server.handle_exit(signal.SIGTERM, None)
        await until(lambda: frontend.state.draining)
        frontend.server.handle_exit(signal.SIGTERM, None)  # as where all processes of a service are told, and by each
        assert (await frontend.http.get("/health")).status_code == 503
        refused = await frontend.http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        core.resume()
        chunks = events((await asking).text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello world"
        await until(lambda: frontend.server.should_exit)


async def test_who_is_told_to_go_elsewhere_does_not_come_back_on_the_same_connection(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "Hello world")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, grace=3600) as frontend:
        assert frontend.server is not None
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json={"prompt": "x", "stream": True}))
        await until(lambda: core.sent(Submit))
        reader, writer = await asyncio.open_connection(*frontend.address)
        request = b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in head
        await reader.readuntil(b"}")
        frontend.server.stop()
        await until(lambda: frontend.state.draining)
        writer.write(request)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close\r\n" in answer
        writer.close()
        core.resume()
        assert (await asking).status_code == 200


async def test_who_connects_at_the_last_moment_is_told_so(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "Hello"), tokenizer) as frontend:
        assert frontend.server is not None
        frontend.state.draining = True
        with socket.create_connection(frontend.address) as waiting:  # The loop has had no turn to let it in.
            waiting.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            await frontend.server.shutdown()
            assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 503")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(frontend.address)


async def test_what_is_not_finished_in_time_ends_with_an_error(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: tokenizer.encode("x" * 9_000), LONG)
    async with behind_uvicorn(core, tokenizer, grace=0.0) as frontend:
        assert frontend.server is not None
        body = {"prompt": "x", "stream": True, "max_tokens": 9_000}
        async with frontend.http.stream("POST", "/v1/completions", json=body) as response:
            frontend.server.stop()
            text = (await response.aread()).decode()
    *_, error = events(text)
    assert "shut down before this request was finished" in error["error"]["message"]
    assert core.running == {}


async def test_a_second_signal_ends_at_once(tokenizer: Tokenizer) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    async with behind_uvicorn(core, tokenizer, grace=3600) as frontend:
        assert frontend.server is not None
        asking = asyncio.create_task(frontend.http.post("/v1/completions", json={"prompt": "x"}))
        await until(lambda: core.sent(Submit))
        frontend.server.stop()
        frontend.server.stop()
        await until(lambda: frontend.server.should_exit and frontend.server.force_exit)
        asking.cancel()
    assert [type(error) for error in await asyncio.gather(asking, return_exceptions=True)] == [asyncio.CancelledError]


@pytest.mark.parametrize(
    "request_bytes", [b"\xff\xfe\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nx\r\n\r\n"]
)
async def test_what_is_not_http_ends_its_own_connection_only(tokenizer: Tokenizer, request_bytes: bytes) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        writer.write(request_bytes)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (await frontend.http.get("/health")).status_code == 200


async def test_a_client_that_leaves_within_its_body_is_no_error_of_ours(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        writer.write(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"prompt"')
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (await frontend.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_two_hundred_streams_at_once_all_come_to_their_end(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, *prompt, 0])

    async def read(number: int) -> str:
        reader, writer = await asyncio.open_connection(*frontend.address)
        body = b'{"prompt": "stream %d", "stream": true, "max_tokens": 100}' % number
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        writer.write(head + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        chunks = events(_unchunk(answer.partition(b"\r\n\r\n")[2]).decode())
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    async with behind_uvicorn(core, tokenizer) as frontend:
        texts = await asyncio.gather(*map(read, range(200)))
        assert texts == [f"stream {number}" * 2 for number in range(200)]
        assert (frontend.client.num_requests, core.running) == (0, {})


async def test_a_connection_is_kept_for_the_next_request(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "Hello"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        # Pushed answers, whole and streamed, errors before and after the body is read, and another route between them.
        bodies = [
            b'{"prompt": "x", "stream": true}',
            b'{"prompt": "x"}',
            b"{",
            b'{"prompt": "x", "n": 99}',
            b'{"prompt": "x", "stream": true, "n": 2}',
        ]
        statuses = []
        for body in bodies * 2:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            statuses.append(await _read_answer(reader))
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await _read_answer(reader) == (200, b"")
        writer.close()
        await writer.wait_closed()
    assert [status for status, _ in statuses] == [200, 200, 400, 400, 200] * 2
    assert all(body.endswith(b"data: [DONE]\n\n") for (_, body) in (statuses[0], statuses[4], statuses[5]))


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next answer on a connection that goes on."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert b"connection: close" not in head
    body = b""
    if b"content-length: " in head:
        body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    else:
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return int(head.split()[1]), body


async def test_nothing_is_left_over(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        for _ in range(3):
            await frontend.http.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 1_000_000,  # never ends
        b"GET /health HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 50_000 + b"\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_a_head_without_bounds_is_refused(tokenizer: Tokenizer, head: bytes) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
        writer.transport.abort()
        assert (await frontend.http.get("/health", headers={"long": "x" * 60_000})).status_code == 200


async def test_what_follows_a_body_is_bounded_too(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
        writer.write(head + b"a: b\r\n" * 50_000)
        await writer.drain()
        with contextlib.suppress(ConnectionError):  # The kernel tells of a close with data unread as a reset.
            while await reader.read(1000):
                pass
        writer.transport.abort()
        assert (await frontend.http.get("/health")).status_code == 200


async def test_what_is_no_http_is_an_error_in_the_usual_shape(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        reader, writer = await asyncio.open_connection(*frontend.address)
        writer.write(b"\0\1\2 nonsense\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.transport.abort()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert msgspec.json.decode(body)["error"]["type"] == "invalid_request_error"
