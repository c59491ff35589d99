"""The shared state elsewhere is the shared state here: the same calls, over a wire, and what is left by the dead."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from pyllm.config.api_keys import Allowance
from pyllm.config.process_config import SharedConfig
from pyllm.errors import EngineDeadError, ProtocolError
from pyllm.frontend.shared.messages import (
    MAX_SILENT_BEATS,
    Admission,
    Attached,
    Granted,
    Joined,
    MemberMessage,
    Page,
    Refused,
    Run,
    StateCall,
    StateMessage,
)
from pyllm.frontend.shared.remote_state import RemoteState, StateLostError
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.frontend.shared.state_server import StateServer
from pyllm.frontend.shared.totals import NOTHING, Row, encode_row
from pyllm.wire import ipc
from pyllm.wire.supervision_messages import CoreEntry, CoreList
from tests.waiting import until


class Wire:
    """What a `StateServer` and its members are connected by; everything is encoded and decoded.

    A member's first connection has its name as identity, those after it have more and more dashes behind it.
    """

    def __init__(self) -> None:
        self.unreachable: set[bytes] = set()
        self.lost: dict[bytes, Callable[[], None]] = {}
        self.start()

    def start(self) -> None:
        """Begin with a state that knows nothing; who was connected before notices."""
        self.state = SharedState(SharedConfig(max_num_queued_reqs=1))
        self.server = StateServer(self.state, self._listen)
        lost, self.lost = self.lost, {}
        for on_disconnect in lost.values():
            on_disconnect()

    def send(self, message: StateMessage, *frames: object, identity: bytes = b"") -> bool:
        if identity in self.unreachable:
            raise ipc.PeerGoneError(identity.hex())
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=StateMessage)
        handler = self.handlers[identity]
        asyncio.get_running_loop().call_soon(lambda: handler(b"", decoded))
        return True

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""

    def join(self, name: bytes) -> RemoteState:
        wire = self
        names = (name + b"-" * number for number in itertools.count())

        class End:
            def __init__(self, identity: bytes) -> None:
                self.identity = identity

            def send(self, message: MemberMessage, *frames: object, identity: bytes = b"") -> bool:
                wire.say(self.identity, message)
                return True

            def close(self, linger: float = 0.0) -> None:
                wire.unreachable.add(self.identity)

        def connect(on_message, on_malformed, on_disconnect):  # type: ignore[no-untyped-def]  # as `Connect` has it
            end = End(next(names))
            wire.handlers[end.identity], wire.lost[end.identity] = on_message, on_disconnect
            return end

        return RemoteState(connect)

    def say(self, name: bytes, message: MemberMessage) -> None:
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=MemberMessage)
        on_message = self._on_message
        asyncio.get_running_loop().call_soon(lambda: on_message(name, decoded))

    def _listen(self, on_message, on_malformed):  # type: ignore[no-untyped-def]  # as `StateServer` has it
        self.handlers = {}
        self._on_message = on_message
        return self


@asynccontextmanager
async def wired() -> AsyncGenerator[Wire, None]:
    wire = Wire()
    yield wire
    wire.server.close()


async def test_what_is_asked_is_answered_with_its_type() -> None:
    async with wired() as wire:
        one, two = wire.join(b"1"), wire.join(b"2")
        assert await one.admit(Admission(1)) == Granted(counts_tokens=False)
        assert isinstance(await one.admit(Admission(2)), Granted)
        refused = await two.admit(Admission(1))
        assert isinstance(refused, Refused)
        assert refused.reason == "max_num_queued_reqs"
        one.started(1)
        one.ended(1, 5)
        assert isinstance(await two.admit(Admission(1)), Granted)
        row = encode_row(Row(b"\0" * 8, {"x": 1}))
        assert await one.totals(row) == row
        claim = await one.claim("", "key", b"digest", "origin")
        assert isinstance(claim, Run)
        assert await two.claim("", "key", b"digest", "origin") == Attached(claim.record)
        reading = asyncio.ensure_future(two.read(claim.record, 0))
        one.start(claim.run, 200, ((b"a", b"b"),))
        one.append(claim.run, b"id: x\ndata: y\n\n")
        assert await reading == Page(200, ((b"a", b"b"),), b"id: x\ndata: y\n\n")
        assert await two.find(claim.record, b"x") == 15
        one.finish(claim.run, keep=True)
        await one.abandoned(claim.run)
        assert await two.read(claim.record, 15) == Page(200, ((b"a", b"b"),), is_over=True)


async def test_the_list_of_cores_outlives_the_state() -> None:
    async with wired() as wire:
        one, two = wire.join(b"1"), wire.join(b"2")
        nothing = await one.follow_cores(CoreList(version=-1), ())
        known = await one.add_core(nothing, CoreEntry(await two.reserve_core(nothing), "ipc://0", 4))
        assert isinstance(known, CoreList)
        following = [asyncio.ensure_future(each.follow_cores(known, (0,))) for each in (one, two)]
        await asyncio.sleep(0)
        wire.start()
        assert wire.state.cores.list == nothing
        added = await two.add_core(known, CoreEntry(1, "ipc://1", 4))
        assert [await each for each in following] == [added, added]
        assert [core.index for core in wire.state.cores.list.cores] == [0, 1]


async def test_what_the_dead_held_is_given_back_and_the_living_take_over() -> None:
    async with wired() as wire:
        one, two = wire.join(b"1"), wire.join(b"2")
        await one.admit(Admission(1))
        claim = await one.claim("", "key", b"digest", "origin")
        await two.claim("", "key", b"digest", "origin")
        reading = asyncio.ensure_future(two.read(claim.record, 0))
        await until(lambda: wire.state.num_tickets == 1)
        wire.unreachable.add(b"1")
        wire.server.beat()
        assert (await reading).is_orphaned
        assert (wire.state.num_tickets, wire.server.num_members) == (0, 1)
        assert isinstance(await two.take_over(claim.record), Run)


async def test_a_silent_member_is_given_up_and_what_it_runs_is_let_in_again() -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        await one.admit(Admission(1))
        await one.admit(Admission(2))
        one.started(1)
        pending = asyncio.ensure_future(one.read((await one.claim("", "k", b"", "o")).record, 0))
        await asyncio.sleep(0)
        for _ in range(MAX_SILENT_BEATS + 1):
            wire.server.beat()
        assert (wire.state.num_tickets, wire.server.num_members) == (0, 0)
        one.beat(b"")
        with pytest.raises(StateLostError, match="share is not there"):
            await pending
        await until(lambda: wire.state.num_tickets == 2)
        wire.server.beat()  # which finds that the connection that was given up is gone
        assert (wire.state.num_tickets, wire.server.num_members) == (2, 1)
        one.ended(1, 5)
        one.ended(2, 5)
        assert isinstance(await one.admit(Admission(3)), Granted)
        assert wire.state.num_tickets == 1


async def test_a_state_that_is_silent_is_left_for_its_successor() -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        pending = asyncio.ensure_future(one.read((await one.claim("", "k", b"", "o")).record, 0))
        for _ in range(2 * MAX_SILENT_BEATS):
            one.beat(b"")
            wire.server.beat()
            await asyncio.sleep(0)
        assert not pending.done()
        assert wire.handlers.keys() == {b"1"}
        for _ in range(MAX_SILENT_BEATS + 1):
            one.beat(b"")
        with pytest.raises(StateLostError, match="share is not there"):
            await pending
        assert wire.handlers.keys() == {b"1", b"1-"}
        assert isinstance(await one.admit(Admission(1)), Granted)


async def test_a_state_that_is_silent_or_gone_is_told_by_its_members() -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        assert "is not there" in one.trouble
        await one.admit(Admission(1))
        assert not one.trouble
        for _ in range(5):
            one.beat(b"")
        assert one.trouble.endswith("no sign of life for 2.5 s")
        wire.server.beat()
        await until(lambda: not one.trouble)
        wire.unreachable.add(b"1")
        wire.lost[b"1"]()
        assert "is not there" in one.trouble


async def test_the_successor_of_a_state_is_told_what_was_let_in() -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        limited = Allowance(max_concurrent_requests=2, max_requests_per_minute=60, max_tokens_per_minute=600)
        for ticket in (1, 2):
            await one.admit(Admission(ticket, "acme", limited))
            await one.charge(ticket, 100)
            one.started(ticket)
        await one.admit(Admission(3, "other"))
        one.ended(2, 5)
        await until(lambda: wire.state.num_tickets == 2)
        wire.start()
        one.started(3)
        granted = await one.admit(Admission(4, "acme", limited))
        assert isinstance(granted, Granted)
        assert granted.requests is not None
        assert granted.tokens is not None
        assert (granted.requests.remaining, granted.tokens.remaining) == (59, 600)  # the budgets begin anew
        one.started(4)
        refused = await one.admit(Admission(5, "acme", limited))
        assert isinstance(refused, Refused)
        assert refused.reason == "concurrent"
        assert wire.state.num_tickets == 3
        for ticket in (1, 3, 4):
            one.ended(ticket, 0)
        await one.totals(encode_row(NOTHING))
        assert wire.state.num_tickets == 0


async def test_what_was_asked_of_a_state_that_died_is_asked_again_unless_it_is_of_a_record() -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        claim = await one.claim("", "k", b"", "o")
        assert isinstance(claim, Run)
        of_the_record = [one.read(claim.record, 0), one.find(claim.record, b"x"), one.abandoned(claim.run)]
        lost = [asyncio.ensure_future(each) for each in of_the_record]
        asked = [asyncio.ensure_future(each) for each in (one.admit(Admission(1)), one.claim("", "k", b"", "o"))]
        await asyncio.sleep(0)
        wire.start()
        for each in lost:
            with pytest.raises(StateLostError):
                await each
        with pytest.raises(StateLostError):
            await one.read(claim.record, 0)
        granted, anew = await asyncio.gather(*asked)
        assert isinstance(granted, Granted)
        assert isinstance(anew, Run)
        assert anew.record != claim.record
        assert (await one.read(claim.record, 0)).is_lost
        one.append(claim.run, b"of another state")
        one.append(anew.run, b"of this one")
        assert (await one.read(anew.record, 0)).body == b"of this one"


async def test_what_is_asked_has_to_be_answered_in_time() -> None:
    class Mute:
        """Takes everything and says nothing."""

        def send(self, message: MemberMessage, *frames: object, identity: bytes = b"") -> bool:
            return True

        def close(self, linger: float = 0.0) -> None:
            """Nothing is open."""

    joined: list[Callable[[bytes, StateMessage], None]] = []
    one = RemoteState(lambda on_message, *handlers: joined.append(on_message) or Mute(), answer_time=0.01)
    joined[0](b"", Joined())
    reading = asyncio.ensure_future(one.read(1, 0))
    with pytest.raises(EngineDeadError, match="did not answer 'admit' within"):
        await one.admit(Admission(1))
    assert not reading.done()  # it waits for others, not for the state
    one.close()
    with pytest.raises(EngineDeadError):
        await reading


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("nothing", ()),
        ("_state", ()),
        ("admit", ()),
        ("ended", ("x", 1)),
        ("started", (1, 2)),
        ("close", ()),
        ("beat", (b"",)),
    ],
)
async def test_a_call_that_does_not_fit_changes_nothing(method: str, args: tuple[object, ...]) -> None:
    async with wired() as wire:
        one = wire.join(b"1")
        await one.admit(Admission(1))
        wire.say(b"1", StateCall(0, method, args))
        with pytest.raises(ProtocolError, match="refused a call"):
            await one._ask(int, method, *args)
        assert await one.find(1, b"x") == -1
        assert wire.state.num_tickets == 1


async def test_over_zeromq_the_end_of_a_process_is_noticed(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{tmp_path}/state"
    state = SharedState(SharedConfig())
    socket = ipc.bind(context, zmq.ROUTER, address)
    server = StateServer(state, lambda *handlers: ipc.Endpoint(socket, MemberMessage, *handlers))
    one, two = await RemoteState.connect(address, 10.0), await RemoteState.connect(address, 10.0)
    await one.admit(Admission(1))
    await two.admit(Admission(1))
    one.close()
    while state.num_tickets > 1:
        server.beat()
        await two.find(1, b"")  # a sign of life for each beat
    assert server.num_members == 1
    server.close()
    state = SharedState(SharedConfig())
    socket = ipc.bind(context, zmq.ROUTER, address)
    server = StateServer(state, lambda *handlers: ipc.Endpoint(socket, MemberMessage, *handlers))
    assert isinstance(await two.admit(Admission(2)), Granted)
    assert state.num_tickets == 2
    server.close()
    two.close()
    context.term()


async def test_a_state_that_never_answers_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineDeadError, match="no shared state answered"):
        await RemoteState.connect(f"ipc://{tmp_path}/nobody", 0.05)
