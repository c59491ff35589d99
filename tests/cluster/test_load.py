"""The account of the cluster's streams can say no, and there are as many streams as are wanted."""

import asyncio

import pytest

from pyllm import SamplingParams
from pyllm.client import TokenDelta
from pyllm.errors import EngineDeadError, PyllmError, blame
from pyllm.wire.messages import FinishCode
from tests.cluster.load import Account, Load, Sample, Stream, twins_of
from tests.cluster.pool import PoolRequest

ONE = PoolRequest("greedy 0", "greedy", [1, 2], SamplingParams(temperature=0))
TWO = PoolRequest("n = 2 1", "n = 2", [1, 2], SamplingParams(n=2, seed=0))
POISON = PoolRequest("poison of a core 1", "poison of a core", [3], SamplingParams())
TWIN = [Sample([5, 6, 7, 8], FinishCode.LENGTH)]


class Recorder:
    """Takes requests, and leaves it to the test to answer them."""

    def __init__(self) -> None:
        self.sinks: list[Stream] = []

    def submit(self, prompt: list[int], params: SamplingParams, sink: Stream) -> int:
        assert params is sink.request.params
        assert prompt is sink.request.prompt
        self.sinks.append(sink)
        return len(self.sinks)


def delta(*tokens: int, sample: int = 0, finish: FinishCode = FinishCode.NONE) -> TokenDelta:
    return TokenDelta(sample, list(tokens), finish, 0)


def finished(request: PoolRequest, *outputs: list[int]) -> Stream:
    stream = Stream(request, lambda _: None)
    for sample, tokens in enumerate(outputs):
        stream.delta(sample, delta(*tokens, sample=sample, finish=FinishCode.LENGTH))
    return stream


def test_a_stream_ends_with_its_last_sample() -> None:
    ended: list[Stream] = []
    stream = Stream(TWO, ended.append)
    stream.delta(0, delta(1, finish=FinishCode.LENGTH))
    assert not ended
    stream.delta(1, delta(2, sample=1))
    stream.delta(1, delta(3, sample=1, finish=FinishCode.STOP))
    assert ended == [stream]
    assert stream.samples == [Sample([1], FinishCode.LENGTH), Sample([2, 3], FinishCode.STOP)]


@pytest.mark.parametrize(
    ("tokens", "lost", "repeated"),
    [([5, 6, 7, 8], 0, 0), ([5, 6, 8], 1, 0), ([5, 6, 6, 7, 8], 0, 1), ([5, 9, 7, 8], 1, 1)],
)
def test_tokens_are_counted_against_the_twin(tokens: list[int], lost: int, repeated: int) -> None:
    account = Account()
    account.enter(finished(ONE, tokens), TWIN)
    assert account.tokens == len(tokens)
    expected = {"lost": lost, "repeated": repeated, "different": int(bool(lost or repeated))}
    assert account.wrong == expected | {"failed": 0, "innocent_blamed": 0}


def test_another_end_is_a_difference() -> None:
    account = Account()
    account.enter(finished(ONE, [5, 6, 7, 8]), [Sample([5, 6, 7, 8], FinishCode.STOP)])
    assert account.different.total() == 1
    assert (account.lost, account.repeated) == (0, 0)


def test_only_poison_may_be_blamed_and_it_must() -> None:
    account = Account()
    verdict = PyllmError(blame("engine core", 2, 2))
    for request, twin, error in [
        (POISON, None, verdict),
        (ONE, TWIN, verdict),
        (POISON, None, EngineDeadError("gone")),
    ]:
        stream = Stream(request, lambda _: None)
        stream.error(error)
        account.enter(stream, twin)
    assert account.wrong["innocent_blamed"] == 1
    assert account.blamed == {"poison of a core": 1, "greedy": 1}
    assert account.failed.total() == 1
    account.enter(finished(POISON, [1]), None)
    assert account.failed.total() == 2


async def test_there_are_so_many_streams_until_the_end() -> None:
    recorder = Recorder()
    load = Load(recorder.submit, {ONE.name: TWIN}, [ONE], number=3, seed=0)
    load.begin()
    assert len(load) == 3
    for _ in range(2):
        recorder.sinks[-1].delta(0, delta(5, 6, 7, 8, finish=FinishCode.LENGTH))
        await asyncio.sleep(0)
        assert len(load) == 3
    poisoned = load.start(POISON)
    poisoned.error(PyllmError(blame("worker", 2, 1)))
    await asyncio.sleep(0)
    assert len(load) == 3  # Nothing takes its place.
    assert await load.end(0.0) == 3
    for sink in recorder.sinks:
        if not sink.has_ended:
            sink.delta(0, delta(5, 6, 7, 8, finish=FinishCode.LENGTH))
    assert await load.end(1.0) == 0
    assert load.account.streams == {"greedy": 5, "poison of a core": 1}
    assert not load.account.different


async def test_a_request_that_is_refused_has_failed() -> None:
    def refuse(prompt: list[int], params: SamplingParams, sink: Stream) -> int:
        raise EngineDeadError("nobody is there")

    load = Load(refuse, {ONE.name: TWIN}, [ONE], number=1, seed=0)
    assert load.start(ONE).has_ended
    assert load.account.wrong["failed"] == 1
    assert len(load) == 0


async def test_recovery_is_seen_by_every_stream_that_has_begun() -> None:
    recorder = Recorder()
    load = Load(recorder.submit, {ONE.name: TWIN}, [ONE], number=2, seed=0)
    load.begin()
    first, second = recorder.sinks
    since = first.begun + 1.0
    assert load.has_recovered(since)  # Neither has begun.
    first.delta(0, delta(5))
    assert not load.has_recovered(since)
    first.last = since + 1.0
    assert load.has_recovered(since)
    second.delta(0, delta(5))
    assert not load.has_recovered(since)


async def test_twins_must_not_fail() -> None:
    recorder = Recorder()
    asking = asyncio.create_task(twins_of(recorder.submit, [ONE]))
    await asyncio.sleep(0)
    recorder.sinks[0].delta(0, delta(5, 6, 7, 8, finish=FinishCode.LENGTH))
    assert await asking == {ONE.name: TWIN}
    asking = asyncio.create_task(twins_of(recorder.submit, [ONE]))
    await asyncio.sleep(0)
    recorder.sinks[1].error(EngineDeadError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        await asking
