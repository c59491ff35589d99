"""An API process as its parent starts it: it says when it is ready, serves, drains on SIGTERM and ends with 0."""

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from pyllm.frontend import api_process as api
from pyllm.supervision import child_process
from pyllm.wire.listeners import bind_listener
from pyllm.wire.messages import Submit
from tests.client.fake_core import ScriptedCore
from tests.client.zmq_core import ZmqCore
from tests.frontend.api_config import api_config
from tests.frontend.serving import events
from tests.frontend.text import tiny_tokenizers
from tests.waiting import until


@asynccontextmanager
async def started(folder: Path) -> AsyncGenerator[tuple[child_process.ChildProcess, str], None]:
    """The process, and the address that it serves; its core is looked for at `core_address`."""
    config = api_config(folder, core_address(folder))
    with bind_listener("127.0.0.1", 0) as listener:
        process = child_process.spawn("API process 0", "api", listener.fileno())
        process.configure(config)
        process.watch()
        host, port = listener.getsockname()
        try:
            yield process, f"http://{host}:{port}"
        finally:
            process.signal(signal.SIGKILL)
            await process.exited


def core_address(folder: Path) -> str:
    return f"ipc://{folder}/core"


@asynccontextmanager
async def api_process(core: ScriptedCore, folder: Path) -> AsyncGenerator[tuple[child_process.ChildProcess, str], None]:
    """The same with a core."""
    async with ZmqCore(core, core_address(folder)), started(folder) as both:
        yield both


async def test_it_serves_and_drains(tmp_path: Path) -> None:
    tokens = [*tiny_tokenizers.byte_level().encode("Hello 🙂 world").ids, 0]
    submitted = asyncio.Event()

    class Noticing(ScriptedCore):
        def handle(self, message: object) -> None:
            super().handle(message)
            if isinstance(message, Submit):
                submitted.set()

    core = Noticing(lambda prompt, sample: tokens)
    async with api_process(core, tmp_path) as (process, address):
        await process.ready(60)
        assert psutil.Process(process.pid).cmdline()[0] == "pyllm::api-0"
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            assert answer["choices"][0]["message"]["content"] == "Hello 🙂 world"
            core.paused = True
            submitted.clear()
            asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x", "stream": True}))
            await submitted.wait()
            process.signal(signal.SIGTERM)
            while (await http.get("/health")).status_code != 503:
                pass
            core.resume()
            chunks = events((await asking).text)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello 🙂 world"
        assert await process.exited == 0


async def test_it_outlives_its_core(tmp_path: Path) -> None:
    tokens = [*tiny_tokenizers.byte_level().encode("Hello world").ids, 0]

    class Halting(ScriptedCore):
        """Says two tokens."""

        def _step(self) -> None:
            super()._step()
            self.paused = any(offset == 2 for _, _, offset in self.running.values())

    async with started(tmp_path) as (process, address), httpx.AsyncClient(base_url=address, timeout=60) as http:
        core = Halting(lambda prompt, sample: tokens)
        async with ZmqCore(core, core_address(tmp_path)):
            await process.ready(60)
            asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x", "stream": True}))
            await until(lambda: core.paused)
        core.closed = True
        while (ready := await http.get("/health/ready")).status_code == 200:
            pass
        assert "connection to the engine core was lost" in ready.json()["reason"]
        waiting = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
        async with ZmqCore(ScriptedCore(lambda prompt, sample: tokens, epoch=8), core_address(tmp_path)):
            chunks = events((await asking).text)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello world"
            assert (await waiting).json()["choices"][0]["text"] == "Hello world"
            assert (await http.get("/health/ready")).status_code == 200


async def test_a_core_that_never_answers_is_named(tmp_path: Path) -> None:
    core = ScriptedCore(lambda prompt, sample: [0])
    core.version = 99
    async with api_process(core, tmp_path) as (process, _):
        assert await process.exited == 1
        assert "version 99" in process.exit_summary()


async def test_it_ends_with_its_parents_connection(tmp_path: Path) -> None:
    async with api_process(ScriptedCore(lambda prompt, sample: [0]), tmp_path) as (process, _):
        await process.ready(60)
        with socket.socket(fileno=process._connection.fileno()) as connection:
            connection.shutdown(socket.SHUT_RDWR)
            connection.detach()
        assert await process.exited != 0


async def test_it_ends_with_the_reason_when_what_goes_on_beside_the_server_fails() -> None:
    loop = asyncio.get_running_loop()
    serving, tending, death = (loop.create_future() for _ in range(3))
    tending.set_exception(OSError("no memory is told of"))
    with pytest.raises(OSError, match="no memory is told of"):
        await api._watch(serving, tending, death, lambda: None)
