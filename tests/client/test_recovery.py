"""Whenever cores die, and whatever was on its way then: every stream is what it would have been without."""

import asyncio
from array import array
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.client.client import EngineClient
from pyllm.client.logprobs import LogprobEntries
from pyllm.client.submission import prepare
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import CoreMessage, FinishCode
from tests.client.fake_core import MODEL, START, Entries, embedded, told
from tests.client.mortal_core import MortalCore, Reader, whole_output


class Asked(NamedTuple):
    """One request; `stop` is a token at which its reader has enough."""

    prompt: list[int]
    params: SamplingParams
    stop: int | None = None
    embeds: bool = False


PROMPTS = st.lists(st.integers(1, 29), min_size=1, max_size=6)
DRAWN = st.builds(
    Asked,
    PROMPTS,
    st.builds(
        SamplingParams,
        n=st.integers(1, 3),
        seed=st.integers(0, 9),
        max_tokens=st.integers(2, 6),
        min_tokens=st.integers(0, 2),
        logprobs=st.sampled_from([None, 0, 2]),
        prompt_logprobs=st.sampled_from([None, 0]),
        ignore_eos=st.booleans(),
    ),
    st.none() | st.integers(1, 29),
    st.just(False),
)
BEAMS = st.builds(
    lambda prompt, width, most: Asked(prompt, SamplingParams(n=width, beam_width=width, max_tokens=most, seed=1)),
    PROMPTS,
    st.integers(1, 3),
    st.integers(1, 4),
)
EMBEDDED = st.builds(lambda prompt: Asked(prompt, SamplingParams(), embeds=True), PROMPTS)

ACTIONS = st.one_of(
    st.tuples(st.just("submit"), DRAWN | BEAMS | EMBEDDED),
    st.tuples(st.just("step"), st.integers(0, 7)),
    st.tuples(st.just("deliver"), st.integers(1, 4)),
    st.tuples(st.just("work"), st.integers(1, 3)),
    st.tuples(st.just("work"), st.integers(1, 3)),
    st.tuples(st.just("deafen"), st.none()),
    st.tuples(st.just("die"), st.booleans()),
    st.tuples(st.just("abort"), st.tuples(st.integers(0, 5), st.integers(-1, 2))),
    st.tuples(st.just("beat"), st.none()),
)


class Asker:
    """Who asks `client`, and what was asked of it."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.asked: list[tuple[Asked, Reader, set[int]]] = []  # and the samples that were aborted
        self.ids: list[int] = []

    def submit(self, asked: Asked) -> None:
        prompt, params, stop, embeds = asked
        reader = Reader(params.n, stop)
        request = self.client.submit_embedding(prompt, reader) if embeds else self.client.submit(prompt, params, reader)
        reader.abort = lambda sample: self.client.abort(request, sample)
        self.asked.append((asked, reader, set()))
        self.ids.append(request)

    def abort(self, place: int, sample: int) -> None:
        if place < len(self.asked):
            asked, _, aborted = self.asked[place]
            n = asked.params.n
            if sample < n:
                aborted.update(range(n) if sample < 0 or asked.params.beam_width else {sample})
                self.client.abort(self.ids[place], sample)


class World(Asker):
    """One client, the core that it is connected to, and what was asked of it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.num_deaths_alone = 0  # of cores whose client knew of a request that was alone
        super().__init__(EngineClient(self.connect, heartbeats=False))

    def connect(
        self, on_message: MessageHandler[CoreMessage], on_malformed: MalformedHandler, on_disconnect: Callable[[], None]
    ) -> MortalCore:
        self.epoch += 1
        self.core = MortalCore(self.epoch, num_cached=16 * self.epoch)
        self.core.connect(on_message, on_malformed, on_disconnect)
        return self.core

    def do(self, action: str, value: object) -> None:
        match action, value:
            case "submit", Asked():
                self.submit(value)
            case "step", int():
                self.core.step(lambda place: bool(value >> place % 3 & 1))
            case "deliver", int():
                for _ in range(value):
                    self.core.deliver()
            case "work", int():
                for _ in range(value):
                    self.core.step(lambda place: True)
                    self.core.deliver()
            case "deafen", _:
                self.core.is_deaf = True
            case "die", bool():
                self.die()
                if value:
                    self.core.deliver()  # The next one is ready at once.
            case "abort", (int() as place, int() as sample):
                self.abort(place, sample)
            case "beat", _:
                self.client.beat()

    def die(self) -> None:
        if self.core.told_alone is not None:
            self.num_deaths_alone += 1
        self.core.on_disconnect()

    def finish(self) -> None:
        """Let the last core live, and answer all."""
        if self.core.is_deaf:
            self.die()
        while not self.client.condition().ready:
            self.client.beat()
            self.core.deliver()
        for _ in range(200):
            self.core.step(lambda place: True)
            while self.core.said:
                self.core.deliver()
        assert self.client.num_requests == 0


DEATHS_ALONE = 2  # after which a request is failed


def shown(entries: list[LogprobEntries]) -> list[Entries]:
    return [[(token, each.logprob, each.rank or 0) for token, each in place.items()] for place in entries]


def check(asked: Asked, reader: Reader, aborted: set[int]) -> None:
    prompt, params, stop, embeds = asked
    if embeds:
        assert len(reader.errors) + len(reader.vectors) == 1
        assert reader.vectors == [array("f", embedded(prompt))] or aborted
        return
    assert reader.errors == []
    assert reader.starts or not any(reader.tokens)
    assert (START, True) not in reader.starts
    submit = prepare(prompt, params, MODEL)
    for sample in range(params.n):
        tokens, finish = whole_output(submit, sample)
        if stop in tokens:
            tokens, finish = tokens[: tokens.index(stop) + 1], FinishCode.STOP
        got = reader.tokens[sample]
        if reader.finishes[sample] is FinishCode.ABORT:
            assert sample in aborted
            assert got == tokens[: len(got)]
        else:
            assert (got, reader.finishes[sample]) == (tokens, finish)
        count = params.logprobs if not params.beam_width else 0
        assert shown(reader.entries[sample]) == ([] if count is None else [told(token, count) for token in got])
    assert len(reader.cached) <= 1
    if params.prompt_logprobs is not None:
        whole = [told(token, 0) for token in prompt[1:]]
        of_prompt = shown(reader.of_prompt)
        assert of_prompt == whole if len(aborted) < params.n else of_prompt == whole[: len(of_prompt)]


@settings(max_examples=200)
@given(st.lists(ACTIONS, max_size=40))
def test_every_stream_is_its_uncrashed_twin(actions: list[tuple[str, object]]) -> None:
    async def live() -> None:
        world = World()
        starting = asyncio.ensure_future(world.client.start())
        await asyncio.sleep(0)
        world.core.deliver()
        await starting
        for action, value in actions:
            world.do(action, value)
        world.finish()
        num_failed = 0
        for asked, reader, aborted in world.asked:
            if reader.errors and world.num_deaths_alone >= DEATHS_ALONE:
                assert str(reader.errors[0]).startswith("this request ended the engine core that computed it ")
                num_failed += 1
            else:
                check(asked, reader, aborted)
        assert num_failed <= world.num_deaths_alone // DEATHS_ALONE
        world.client.close()

    asyncio.run(live())
