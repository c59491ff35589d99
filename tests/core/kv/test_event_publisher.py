"""The publisher of KV events: whoever follows it knows the prefix cache, whatever was lost and whoever was replaced."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.kv_events import END, BlockMap
from pyllm.config.engine_settings import KVEventsConfig
from pyllm.core.kv.event_publisher import BATCHES_PER_TURN, EventPublisher, claim_addresses, is_bound_address
from pyllm.errors import ConfigError
from tests.core.raw_engine import Engine

PUBLISHED, REPLAYED = "inproc://events", "inproc://replay"


class Core:
    """An engine that is published; each has an incarnation of its own."""

    def __init__(self, context: zmq.Context[Any], epoch: int = 7, **options: Any) -> None:
        self.context = context
        self.engine = Engine(epoch=epoch, enable_kv_cache_events=True)
        self.num_requests = 0
        config = KVEventsConfig(
            **{"kv_events_endpoint": PUBLISHED, "kv_events_replay_endpoint": REPLAYED, "kv_events_hashes": "bytes"}
            | options
        )
        self.publisher = EventPublisher(self.engine.scheduler, context, config, clock=lambda: 1.5)

    async def run(self, text: int, num_tokens: int) -> None:
        """Compute a prompt, of blocks that texts do not share, and publish what that stored and evicted."""
        self.num_requests += 1
        self.engine.submit(self.num_requests, [text] * num_tokens, max_tokens=1, epoch=self.engine.epoch)
        await self.engine.run_dry()
        self.publisher.publish()

    def known(self) -> set[tuple[bytes, int, str]]:
        """The blocks that there are."""
        media = {"device": "GPU", "host": "CPU"}
        events = self.engine.scheduler.snapshot()[2]
        return {(name, group, media[tier]) for _, name, _, _, tier, group in events}


class Subscriber:
    """Follows with the map of the example."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        shadow = zmq.asyncio.Context.shadow(context.underlying)
        self.subscription, self.replays = shadow.socket(zmq.SUB), shadow.socket(zmq.DEALER)
        self.subscription.subscribe(b"")
        self.blocks = BlockMap()
        self.connect()

    def connect(self) -> None:
        self.subscription.connect(PUBLISHED)
        self.replays.connect(REPLAYED)

    async def joined(self, core: Core) -> None:
        """Wait until the core publishes to this subscriber, and take nothing: what is cached is gone then."""
        while not await self.subscription.poll(1):
            core.engine.scheduler.reset_prefix_cache()
            core.publisher.publish()
        while await self.subscription.poll(0):
            await self.subscription.recv_multipart()

    async def replay(self, first: int) -> AsyncIterator[tuple[int, bytes]]:
        await self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            _, _, sequence, payload = await self.replays.recv_multipart()
            if sequence == END:
                return
            yield int.from_bytes(sequence, "big"), payload

    async def sequences(self, first: int) -> list[int]:
        return [sequence async for sequence, _ in self.replay(first)]

    async def catch_up(self, first: int) -> None:
        async with aclosing(self.replay(first)) as batches:
            async for batch in batches:
                assert self.blocks.apply(*batch)

    async def hear(self, lost: frozenset[int]) -> None:
        """Take all that was published but the batches of these numbers."""
        while await self.subscription.poll(0):
            _, frame, payload = await self.subscription.recv_multipart()
            sequence = int.from_bytes(frame, "big")
            if sequence not in lost and not self.blocks.apply(sequence, payload):
                await self.catch_up(self.blocks.next)

    def close(self) -> None:
        self.subscription.close(0)
        self.replays.close(0)


@contextmanager
def followed(epoch: int = 7, **options: Any) -> Iterator[tuple[Core, Subscriber]]:
    """A core and who follows it, in a context of their own, as processes have."""
    context: zmq.Context[Any] = zmq.Context()
    with ExitStack() as stack:
        stack.callback(context.destroy, 0)
        core = Core(context, epoch, **options)
        stack.callback(core.publisher.close)
        subscriber = Subscriber(context)
        stack.callback(subscriber.close)
        yield core, subscriber


ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.integers(0, 9), st.integers(4, 60)),
    st.tuples(st.just("reset"), st.just(0), st.just(0)),
    st.tuples(st.just("hear"), st.integers(0, 40), st.integers(0, 8)),
    st.tuples(st.just("restart"), st.integers(0, 40), st.integers(0, 8)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.integers(1, 6))
def test_a_subscriber_knows_the_cache_through_drops_and_restarts(
    actions: list[tuple[str, int, int]], buffer_steps: int
) -> None:
    async def follow() -> None:
        blocks = BlockMap()
        with ExitStack() as stack:
            core, subscriber = stack.enter_context(followed(kv_events_buffer_steps=buffer_steps))
            for action, first, second in [("restart", 0, 0), *actions, ("hear", 0, 0)]:
                if action == "run":
                    await core.run(first, second)
                elif action == "reset":
                    core.engine.scheduler.reset_prefix_cache()
                    core.publisher.publish()
                else:
                    await subscriber.hear(lost=frozenset(range(first, first + second)))
                if action == "restart":
                    stack.close()
                    core, subscriber = stack.enter_context(followed(kv_events_buffer_steps=buffer_steps))
                    subscriber.blocks = blocks
                    await subscriber.joined(core)
                    await core.run(0, second)  # Before the subscriber hears of it.
                    await subscriber.catch_up(0)
            await subscriber.catch_up(blocks.next)
            assert blocks.blocks == core.known()

    asyncio.run(follow())


# The fields of `vllm/distributed/kv_events.py`, in their order; those with a default may be left out.
FIELDS: dict[str, list[Any]] = {
    "BlockStored": [
        ("block_hashes", list[int]),
        ("parent_block_hash", int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", int | None),
        ("medium", str | None),
        ("lora_name", str | None),
        ("group_idx", int | None, None),
    ],
    "BlockRemoved": [("block_hashes", list[int]), ("medium", str | None), ("group_idx", int | None, None)],
    "AllBlocksCleared": [],
}


@pytest.mark.parametrize("layout", ["map", "array"])
async def test_batches_are_those_of_vllm(layout: str) -> None:
    kinds = [
        msgspec.defstruct(name, fields, tag=True, array_like=layout == "array", forbid_unknown_fields=True)
        for name, fields in FIELDS.items()
    ]
    batch_type = tuple[float, list[kinds[0] | kinds[1] | kinds[2]], int]  # type: ignore[valid-type]
    options = {"kv_events_layout": layout, "kv_events_hashes": "int", "kv_events_topic": "kv@a@b"}
    with followed(**options) as (core, subscriber):
        await subscriber.joined(core)
        await core.run(5, 9)
        core.engine.scheduler.reset_prefix_cache()
        core.publisher.publish()
        frames = [await subscriber.subscription.recv_multipart() for _ in range(2)]
        first = int.from_bytes(frames[0][1], "big")
        assert [each async for each in subscriber.replay(first)] == [(first, frames[0][2]), (first + 1, frames[1][2])]
        names = [name for kind, name, *_ in core.engine.scheduler.events(0, 1000)[2] if kind == "stored"]
    assert [topic for topic, _, _ in frames] == [b"kv@a@b"] * 2
    batches = [msgspec.msgpack.decode(payload, type=batch_type) for _, _, payload in frames]
    assert [(seconds, rank) for seconds, _, rank in batches] == [(1.5, 0)] * 2
    (stored,), (cleared,) = (events for _, events, _ in batches)
    assert (type(stored), type(cleared)) == (kinds[0], kinds[2])
    assert stored.block_hashes == [int.from_bytes(name[-8:], "big") for name in names]
    assert (stored.parent_block_hash, stored.token_ids) == (None, [5] * 8)
    assert (stored.block_size, stored.medium) == (4, "GPU")


async def test_tokens_are_left_out_without_kv_events_tokens() -> None:
    with followed(kv_events_tokens=False) as (core, subscriber):
        await core.run(5, 9)
        _, (_, payload) = [each async for each in subscriber.replay(0)]
    (stored,) = msgspec.msgpack.decode(payload)[1]
    assert (len(stored["block_hashes"]), stored["token_ids"]) == (2, [])


async def test_a_long_replay_comes_whole_in_several_turns_beside_another() -> None:
    with followed() as (core, subscriber):
        for _ in range(3 * BATCHES_PER_TURN):
            core.engine.scheduler.reset_prefix_cache()
            core.publisher.publish()
        other = Subscriber(core.context)
        both = await asyncio.gather(*(each.sequences(0) for each in (subscriber, other)))
        other.close()
    assert both == [list(range(3 * BATCHES_PER_TURN + 1))] * 2


@pytest.mark.parametrize("frames", [[b""], [b"", b"1234567"], [b"x", bytes(8)], [b"", bytes(8), b""]])
async def test_what_is_no_request_for_a_replay_is_passed_over(frames: list[bytes]) -> None:
    with followed() as (_, subscriber):
        await subscriber.replays.send_multipart(frames)
        assert await subscriber.sequences(0) == [0]


async def test_an_address_that_is_taken_is_an_error() -> None:
    with followed() as (core, _), pytest.raises(ConfigError, match="'inproc://events' for KV events cannot be bound"):
        Core(core.context)


@pytest.mark.parametrize(
    ("address", "is_bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://127.0.0.1:5557", True),
        ("tcp://localhost:5557", True),
        ("ipc:///run/events", True),
        ("inproc://events", True),
        ("tcp://10.0.0.1:5557", False),
        ("tcp://router:5557", False),
    ],
)
def test_a_publisher_binds_what_vllm_binds_and_the_loopback(address: str, is_bound: bool) -> None:
    assert is_bound_address(address) == is_bound


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_second_publisher_is_refused_the_path_of_the_first(tmp_path: Path, is_replay: bool) -> None:
    taken, free = f"ipc://{tmp_path}/taken", f"ipc://{tmp_path}/free"
    first = KVEventsConfig(kv_events_endpoint=taken)
    addresses = (free, taken) if is_replay else (taken, free)
    second = KVEventsConfig(kv_events_endpoint=addresses[0], kv_events_replay_endpoint=addresses[1])
    with claim_addresses(first):
        with pytest.raises(ConfigError, match=f"{tmp_path}/taken: another pyllm"), claim_addresses(second):
            pass
        with claim_addresses(KVEventsConfig(kv_events_endpoint=free)):  # It was let go.
            pass
    with claim_addresses(second):
        pass


def test_an_address_that_publishers_connect_to_is_for_all() -> None:
    config = KVEventsConfig(kv_events_endpoint="tcp://gather.example:5557")
    with claim_addresses(config), claim_addresses(config):
        pass
