"""When a core is ready, silent or gone, and what is waited for then; counted in heartbeats."""

import asyncio
import itertools

import pytest

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import ATTEMPT, CORE_LOSS, Condition
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL, SILENCE
from pyllm.wire.messages import PROTOCOL_VERSION, Abort, FinishCode, Heartbeat, Isolated, Rejected, Submit
from tests.client.fake_core import EPOCH, Cores, FakeCore, Row, connected, deltas
from tests.client.mortal_core import Reader

SILENCE_BEATS, LOSS_BEATS, ATTEMPT_BEATS = (int(each / HEARTBEAT_INTERVAL) for each in (SILENCE, CORE_LOSS, ATTEMPT))
GREEDY = SamplingParams(temperature=0.0)


class AbsentCore(FakeCore):
    """Takes what is sent, and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_hello = False


def beat(client: EngineClient, times: int) -> None:
    for _ in range(times):
        client.beat()


async def test_a_silent_core_is_not_ready_and_then_left_for_another() -> None:
    silent, follower = FakeCore(), FakeCore(epoch=EPOCH + 1)
    client = await connected(Cores(silent, follower))
    reader = Reader(1)
    request = client.submit([1], GREEDY, reader)
    silent.say_rows(Row(request, [5]))
    beat(client, SILENCE_BEATS - 1)
    assert client.condition() == Condition(True)
    client.beat()
    assert client.condition() == Condition(False, False, "the engine core has given no sign of life for 2.5 s")
    silent.say(Heartbeat("ready", 1))
    assert client.condition().ready
    beat(client, LOSS_BEATS)
    assert (client.epoch, silent.closed) == (EPOCH, False)
    client.beat()
    assert (client.epoch, silent.closed, client.condition()) == (EPOCH + 1, True, Condition(True))
    (again,) = follower.sent(Submit)
    silent.say_rows(Row(request, [6], 1))  # It was only asleep.
    silent.say(deltas(Row(again.request, [7], 1), epoch=EPOCH + 1))  # Whatever it says.
    follower.say(deltas(Row(again.request, [8], 1), epoch=EPOCH))
    assert reader.tokens == [[5]]
    follower.say_rows(Row(again.request, [9], 1, finish=FinishCode.STOP))
    assert (reader.tokens, reader.finishes) == ([[5, 9]], [FinishCode.STOP])


async def test_addresses_are_tried_in_turn_each_for_a_while() -> None:
    core, absent, other = FakeCore(), AbsentCore(), FakeCore(epoch=EPOCH + 1)
    client = EngineClient(core.connect, absent.connect, other.connect, heartbeats=False)
    await client.start()
    core.on_disconnect()
    assert len(absent.received) == 1
    beat(client, ATTEMPT_BEATS)
    assert (client.condition().ready, other.received) == (False, [])
    client.beat()
    assert (client.condition().ready, client.epoch, absent.closed) == (True, EPOCH + 1, True)


async def test_a_core_that_goes_before_it_answers_is_tried_again_at_the_next_heartbeat() -> None:
    core, dying, follower = FakeCore(), AbsentCore(), FakeCore(epoch=EPOCH + 1)
    client = await connected(Cores(core, dying, follower))
    core.on_disconnect()
    dying.on_disconnect()
    assert follower.received == []
    client.beat()
    assert client.epoch == EPOCH + 1


class Refusing(FakeCore):
    def send(self, message: object, *frames: object, identity: bytes = b"") -> bool:
        self.on_disconnect()
        return True


async def test_a_first_core_that_goes_before_it_answers_may_be_followed_by_another() -> None:
    client = EngineClient(Cores(Refusing(), Refusing(), FakeCore()).connect, awaits_first=True)
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    beat(client, 2)
    await starting
    assert client.condition() == Condition(True)


async def test_a_first_core_that_goes_before_it_answers_is_named_at_once() -> None:
    with pytest.raises(EngineDeadError, match="before it answered; over tcp:// it may want keys"):
        await connected(Refusing())


async def test_a_request_that_comes_without_a_core_is_sent_to_the_next() -> None:
    core, absent, follower = FakeCore(), AbsentCore(), FakeCore(epoch=EPOCH + 1)
    client = await connected(Cores(core, absent, follower))
    first = client.submit([1], GREEDY, Reader(1))
    core.on_disconnect()
    client.submit([2], GREEDY, Reader(1))
    assert (client.alive, client.condition().ready, absent.sent(Submit)) == (True, False, [])
    with pytest.raises(EngineDeadError, match="connection to the engine core was lost"):
        await client.stats()
    absent.on_disconnect()
    client.beat()
    assert [submit.prompt for submit in follower.sent(Submit)] == [b"\1\0\0\0", b"\2\0\0\0"]
    assert first not in [submit.request for submit in follower.sent(Submit)]
    assert follower.sent(Abort) == []


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_core_that_lives_is_not_lost_with_each_connection_to_it(is_alone: bool) -> None:
    connections = [FakeCore() for _ in range(6)]
    absent, follower, last = AbsentCore(), FakeCore(epoch=EPOCH + 1), FakeCore(epoch=EPOCH + 2)
    client = await connected(Cores(*connections, absent, follower, last))
    reader = Reader(1)
    requests = [client.submit([1], GREEDY, reader)]
    for before, after in itertools.pairwise(connections):
        if is_alone:
            before.say(Isolated(EPOCH, requests[-1], "alone"))
        before.on_disconnect()
        (again,) = after.sent(Submit)
        assert again.num_losses == 0
        requests.append(again.request)
    connections[-1].on_disconnect()
    client.submit([2], GREEDY, Reader(1))  # A core that nobody has met is no loss of this one's.
    absent.on_disconnect()
    client.beat()
    follower.on_disconnect()
    assert [submit.num_losses for submit in follower.sent(Submit)] == [1, 0]
    assert [submit.num_losses for submit in last.sent(Submit)] == [2, 1]
    assert reader.errors == []


async def test_what_is_aborted_without_a_core_ends_at_once_and_is_not_sent_again() -> None:
    core, absent, follower = FakeCore(), AbsentCore(), FakeCore(epoch=EPOCH + 1)
    client = await connected(Cores(core, absent, follower))
    whole, part = Reader(2), Reader(2)
    requests = [client.submit([1], SamplingParams(n=2), reader) for reader in (whole, part)]
    core.say_rows(Row(requests[0], [5], cached_tokens=3))
    core.on_disconnect()
    client.abort(requests[0])
    client.abort(requests[1], 1)
    assert (whole.finishes, part.finishes) == ([FinishCode.ABORT] * 2, [None, FinishCode.ABORT])
    assert client.num_requests == 1
    absent.on_disconnect()
    client.beat()
    (again,) = follower.sent(Submit)
    assert [output.finished for output in again.outputs] == [False, True]


async def test_time_that_is_over_without_a_core_ends_a_request() -> None:
    now = 0.0
    core = FakeCore()
    client = await connected(Cores(core, AbsentCore()), clock=lambda: now)
    patient, hasty = Reader(1), Reader(2)
    client.submit([1], GREEDY, patient, SchedulingParams(timeout=10.0))
    client.submit([1], SamplingParams(n=2), hasty, SchedulingParams(timeout=2.0))
    core.on_disconnect()
    now = 2.0
    client.beat()
    assert (patient.finishes, hasty.finishes) == ([None], [FinishCode.DEADLINE] * 2)


async def test_another_model_goes_on_with_nothing_that_has_begun() -> None:
    core, other = FakeCore(), FakeCore(epoch=EPOCH + 1)
    other.fingerprint = "another"
    client = await connected(Cores(core, other))
    begun, told, fresh = Reader(1), Reader(1), Reader(1)
    asks = SamplingParams(prompt_logprobs=0)
    requests = [
        client.submit([1, 2], params, reader) for params, reader in ((GREEDY, begun), (asks, told), (GREEDY, fresh))
    ]
    core.say_rows(Row(requests[0], [5]), Row(requests[1], [2], -1, logprobs=[[(2, -1.0, 1)]]))
    core.on_disconnect()
    assert [str(error) for reader in (begun, told) for error in reader.errors] == [
        "this request cannot go on: its core was lost, and no core has that one's fingerprint fingerpr; start one with "
        "the same model, dtype, number of ranks and kind of processor"
    ] * 2
    assert (fresh.errors, len(other.sent(Submit)), client.fingerprint) == ([], 1, "another")


async def test_a_request_that_cannot_be_sent_to_the_next_core_fails_alone() -> None:
    class Encoding(FakeCore):
        def send(self, message: object, *frames: object, identity: bytes = b"") -> bool:
            if isinstance(message, Submit) and message.prompt == b"\1\0\0\0":
                raise OverflowError("can't serialize ints >= 2**64")
            return super().send(message, *frames, identity=identity)  # type: ignore[arg-type]  # any message will do

    core, follower = FakeCore(), Encoding(epoch=EPOCH + 1)
    client = await connected(Cores(core, follower))
    bad, good = Reader(1), Reader(1)
    for place, reader in enumerate((bad, good)):
        client.submit([1 + place], GREEDY, reader)
    core.on_disconnect()
    assert [type(error) for error in bad.errors] == [PyllmError]
    assert (good.errors, client.num_requests, len(follower.sent(Submit))) == ([], 1, 1)


async def test_a_core_of_another_version_is_the_end() -> None:
    core, other = FakeCore(), FakeCore(epoch=EPOCH + 1)
    other.version = PROTOCOL_VERSION + 1
    client = await connected(Cores(core, other))
    reader = Reader(1)
    client.submit([1], GREEDY, reader)
    core.on_disconnect()
    assert f"version {PROTOCOL_VERSION + 1}" in str(reader.errors[0])
    assert not client.alive


@pytest.mark.parametrize("text", ["", "the last step takes 7 s"])
async def test_a_stalled_core_says_why(text: str) -> None:
    core = FakeCore()
    client = await connected(core)
    core.say(Heartbeat("stalled", 3, text))
    assert client.condition() == Condition(False, True, text or "the engine core is stalled")
    core.say(Rejected(None, "hello", "say Hello first"))  # It has forgotten us, and is ready.
    assert client.condition() == Condition(True)
