"""A request that ends every core is failed by its client; those beside it, of whichever client, go on."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.errors import Cause
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import ClientMessage, CoreMessage, FinishCode, Submit
from tests.client.mortal_core import Reader
from tests.core.raw_engine import Engine
from tests.core.remembering_executor import RememberingExecutor

POISON = 999  # no answer has it


class CoreDiedError(Exception):
    """All of the core is gone, not only its workers."""


class Line:
    """One client's connection to the core that there is."""

    def __init__(self, cores: "Cores", identity: bytes, on_message: MessageHandler[CoreMessage]) -> None:
        self.identity = identity
        self.on_message = on_message
        self._cores = cores

    def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
        if isinstance(message, Submit):
            self._cores.losses[message.request] = message.num_losses
        self._cores.engine.receive(message, self.identity)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""


class Cores:
    """One real core after another, each of which a plan with `POISON` in a row ends.

    With `patience` each bears so many such plans before. `strikes` is asked with the contexts of every plan's rows
    whether this core is ended from elsewhere.
    """

    def __init__(
        self,
        depth: int,
        patience: int = 0,
        strikes: Callable[[list[list[int]]], bool] = lambda contexts: False,
        place: int = 0,
    ) -> None:
        self._place = place
        self.num_deaths = 0
        self.num_explained = 0  # of them
        self._depth = depth
        self._patience = patience
        self._strikes = strikes
        self._lines: dict[bytes, tuple[Line, Callable[[], None]]] = {}
        self._start()

    def connect(self, identity: bytes) -> Callable[..., Line]:
        """How the client of this identity connects."""

        def connect(
            on_message: MessageHandler[CoreMessage], on_malformed: MalformedHandler, on_disconnect: Callable[[], None]
        ) -> Line:
            line = Line(self, identity, on_message)
            self._lines[identity] = line, on_disconnect
            return line

        return connect

    def read(self) -> bool:
        """Let a client read the next message; False if there is none."""
        if self._num_read == len(self.engine.sent):
            return False
        identity, message = self.engine.sent[self._num_read]
        self._num_read += 1
        if identity in self._lines:  # It is not Engine's own client.
            wired = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=CoreMessage)
            self._lines[identity][0].on_message(b"", wired)
        return True

    async def run(self, on_start: Callable[[], object] = lambda: None) -> None:
        """Until nothing is left to do, with a core that follows whenever one dies; each is there when it is told of."""
        while await self.step(on_start):
            pass

    async def step(self, on_start: Callable[[], object] = lambda: None) -> bool:
        """One step of the core, which may be its last, and a core that follows; False if there was nothing to do."""
        try:
            is_busy = await self.engine.core.step()
        except CoreDiedError:
            self.num_deaths += 1
            self.num_explained += self._is_alone
            self._read_all()
            self._start()
            for _, on_disconnect in list(self._lines.values()):
                on_disconnect()
            self._read_all()
            on_start()
            is_busy = True
        self._read_all()
        return is_busy

    def _read_all(self) -> None:
        while self.read():
            pass

    def _start(self) -> None:
        self._is_alone = False
        executor = RememberingExecutor(dies_of=self._die)
        epoch = 1 + self.num_deaths + 1000 * self._place
        self.engine = Engine(executor, depth=self._depth, on_alone=self._note_alone, epoch=epoch)
        self._num_read = 0
        self._num_poisoned = 0  # plans of this core
        self.losses: dict[int, int] = {}  # of each request that this core was sent

    def _note_alone(self, is_alone: bool) -> None:
        assert is_alone != self._is_alone, "it is told of changes only"
        self._is_alone = is_alone

    def _die(self, contexts: list[list[int]]) -> Cause | None:
        self._num_poisoned += any(POISON in context for context in contexts)
        if self._num_poisoned > self._patience or self._strikes(contexts):
            raise CoreDiedError
        return None


async def connected(cores: Cores, identity: bytes) -> EngineClient:
    client = EngineClient(cores.connect(identity), heartbeats=False)
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    while cores.read():
        pass
    await starting
    return client


async def served(
    prompts: dict[bytes, list[list[int]]], depth: int, max_tokens: int = 6, **options: Any
) -> tuple[Cores, list[Reader]]:
    """What the requests of several clients are given, in order, and the cores that they had."""
    cores = Cores(depth, **options)
    readers = []
    for identity, asked in prompts.items():
        client = await connected(cores, identity)
        for prompt in asked:
            readers.append(Reader(2))
            params = SamplingParams(n=2, max_tokens=max_tokens, seed=prompt[0], ignore_eos=True)
            client.submit(prompt, params, readers[-1])
    await cores.run()
    return cores, readers


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("place", [0, 2, 4])
async def test_it_is_failed_when_it_has_ended_two_alone(place: int, depth: int) -> None:
    others = [[1, 2], [11, 12, 13], [31] * 9, [7]]
    poisoned = [*others[:place], [21, POISON], *others[place:]]
    _, twins = await served({b"a": others}, depth)
    cores, readers = await served({b"a": poisoned}, depth)
    failed = readers.pop(place)
    text = (
        "this request ended the engine core that computed it 4 times, the last 2 alone: the connection to the engine "
    )
    assert [str(error) for error in failed.errors] == [f"{text}core was lost"]
    assert (cores.num_deaths, cores.num_explained) == (4, 2)
    for reader, twin in zip(readers, twins, strict=True):
        assert (reader.tokens, reader.finishes, reader.errors) == (twin.tokens, twin.finishes, [])


@pytest.mark.parametrize("depth", [1, 2])
async def test_however_many_there_are_their_deaths_are_explained(depth: int) -> None:
    others = [[1, 2], [11, 12, 13], [31] * 9]
    poisoned = [[20 + number, POISON] for number in range(6)]
    _, twins = await served({b"a": others[:2], b"b": others[2:]}, depth)
    cores, readers = await served({b"a": others[:2] + poisoned[:3], b"b": others[2:] + poisoned[3:]}, depth)
    assert [len(reader.errors) for reader in readers] == [0, 0, 1, 1, 1, 0, 1, 1, 1]
    assert (cores.num_deaths, cores.num_explained) == (2 + 2 * 6, 2 * 6)
    for reader, twin in zip([*readers[:2], readers[5]], twins, strict=True):
        assert (reader.tokens, reader.finishes, reader.errors) == (twin.tokens, twin.finishes, [])


@pytest.mark.parametrize("depth", [1, 2])
async def test_no_other_clients_request_is_blamed_for_it(depth: int) -> None:
    cores, readers = await served(
        {b"a": [[1, 2]], b"b": [[21, POISON]], b"c": [[3, 4]], b"d": [[22, POISON, 1]]}, depth
    )
    assert [len(reader.errors) for reader in readers] == [0, 1, 0, 1]
    assert [readers[place].finishes for place in (0, 2)] == [[FinishCode.LENGTH] * 2] * 2
    assert cores.num_deaths == 2 + 2 * 2


@pytest.mark.parametrize("depth", [1, 2])
async def test_one_that_runs_alone_is_not_blamed_for_what_others_do_between_its_steps(depth: int) -> None:
    cores = Cores(depth)
    client = await connected(cores, b"a")
    long = Reader(1)
    client.submit([1] * 100, SamplingParams(max_tokens=6, ignore_eos=True), long)
    poisoned: list[Reader] = []

    def poison() -> None:
        if len(poisoned) < 5:
            poisoned.append(Reader(1))
            client.submit([21, POISON], SamplingParams(max_tokens=6), poisoned[-1])

    poison()
    await cores.run(on_start=poison)
    assert (long.errors, long.finishes) == ([], [FinishCode.LENGTH])
    assert [len(reader.errors) for reader in poisoned] == [1] * 5


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("patience", [1, 2, 7])
async def test_one_that_has_tokens_from_each_core_before_it_ends_it_is_found_out(patience: int, depth: int) -> None:
    others = [[1, 2], [11, 12, 13], [31] * 9, [7]]
    _, twins = await served({b"a": others}, depth, max_tokens=40)
    cores, readers = await served(
        {b"a": [*others[:2], [21, POISON], *others[2:]]}, depth, max_tokens=40, patience=patience
    )
    failed = readers.pop(2)
    assert [str(error).partition(" alone:")[0] for error in failed.errors] == [
        f"this request ended the engine core that computed it {cores.num_deaths} times, the last 2"
    ]
    assert 0 < len(failed.tokens[0]) < 40
    assert cores.num_deaths == 5
    for reader, twin in zip(readers, twins, strict=True):
        assert (reader.tokens, reader.finishes, reader.errors) == (twin.tokens, twin.finishes, [])


async def test_one_that_ends_cores_while_its_prompt_is_computed_in_chunks_is_found_out() -> None:
    cores, readers = await served({b"a": [[1, 2], [21, POISON, *[5] * 70]]}, depth=1, patience=3)
    assert [len(reader.errors) for reader in readers] == [0, 1]
    assert cores.num_deaths == 4
    assert readers[0].finishes == [FinishCode.LENGTH] * 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("every", [2, 3, 7, 12])
async def test_cores_that_are_ended_from_elsewhere_fail_nobody_that_was_not_alone(every: int, depth: int) -> None:
    prompts = {b"a": [[1, 2], [11, 12, 13]], b"b": [[31] * 40, [7]]}
    plans = []

    def strikes(contexts: list[list[int]]) -> bool:
        plans.append(contexts)
        requests = {context[0] for context in contexts}
        return len(plans) % every == 0 and len(requests) > 1

    _, twins = await served(prompts, depth, max_tokens=30)
    cores, readers = await served(prompts, depth, max_tokens=30, strikes=strikes)
    assert cores.num_deaths > 2
    for reader, twin in zip(readers, twins, strict=True):
        assert (reader.tokens, reader.finishes, reader.errors) == (twin.tokens, twin.finishes, [])


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("place", [0, 3, 8])
async def test_of_several_cores_it_costs_one_that_others_use(place: int, patience: int) -> None:
    prompts = [[1, 2], [11, 12, 13], [31] * 9, [7], [5, 6], [8] * 20, [9], [10, 4]]
    _, twins = await served({b"a": prompts}, depth=1, max_tokens=20)
    prompts.insert(place, [21, POISON])
    places = [Cores(1, patience, place=index) for index in range(3)]
    now = 0.0
    client = EngineClient(
        *(each.connect(b"a") for each in places), placement="round-robin", heartbeats=False, clock=lambda: now
    )
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    for each in places:
        while each.read():
            pass
    await starting
    readers = [Reader(2) for _ in prompts]
    for prompt, reader in zip(prompts, readers, strict=True):
        client.submit(prompt, SamplingParams(n=2, max_tokens=20, seed=prompt[0], ignore_eos=True), reader)
    losses = []  # of the requests that each core had when it died
    while client.num_requests:
        for each in places:
            losses_of, num_deaths = each.losses, each.num_deaths
            live = [report["request"] for report in each.engine.scheduler.requests(100) if report["finish"] is None]
            each.engine.core.beat()
            await each.step()
            if each.num_deaths > num_deaths:
                losses.append([losses_of[request] for request in live])
        now += 0.5
        client.beat()
    assert len(readers.pop(place).errors) == 1
    assert losses[0].count(0) == 3
    assert all(0 not in of_core for of_core in losses[1:])
    for reader, twin in zip(readers, twins, strict=True):
        assert (reader.tokens, reader.finishes, reader.errors) == (twin.tokens, twin.finishes, [])
