"""Clients that do not know each other, of the same cores: one is made free for what was lost with another."""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.client.client import EngineClient
from pyllm.client.cores import EVACUATION_DELAY, MAX_RESERVATION, Core
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import (
    CLEARING_TOKENS,
    RESERVATION,
    ClientMessage,
    CoreMessage,
    FinishCode,
    LoadReport,
    Reserve,
    Submit,
)
from tests.client.fake_core import FakeCore
from tests.client.mortal_core import Reader
from tests.core.raw_engine import Engine

POISON = "poison"  # the name of a request that ends each core that computes it
LONG = SamplingParams(temperature=0.0, max_tokens=40)


class Connection:
    """The sending half of one client's connection to a core."""

    def __init__(self, core: "SharedCore", identity: bytes) -> None:
        self._core = core
        self._identity = identity

    def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
        self._core.take(self._identity, msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ClientMessage))
        return True

    def close(self, linger: float = 0.0) -> None:
        self._core.handlers.pop(self._identity, None)


class SharedCore(Engine):
    """A whole core over the counting model, of any number of clients. What it says waits until it is delivered."""

    def __init__(self, epoch: int) -> None:
        self.handlers: dict[bytes, tuple[MessageHandler[CoreMessage], Callable[[], None]]] = {}
        self.received: list[ClientMessage] = []
        self.is_dead = False
        self._num_connections = 0
        self._mail: deque[tuple[bytes, bytes]] = deque()
        self._arrivals: dict[bytes, tuple[bool, int]] = {}  # by prompt: whether it came as a suspect, with how much
        super().__init__(epoch=epoch)

    def connect(
        self,
        on_message: MessageHandler[CoreMessage],
        on_malformed: MalformedHandler,
        on_disconnect: Callable[[], None],
    ) -> Connection:
        self._num_connections += 1
        identity = b"%d" % self._num_connections
        self.handlers[identity] = on_message, on_disconnect
        return Connection(self, identity)

    def take(self, identity: bytes, message: ClientMessage) -> None:
        if self.is_dead:
            return
        self.received.append(message)
        if isinstance(message, Submit):
            num_known = sum(len(output.tokens) // 4 for output in message.outputs)
            self._arrivals[message.prompt] = message.num_losses > 0, num_known
        self.receive(message, identity)

    def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
        self._mail.append((identity, msgspec.msgpack.encode(message)))
        return True

    def deliver(self) -> bool:
        """Let clients read all that was said; False if nothing was."""
        mail = list(self._mail)
        self._mail.clear()
        for identity, frame in mail:
            if identity in self.handlers:
                self.handlers[identity][0](b"", msgspec.msgpack.decode(frame, type=CoreMessage))
        return bool(mail)

    @property
    def is_poisoned(self) -> bool:
        """Whether it has computed what ends a core."""
        found = self.scheduler.requests(1, POISON)
        return bool(found) and found[0]["finish"] is None and found[0]["scheduled_at"] is not None

    def die(self) -> None:
        """End with the last step, of which nothing is told; who connects again hears nothing."""
        self._mail = deque(each for each in self._mail if b"Isolated" in each[1])
        self.deliver()
        self.is_dead = True
        for _, on_disconnect in list(self.handlers.values()):
            on_disconnect()

    def prompts(self) -> list[int]:
        """The first token of the prompt of each request that lives here."""
        return sorted(self._arrivals_of_living())

    def suspects(self) -> list[int]:
        """The same of those that came as suspects and were not cleared yet."""
        living = self._arrivals_of_living().items()
        return sorted(
            prompt for prompt, (is_suspect, num_fresh) in living if is_suspect and num_fresh < CLEARING_TOKENS
        )

    def has_healthy(self) -> bool:
        """Whether some were no suspects when they came."""
        return any(not is_suspect for is_suspect, _ in self._arrivals_of_living().values())

    def _arrivals_of_living(self) -> dict[int, tuple[bool, int]]:
        """Whether each came as a suspect, and the tokens that it has had since."""
        found = {}
        for report in self.scheduler.requests(100):
            if report["finish"] is None:
                prompt, _ = self.scheduler.history(report["client"], report["request"])
                is_suspect, num_known = self._arrivals[prompt]
                found[array("i", prompt)[0]] = is_suspect, report["num_output_tokens"] - num_known
        return found


class World:
    """Three cores, and clients that were told of some of them. Prompts are one token each, and all differ."""

    def __init__(self) -> None:
        self.now = 100.0  # by the clients' clock
        self.cores = [SharedCore(epoch) for epoch in (21, 22, 23)]
        self.clients: list[EngineClient] = []
        self.readers: dict[int, Reader] = {}
        self.num_cores = len(self.cores)  # that there were
        self.num_healthy_deaths = 0  # of cores that worked for others

    def connect(self, index: int) -> Callable[..., Connection]:
        """Makes connections to whichever core is at this place."""

        def connect(*handlers: Any) -> Connection:
            return self.cores[index].connect(*handlers)

        return connect

    async def add_client(self, *indices: int) -> EngineClient:
        """One more client, of these cores."""
        client = EngineClient(
            *(self.connect(index) for index in indices),
            placement="round-robin",
            heartbeats=False,
            clock=lambda: self.now,
        )
        self.clients.append(client)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0)
        self.settle()
        await starting
        return client

    def submit(self, client: EngineClient, prompt: int, core: int | None = None, name: str = "") -> None:
        """Ask for what comes after this token, of some core or of a certain one."""
        self.readers[prompt] = Reader(1)
        scheduling = SchedulingParams(data_parallel_rank=core, name=name)
        client.submit([prompt], LONG, self.readers[prompt], scheduling)

    def settle(self) -> None:
        """Deliver messages until there are none."""
        while any(core.deliver() for core in self.cores if not core.is_dead):
            self.check()

    def check(self) -> None:
        """No core computes suspects beside what was never suspect: it may have ended a core, and others have not."""
        for core in self.cores:
            assert core.is_dead or not core.suspects() or not core.has_healthy()

    async def step(self, count: int) -> None:
        """Let cores compute some steps."""
        for _ in range(count):
            for core in self.cores:
                if not core.is_dead:
                    await core.core.step()
                    if core.is_poisoned:
                        self.num_healthy_deaths += core.has_healthy()
                        core.die()
            self.settle()

    def follow(self) -> None:
        """Let another core be where one has died."""
        for index, core in enumerate(self.cores):
            if core.is_dead:
                self.num_cores += 1
                self.cores[index] = SharedCore(epoch=100 * self.num_cores)

    def live(self, seconds: float) -> None:
        """Let time pass in which nothing is computed, and check after each message."""
        for _ in range(round(seconds / HEARTBEAT_INTERVAL)):
            self.now += HEARTBEAT_INTERVAL
            for client in self.clients:
                client.beat()
            for core in self.cores:
                core.now += HEARTBEAT_INTERVAL
                if not core.is_dead:
                    core.core.beat()
            self.settle()

    async def finish(self) -> None:
        """Compute the rest; each stream is what it would have been."""
        for _ in range(100):
            await self.step(2)
            self.live(HEARTBEAT_INTERVAL)
        for prompt, reader in self.readers.items():
            assert (reader.errors, reader.finishes) == ([], [FinishCode.LENGTH])
            assert reader.tokens == [list(range(prompt + 1, prompt + 41))]
        self.close()

    def close(self) -> None:
        for client in self.clients:
            client.close()


async def two_clients_of_three_cores(world: World) -> tuple[EngineClient, EngineClient]:
    """Each has a request on each core, which has a few tokens; then the first core is gone for good."""
    first, second = await world.add_client(0, 1, 2), await world.add_client(0, 1, 2)
    for prompt in (100, 200, 300):
        world.submit(first, prompt)
        world.submit(second, prompt + 50)
    await world.step(4)
    assert [core.prompts() for core in world.cores] == [[100, 150], [200, 250], [300, 350]]
    world.cores[0].die()
    return first, second


async def test_what_clients_lost_gets_a_core_that_all_of_them_make_free() -> None:
    world = World()
    await two_clients_of_three_cores(world)
    world.live(EVACUATION_DELAY - HEARTBEAT_INTERVAL)
    assert [core.prompts() for core in world.cores[1:]] == [[200, 250], [300, 350]]
    world.live(3 * HEARTBEAT_INTERVAL)
    assert [core.prompts() for core in world.cores[1:]] == [[100, 150], [200, 250, 300, 350]]
    assert world.cores[1].suspects() == [100, 150]
    moved = [each for each in world.cores[2].received if isinstance(each, Submit)][-2:]
    assert [(each.num_losses, len(each.outputs[0].tokens) > 0) for each in moved] == [(0, True)] * 2
    assert not [each for each in world.cores[2].received if isinstance(each, Reserve)], "one is enough"
    await world.finish()


async def test_nothing_else_goes_to_a_reserved_core_until_what_is_there_is_cleared() -> None:
    world = World()
    first, second = await two_clients_of_three_cores(world)
    world.live(EVACUATION_DELAY + 2 * HEARTBEAT_INTERVAL)
    for prompt in (400, 500):
        world.submit(first, prompt)
        world.submit(second, prompt + 50)
    assert world.cores[1].prompts() == [100, 150]
    world.live(2 * RESERVATION)  # Suspects are there: their clients ask again.
    world.submit(second, 600)
    assert world.cores[1].prompts() == [100, 150]
    await world.step(CLEARING_TOKENS)
    world.live(RESERVATION + HEARTBEAT_INTERVAL)
    for prompt in (700, 800):
        world.submit(second, prompt)
    assert world.cores[1].prompts()[2:] in ([700], [800]), "it takes turns again"
    await world.finish()


async def test_a_core_that_was_free_is_for_suspects_from_the_first_one_on() -> None:
    world = World()
    first, second = await world.add_client(0, 1, 2), await world.add_client(0, 1, 2)
    world.submit(first, 100, 0)
    world.submit(second, 200, 2)
    await world.step(2)
    world.cores[0].die()
    world.live(HEARTBEAT_INTERVAL)
    assert world.cores[1].suspects() == [100]
    for prompt in (300, 400, 500):
        world.submit(second, prompt)
    assert world.cores[2].prompts() == [200, 300, 400, 500]
    await world.finish()


async def test_what_is_never_cleared_keeps_a_core_for_a_time_only() -> None:
    world = World()
    _, second = await two_clients_of_three_cores(world)
    world.live(EVACUATION_DELAY + MAX_RESERVATION - 2.0)
    for prompt in (400, 500):
        world.submit(second, prompt)
    assert world.cores[1].prompts() == [100, 150]
    world.live(2.0 + RESERVATION)
    # Suspects of one's own keep it from one's own requests, as ever; a third client has none.
    third = await world.add_client(1, 2)
    for prompt in (600, 700):
        world.submit(third, prompt)
    assert world.cores[1].prompts() == [100, 150, 600]
    world.close()


async def test_a_core_stays_for_a_client_that_has_no_other_one_and_another_is_made_free_later() -> None:
    world = World()
    third = await world.add_client(1)
    world.submit(third, 250)
    first = await world.add_client(0, 1, 2)
    for prompt, core in ((100, 0), (110, 0), (200, 2), (210, 2)):
        world.submit(first, prompt, core)
    await world.step(2)
    world.cores[0].die()
    world.live(EVACUATION_DELAY + 2 * HEARTBEAT_INTERVAL)
    assert [core.prompts() for core in world.cores[1:]] == [[250], [200, 210]]
    world.submit(third, 260)
    assert world.cores[1].prompts() == [250, 260]
    world.live(MAX_RESERVATION + RESERVATION)
    assert world.cores[1].prompts() == [200, 210, 250, 260]
    assert world.cores[2].suspects() == [100, 110]
    await world.finish()


def test_only_a_core_that_was_reserved_for_the_longest_time_rests() -> None:
    core = Core(0, "")
    for end in (5.0, MAX_RESERVATION):
        for now in range(int(end)):
            assert core.take_report(LoadReport(1, 0, 1, b"", b"", 0, RESERVATION), now) == (now == 0)
            assert core.is_reserved(now)
        core.take_report(LoadReport(1, 0, 1, b"", b"", 0, RESERVATION if end == MAX_RESERVATION else 0.0), end)
        assert not core.is_reserved(end)
        assert core.rests(end) == (end == MAX_RESERVATION)
    assert not core.take_report(LoadReport(1, 0, 1, b"", b"", 0, RESERVATION), 2 * MAX_RESERVATION - 1)
    assert core.take_report(LoadReport(1, 0, 1, b"", b"", 0, RESERVATION), 2 * MAX_RESERVATION), "it may begin again"


async def test_of_two_reserved_cores_all_clients_use_the_same_one_where_there_is_no_third() -> None:
    cores = [FakeCore(epoch=epoch) for epoch in (9, 8, 7)]
    client = EngineClient(*(core.connect for core in cores), placement="round-robin", heartbeats=False)
    await client.start()
    for prompt in (1, 2, 3):
        client.submit([prompt], LONG, Reader(1))
    for core in cores[:2]:
        core.say(LoadReport(core.epoch, 0, 0, b"", b"", 0, RESERVATION))
    assert [report.num_requests for report in client.cores] == [0, 0, 3]
    cores[2].say(LoadReport(7, 0, 0, b"", b"", 0, RESERVATION))
    assert [report.num_requests for report in client.cores] == [2, 1, 0]
    client.close()


@settings(max_examples=10)
@given(
    num_clients=st.integers(2, 3),
    num_requests=st.integers(1, 4),
    place=st.integers(0, 2),
    delay=st.integers(1, 30),
    steps=st.integers(1, 4),
    late=st.integers(0, 20),
)
def test_a_request_that_ends_cores_ends_one_that_works_for_others(
    num_clients: int, num_requests: int, place: int, delay: int, steps: int, late: int
) -> None:
    """`delay` beats until there are cores again, `steps` in each beat, and others ask `late` after that one."""

    async def live() -> None:
        world = World()
        clients = [await world.add_client(0, 1, 2) for _ in range(num_clients)]
        for number in range(3 * num_requests):
            for index, client in enumerate(clients):
                world.submit(client, 10 + 100 * index + number)
        await world.step(2)
        world.submit(clients[0], 900, place, POISON)
        for beat in range(200):
            await world.step(steps)
            world.live(HEARTBEAT_INTERVAL)
            if beat % delay == delay - 1:
                world.follow()
            if beat % 4 == 0 and beat <= late:
                world.submit(clients[beat % num_clients], 700 + beat)
        assert world.num_healthy_deaths == 1
        (error,) = world.readers.pop(900).errors
        assert str(error).startswith("this request ended the engine core that computed it ")
        await world.finish()

    asyncio.run(live())
