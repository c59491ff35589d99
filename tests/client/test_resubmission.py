"""What is sent again is taken by the real scheduler, and goes on there, wherever it broke off."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.journal import Journal
from pyllm.client.streams import Stream, Streams
from pyllm.client.submission import prepare
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import ClientMessage, CoreMessage, FinishCode
from tests.client.fake_core import MODEL
from tests.client.mortal_core import Reader
from tests.core.raw_engine import Engine

# The counting model's answer to [.., 5] is 6, 7, 8...
REQUESTS = [
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=5),
    SamplingParams(max_tokens=9, stop_token_ids=[9]),
    SamplingParams(max_tokens=9, stop_token_ids=[7], min_tokens=4),
    SamplingParams(max_tokens=4, n=3),
    SamplingParams(max_tokens=8, n=2, stop_token_ids=[8], frequency_penalty=0.5),
]
EXPECTED = [
    ([6], FinishCode.LENGTH),
    ([6, 7, 8, 9, 10], FinishCode.LENGTH),
    ([6, 7, 8, 9], FinishCode.STOP),
    ([6, 7, 8, 9, 10, 11, 12, 13, 14], FinishCode.LENGTH),
    ([6, 7, 8, 9], FinishCode.LENGTH),
    ([6, 7, 8], FinishCode.STOP),
]


class Engines:
    """One real core after another, whose first one is gone after so many messages."""

    def __init__(self, lives_for: int) -> None:
        self._left = lives_for
        self._on_disconnect: Callable[[], None] = lambda: None
        self.engine = Engine()

    def connect(
        self, on_message: MessageHandler[CoreMessage], on_malformed: MalformedHandler, on_disconnect: Callable[[], None]
    ) -> "Engines":
        self.engine = Engine()
        self._on_message, self._on_disconnect = on_message, on_disconnect
        self.num_taken = len(self.engine.sent)
        return self

    def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
        self.engine.receive(message)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""

    def read(self) -> bool:
        """Let the client read the next message, or notice that the core is gone; False if there is none."""
        if self.num_taken == len(self.engine.sent):
            return False
        _, message = self.engine.sent[self.num_taken]
        self.num_taken += 1
        self._left -= 1
        if self._left == -1:
            self._on_disconnect()  # This message is lost, and all behind it.
        else:
            self._on_message(b"", msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=CoreMessage))
        return True

    async def run(self) -> None:
        """Let the core work and the client read until nothing is left."""
        while self.read() or await self.engine.core.step() or self.read():
            pass


async def connected(engines: Engines, clock: Callable[[], float] = time.monotonic) -> EngineClient:
    client = EngineClient(engines.connect, heartbeats=False, clock=clock)
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    engines.read()
    await starting
    return client


@pytest.mark.parametrize("lives_for", range(1, 10))
async def test_wherever_a_core_dies_the_next_one_gives_the_rest(lives_for: int) -> None:
    engines = Engines(lives_for)
    client = await connected(engines)
    readers = [Reader(params.n) for params in REQUESTS]
    for params, reader in zip(REQUESTS, readers, strict=True):
        client.submit([3, 4, 5], params, reader)
    await engines.run()
    assert client.counts.num_resubmitted_requests > 0
    for params, reader, (tokens, finish) in zip(REQUESTS, readers, EXPECTED, strict=True):
        assert reader.errors == []
        assert list(zip(reader.tokens, reader.finishes, strict=True)) == [(tokens, finish)] * params.n
        ((_, is_late),) = reader.starts
        assert not is_late


async def test_time_goes_on_without_a_core_and_is_over_at_the_next_one() -> None:
    now = 0.0
    engines = Engines(3)
    client = await connected(engines, lambda: now)
    reader = Reader(1)
    client.submit([3, 4, 5], SamplingParams(max_tokens=50), reader, SchedulingParams(timeout=5.0))
    while not reader.tokens[0]:
        assert engines.read() or await engines.engine.core.step()
    now = 6.0
    await engines.run()
    assert (reader.errors, reader.finishes) == ([], [FinishCode.DEADLINE])
    assert 0 < len(reader.tokens[0]) < 50


@pytest.mark.parametrize(
    ("output", "options", "finish"),
    [
        ([6, 7], {"max_tokens": 2}, FinishCode.LENGTH),
        ([6, 0], {"max_tokens": 9}, FinishCode.STOP),
        ([6, 9], {"max_tokens": 2, "stop_token_ids": [9]}, FinishCode.STOP),
        ([6, 9], {"max_tokens": 9, "stop_token_ids": [9], "min_tokens": 3}, FinishCode.NONE),
        ([6, 0], {"max_tokens": 9, "ignore_eos": True}, FinishCode.NONE),
        ([], {"max_tokens": 1}, FinishCode.NONE),
    ],
)
def test_an_output_that_is_complete_ends_as_it_would_have(
    output: list[int], options: dict[str, Any], finish: FinishCode
) -> None:
    reader = Reader(1)
    stream = Stream(1, Journal(prepare([5], SamplingParams(**options), MODEL), 0.0), reader)
    streams = Streams()
    streams.add(stream)
    stream.journal.accept(0, 0, output)
    streams.end_complete_samples(stream)
    assert reader.finishes == [finish or None]
    assert len(streams) == (0 if finish else 1)
