"""`EngineClient.connect` over real sockets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyllm.client.client import EngineClient
from pyllm.errors import ConfigError, EngineDeadError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import Abort, ClientMessage, FinishCode, Heartbeat, Submit
from tests.client.fake_core import EPOCH, FakeCore, Row, ScriptedCore
from tests.client.zmq_core import ZmqCore

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/core"


async def test_tokens_come_over_the_wire(address: str) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, 9, 0])
    async with ZmqCore(core, address):
        client = await EngineClient.connect(address)
        deltas = [delta async for delta in client.generate([7, 8], GREEDY)]
        assert [token for delta in deltas for token in delta.tokens] == [7, 8, 9, 0]
        assert deltas[-1].finish is FinishCode.STOP
        assert (await client.call("stats"))["num_preemptions"] == 3
        client.close()


async def test_a_core_that_binds_later_is_waited_for(address: str) -> None:
    connecting = asyncio.create_task(EngineClient.connect(address))
    await asyncio.sleep(0)
    async with ZmqCore(ScriptedCore(lambda prompt, sample: [0]), address):
        client = await connecting
        assert client.epoch == EPOCH
        client.close()


async def test_no_core_is_an_error_with_the_address(address: str) -> None:
    with pytest.raises(EngineDeadError, match="no core answered at ipc://"):
        await EngineClient.connect(address, timeout=0.0)


async def test_a_stream_goes_on_with_the_next_core_at_the_address(address: str) -> None:
    class OneToken(FakeCore):
        def handle(self, message: ClientMessage) -> None:
            super().handle(message)
            if isinstance(message, Submit):
                self.say_rows(Row(message.request, [5]))

    core = OneToken()
    async with ZmqCore(core, address) as server:
        client = await EngineClient.connect(address)
        generator = client.generate([1], GREEDY)
        tokens = (await anext(generator)).tokens
        server.stop()
        core.closed = True
    async with ZmqCore(ScriptedCore(lambda prompt, sample: [5, 6, 7, 8], epoch=EPOCH + 1), address):
        async for delta in generator:
            tokens += delta.tokens
        assert tokens == [5, 6, 7, 8]
        counts = client.counts
        assert (client.epoch, counts.num_core_connections, counts.num_resubmitted_requests) == (EPOCH + 1, 2, 1)
        client.close()


async def test_the_addresses_are_tried_in_turn(address: str) -> None:
    async with ZmqCore(ScriptedCore(lambda prompt, sample: [0]), address):
        client = await EngineClient.connect([f"{address}-2", address])
        assert client.epoch == EPOCH
        client.close()


async def test_heartbeats_go_out_by_themselves(address: str) -> None:
    heard = asyncio.Event()

    class Listening(ScriptedCore):
        def handle(self, message: object) -> None:
            super().handle(message)
            if isinstance(message, Heartbeat):
                heard.set()

    async with ZmqCore(Listening(lambda prompt, sample: [0]), address):
        client = await EngineClient.connect(address)
        await heard.wait()
        client.close()


async def test_closing_aborts_over_the_wire(address: str) -> None:
    aborted = asyncio.Event()

    class Listening(ScriptedCore):
        def handle(self, message: object) -> None:
            super().handle(message)
            if isinstance(message, Abort):
                aborted.set()

    core = Listening(lambda prompt, sample: [5] * 200)
    core.paused = True
    async with ZmqCore(core, address):
        client = await EngineClient.connect(address)
        generator = client.generate([1], GREEDY)
        reading = asyncio.ensure_future(anext(generator))
        await asyncio.sleep(0)
        client.close()
        await aborted.wait()
        with pytest.raises(EngineDeadError, match="closed"):
            await reading


async def test_keys_that_cannot_be_read_are_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        await EngineClient.connect("tcp://127.0.0.1:1", keys=tmp_path)


@pytest.mark.parametrize("address", [[], None, [None], [5]])
async def test_what_is_no_address_is_refused_by_what_one_is(address: Any) -> None:
    with pytest.raises(ConfigError, match=r"connect needs the address of a core, .* such as ipc://"):
        await EngineClient.connect(address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("ipc:/tmp/core", r"did you mean ipc:///tmp/core\? A core is at ipc://PATH or tcp://HOST:PORT"),
        ("/tmp/core", r"did you mean ipc:///tmp/core\? A core is at ipc://PATH or tcp://HOST:PORT"),
        ("http://127.0.0.1:8000", r"the address of a server, for clients of OpenAI's API; .* `pyllm core`"),
        ("https://127.0.0.1:8000/v1", "the address of a server"),
        ("127.0.0.1:5555", "'127.0.0.1:5555' is no address of a core: give ipc://PATH or tcp://HOST:PORT"),
        ("tcp://127.0.0.1", "no address of a core"),
        ("tcp://127.0.0.1:*", "no address of a core"),
        ("ipc://", "no address of a core"),
        ("", "no address of a core"),
        (f"ipc:///{'x' * 107}", "has 108 bytes, and at most 107 work"),
    ],
)
async def test_an_address_where_no_core_can_be_is_refused_at_once(address: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await EngineClient.connect(["tcp://127.0.0.1:1", address])
