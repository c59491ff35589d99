"""Several cores that die, drain, stall and fall silent: each stream is what it would have been on one."""

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.client.client import EngineClient
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import CoreMessage, Heartbeat
from tests.client.mortal_core import MortalCore
from tests.client.test_recovery import BEAMS, DEATHS_ALONE, DRAWN, EMBEDDED, Asked, Asker, check
from tests.client.test_several_cores import Clock

NUM_PLACES = 3
PLACES = st.integers(0, NUM_PLACES - 1)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), DRAWN | BEAMS | EMBEDDED, st.just(0)),
    st.tuples(st.just("step"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("deliver"), PLACES, st.integers(1, 4)),
    st.tuples(st.just("work"), PLACES, st.integers(1, 3)),
    st.tuples(st.just("work"), PLACES, st.integers(1, 3)),
    st.tuples(st.just("deafen"), PLACES, st.just(0)),
    st.tuples(st.just("die"), PLACES, st.booleans()),
    st.tuples(st.just("say"), PLACES, st.sampled_from(["ready", "draining", "stalled", "recovering"])),
    st.tuples(st.just("abort"), st.integers(0, 5), st.integers(-1, 2)),
    st.tuples(st.just("beat"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("pass"), st.integers(1, 12), st.just(0)),
)


class World(Asker):
    """One client, a core at each place, and what was asked of it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.num_deaths_alone = 0
        self.clock = Clock()
        self.cores: list[MortalCore] = [MortalCore(0, 0)] * NUM_PLACES
        super().__init__(
            EngineClient(
                *(self.connect(place) for place in range(NUM_PLACES)),
                placement="round-robin",
                heartbeats=False,
                clock=self.clock,
            )
        )

    def connect(self, place: int) -> Callable[..., MortalCore]:
        def connect(
            on_message: MessageHandler[CoreMessage],
            on_malformed: MalformedHandler,
            on_disconnect: Callable[[], None],
        ) -> MortalCore:
            self.epoch += 1
            core = self.cores[place] = MortalCore(self.epoch, num_cached=16 * self.epoch)
            core.connect(on_message, on_malformed, on_disconnect)
            return core

        return connect

    def do(self, action: str, value: object, detail: object) -> None:
        match action, value, detail:
            case "submit", Asked(), _:
                self.submit(value)
            case "abort", int(), int():
                self.abort(value, detail)
            case "beat", int(), _:
                for _ in range(value):
                    self.client.beat()
            case "pass", int(), _:
                self.clock.now += value
            case _, int(), _:
                self.do_core(action, value, detail)

    def do_core(self, action: str, place: int, detail: object) -> None:
        core = self.cores[place]
        match action, detail:
            case "step", int():
                core.step(lambda row: bool(detail >> row % 3 & 1))
            case "deliver", int():
                for _ in range(detail):
                    core.deliver()
            case "work", int():
                for _ in range(detail):
                    core.step(lambda row: True)
                    core.deliver()
            case "deafen", _:
                core.is_deaf = True
            case "die", _:
                self.die(place)
                if detail:
                    self.cores[place].deliver()
            case "say", str():
                core.said.append(lambda: core.say(Heartbeat(detail)))

    def die(self, place: int) -> None:
        if self.cores[place].told_alone is not None:
            self.num_deaths_alone += 1
        self.cores[place].on_disconnect()

    def finish(self) -> None:
        """Let all cores live, and answer all."""
        for place, core in enumerate(self.cores):
            if core.is_deaf:
                self.die(place)
        for _ in range(300):
            self.clock.now += 0.5
            for core in self.cores:
                core.step(lambda place: True)
                while core.said:
                    core.deliver()
                core.say(Heartbeat("ready"))
            self.client.beat()
            if not self.client.num_requests:
                break
        assert self.client.num_requests == 0
        assert [report.num_requests for report in self.client.cores] == [0] * NUM_PLACES


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=50))
def test_every_stream_is_its_undisturbed_twin(actions: list[tuple[str, object, object]]) -> None:
    async def live() -> None:
        world = World()
        starting = asyncio.ensure_future(world.client.start())
        await asyncio.sleep(0)
        for core in world.cores:
            core.deliver()
        await starting
        for action in actions:
            world.do(*action)
        world.finish()
        for asked, reader, aborted in world.asked:
            if reader.errors and world.num_deaths_alone >= DEATHS_ALONE:
                assert str(reader.errors[0]).startswith("this request ended the engine core that computed it ")
            else:
                check(asked, reader, aborted)
        world.client.close()

    asyncio.run(live())
