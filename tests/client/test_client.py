"""`EngineClient` against a fake core: streams, aborts, calls, and every way in which a core can go away."""

import asyncio
import gc
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest

from pyllm.client.client import READER_PATIENCE, EngineClient
from pyllm.client.columns import StartTimes
from pyllm.client.core_connection import CORE_LOSS
from pyllm.client.logprobs import Logprob
from pyllm.client.reports import Decision, KVEvent, KVEvents, SampleReport, TenantReport
from pyllm.client.token_reader import TokenDelta, TokenReader
from pyllm.errors import (
    EngineDeadError,
    GivenUpError,
    ProfileRunningError,
    ProtocolError,
    PyllmError,
    RequestError,
    RequestTooLargeError,
)
from pyllm.parameters.sampling_params import RequestOutputKind, SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Call,
    ClientMessage,
    FinishCode,
    Heartbeat,
    Hello,
    Ready,
    Rejected,
    Reply,
    Submit,
)
from pyllm.wire.profiles import ProfileOutcome
from tests.client.fake_core import EPOCH, Cores, FakeCore, Row, ScriptedCore, connected, deltas, told

GREEDY = SamplingParams(temperature=0.0)
READER_BEATS = int(READER_PATIENCE / HEARTBEAT_INTERVAL)
CORE_BEATS = int(CORE_LOSS / HEARTBEAT_INTERVAL)


class Recorder:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.deltas: list[tuple[int, list[int], FinishCode, int]] = []
        self.errors: list[PyllmError] = []
        self.starts: list[StartTimes] = []

    def delta(self, index: int, delta: TokenDelta) -> None:
        if delta.start_times is not None:
            self.starts.append(delta.start_times)
        self.deltas.append((index, delta.tokens, delta.finish, delta.cached_tokens))

    def prompt_logprobs(self, index: int, logprobs: object) -> None:
        raise AssertionError("nobody asked for them")

    def error(self, error: PyllmError) -> None:
        self.errors.append(error)


async def test_hello_is_answered_by_what_a_client_may_rely_on() -> None:
    core = FakeCore()
    client = await connected(core)
    assert core.received == [Hello(PROTOCOL_VERSION)]
    assert (client.model, client.epoch, client.fingerprint, client.alive) == (core.model, EPOCH, "fingerprint", True)


async def test_another_version_is_a_protocol_error() -> None:
    core = FakeCore()
    core.version = PROTOCOL_VERSION + 1
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}"):
        await connected(core)
    assert core.closed


async def test_a_core_that_refuses_the_version_is_a_protocol_error() -> None:
    core = FakeCore()
    core.answers_hello = False
    client = EngineClient(core.connect, heartbeats=False)
    starting = asyncio.ensure_future(client.start())
    await asyncio.sleep(0)
    core.say(Rejected(None, "version", "this core speaks version 9"))
    with pytest.raises(ProtocolError, match="version 9"):
        await starting


async def test_a_core_that_does_not_answer_is_a_timeout() -> None:
    core = FakeCore()
    core.answers_hello = False
    with pytest.raises(TimeoutError):
        await EngineClient(core.connect).start(timeout=0.0)
    assert core.closed


async def test_tokens_reach_their_sink_and_the_last_delta_ends_the_request() -> None:
    core = FakeCore()
    client = await connected(core)
    first, second = Recorder(), Recorder()
    a, b = client.submit([1, 2], GREEDY, first), client.submit([3], GREEDY, second)
    core.say_rows(Row(a, [10], cached_tokens=1), Row(b, [20]), Row(999, [1]))
    core.say_rows(Row(a, [11, 12], offset=1, finish=FinishCode.STOP, cached_tokens=1))
    assert first.deltas == [(0, [10], FinishCode.NONE, 1), (0, [11, 12], FinishCode.STOP, 1)]
    assert second.deltas == [(0, [20], FinishCode.NONE, 0)]
    assert client.num_requests == 1


async def test_tokens_already_seen_are_dropped() -> None:
    core = FakeCore()
    client = await connected(core)
    sink = Recorder()
    request = client.submit([1], GREEDY, sink)
    core.say_rows(Row(request, [10, 11]))
    core.say_rows(Row(request, [10, 11]))
    core.say_rows(Row(request, [11, 12], offset=1))
    assert [tokens for _, tokens, _, _ in sink.deltas] == [[10, 11], [12]]


async def test_another_epoch_is_not_heard() -> None:
    core = FakeCore()
    client = await connected(core)
    sink = Recorder()
    request = client.submit([1], GREEDY, sink)
    core.say(deltas(Row(request, [10]), epoch=EPOCH - 1))
    assert sink.deltas == []


async def test_a_gap_is_sent_again_with_what_was_received() -> None:
    core = FakeCore()
    client = await connected(core)
    sink = Recorder()
    request = client.submit([1], SamplingParams(seed=5), sink)
    core.say_rows(Row(request, [10]))
    core.say_rows(Row(request, [12], offset=2))
    first, again = core.sent(Submit)
    assert core.sent(Abort) == [Abort(EPOCH, request)]
    assert again.request not in (request, first.request)
    assert (again.seed, again.prompt, again.outputs[0].tokens) == (5, first.prompt, array("i", [10]).tobytes())
    core.say_rows(Row(request, [13], offset=1, finish=FinishCode.ABORT))  # the old id's last delta
    core.say_rows(Row(again.request, [11, 12], offset=1, finish=FinishCode.LENGTH))
    assert [(tokens, finish) for _, tokens, finish, _ in sink.deltas] == [
        ([10], FinishCode.NONE),
        ([11, 12], FinishCode.LENGTH),
    ]


async def test_a_sample_that_nobody_wants_is_not_sent_again() -> None:
    core = FakeCore()
    client = await connected(core)
    sink = Recorder()
    request = client.submit([1], SamplingParams(n=2), sink)
    client.abort(request, 1)
    core.say_rows(Row(request, [12], offset=2))
    assert sink.deltas == [(1, [], FinishCode.ABORT, 0)]
    assert [output.finished for output in core.sent(Submit)[1].outputs] == [False, True]
    client.abort(request)
    assert core.sent(Abort)[-1] == Abort(EPOCH, core.sent(Submit)[1].request)


async def test_a_request_with_several_gaps_is_sent_again_once() -> None:
    core = FakeCore()
    client = await connected(core)
    request = client.submit([1], SamplingParams(n=2), Recorder())
    core.say_rows(Row(request, [12], offset=2), Row(request, [12], offset=2, sample=1))
    assert len(core.sent(Submit)) == 2
    assert core.sent(Abort) == [Abort(EPOCH, request)]


async def test_a_request_that_fails_while_it_is_sent_again_stays_ended() -> None:
    class Failing(Recorder):
        def delta(self, index: int, delta: TokenDelta) -> None:
            raise ZeroDivisionError

    core = FakeCore()
    client = await connected(core)
    sink = Failing()
    request = client.submit([1], SamplingParams(n=2), sink)
    client.abort(request, 1)
    core.say_rows(Row(request, [12], offset=2))
    assert (len(core.sent(Submit)), len(sink.errors), client.num_requests) == (1, 1, 0)


async def test_a_core_that_goes_while_requests_are_sent_again_leaves_them_to_the_next() -> None:
    core, follower = FakeCore(), FakeCore(epoch=EPOCH + 2)
    client = await connected(Cores(core, follower))
    for _ in range(2):
        client.submit([1], GREEDY, Recorder())
    core.closed = True
    core.say(Ready(PROTOCOL_VERSION, EPOCH + 1, core.model, "fingerprint"))
    assert (client.epoch, client.num_requests, len(follower.sent(Submit))) == (EPOCH + 2, 2, 2)


async def test_a_core_that_has_forgotten_the_client_gets_everything_again() -> None:
    core = FakeCore()
    client = await connected(core)
    client.submit([1], GREEDY, Recorder())
    core.say(Rejected(None, "hello", "say Hello first"))
    assert core.sent(Hello) == [Hello(PROTOCOL_VERSION), Hello(PROTOCOL_VERSION)]
    assert [submit.prompt for submit in core.sent(Submit)] == [b"\1\0\0\0"] * 2


async def test_abort_is_answered_by_a_last_delta() -> None:
    core = ScriptedCore(lambda prompt, sample: [5] * 100)
    client = await connected(core)
    generated = [delta async for delta in _take(client, 3)]
    assert [delta.tokens for delta in generated] == [[5]] * 3
    assert client.num_requests == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert core.sent(Abort) == [Abort(EPOCH, 1)]
    assert client.num_requests == 0


async def test_leaving_the_loop_aborts_too() -> None:
    core = ScriptedCore(lambda prompt, sample: [5] * 100)
    client = await connected(core)
    async for delta in client.generate([1], GREEDY):
        assert delta.tokens == [5]
        break
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert core.sent(Abort) == [Abort(EPOCH, 1)]


async def _take(client: EngineClient, count: int) -> AsyncGenerator[TokenDelta, None]:
    async with aclosing(client.generate([1], GREEDY)) as generator:
        async for delta in generator:
            yield delta
            count -= 1
            if not count:
                return


async def test_generate_gives_every_token_of_every_sample() -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, sample, 9])
    client = await connected(core)
    outputs: dict[int, list[int]] = {0: [], 1: []}
    finishes = {}
    async for delta in client.generate([7, 8], SamplingParams(n=2)):
        outputs[delta.sample] += delta.tokens
        finishes[delta.sample] = delta.finish
        assert delta.cached_tokens == 2
    assert outputs == {0: [7, 8, 0], 1: [7, 8, 1, 9]}  # 0 is the end of sequence
    assert finishes == {0: FinishCode.STOP, 1: FinishCode.LENGTH}
    assert core.sent(Abort) == []


async def test_generate_gives_the_log_probabilities_that_were_asked_for() -> None:
    core = ScriptedCore(lambda prompt, sample: [8, 9])
    client = await connected(core)
    params = SamplingParams(logprobs=1, prompt_logprobs=0)
    deltas = [delta async for delta in client.generate([5, 6, 7], params)]
    of_prompt = [each for delta in deltas for each in delta.prompt_logprobs or ()]
    assert of_prompt == [{6: Logprob(-1.0, 2)}, {7: Logprob(-1.0, 2)}]
    assert [token for delta in deltas for token in delta.tokens] == [8, 9]
    own = [each for delta in deltas for each in delta.logprobs or ()]
    assert own == [{token: Logprob(-1.0, 2), 30: Logprob(-0.5, 1)} for token in (8, 9)]


async def test_log_probabilities_that_are_not_read_merge_with_their_tokens() -> None:
    core = FakeCore()
    client = await connected(core)
    generator = client.generate([5, 6], SamplingParams(logprobs=0, prompt_logprobs=0))
    reading = asyncio.ensure_future(anext(generator))
    await asyncio.sleep(0)
    core.say_rows(Row(1, [6], -1, logprobs=[told(6, 0)]))
    for position in range(3):
        core.say_rows(Row(1, [position], position, cached_tokens=1, logprobs=[told(position, 0)]))
    delta = await reading
    assert (delta.tokens, delta.cached_tokens, delta.prompt_logprobs) == ([0, 1, 2], 1, [{6: Logprob(-1.0, 2)}])
    assert delta.logprobs == [{token: Logprob(-1.0, 2)} for token in range(3)]
    await generator.aclose()


async def test_log_probabilities_after_a_gap_are_those_of_the_new_tokens() -> None:
    core = FakeCore()
    client = await connected(core)
    reader = TokenReader(1)
    request = client.submit([5, 6], SamplingParams(logprobs=0, prompt_logprobs=0), reader)
    core.say_rows(Row(request, [6, 10], -1, logprobs=[told(6, 0), told(10, 0)]))
    core.say_rows(Row(request, [12], 2, logprobs=[told(12, 0)]))
    again = core.sent(Submit)[1]
    assert (again.sampling.prompt_logprobs, again.sampling.logprobs) == (None, 0)
    entries = [told(token, 0) for token in (10, 11, 12)]
    core.say_rows(Row(again.request, [10, 11, 12], finish=FinishCode.LENGTH, logprobs=entries))
    delta = await reader.read()
    assert delta is not None
    assert (delta.tokens, delta.prompt_logprobs) == ([10, 11, 12], [{6: Logprob(-1.0, 2)}])
    assert [[*each] for each in delta.logprobs or ()] == [[10], [11], [12]]


async def test_log_probabilities_that_do_not_decode_are_a_malformed_frame() -> None:
    core = FakeCore()
    client = await connected(core)
    client.submit([1], GREEDY, Recorder())
    core.say(msgspec.structs.replace(deltas(Row(1, [10], logprobs=[told(10, 0)])), ranks=b""))
    assert client.malformed_frames == 1


async def test_what_is_not_read_merges_into_one_delta_per_sample() -> None:
    core = FakeCore()
    client = await connected(core)
    generator = client.generate([1], SamplingParams(n=2))
    reading = asyncio.ensure_future(anext(generator))
    await asyncio.sleep(0)
    core.say_rows(Row(1, [10]))
    await reading
    for position in range(1, 50):
        core.say_rows(Row(1, [position], offset=position), Row(1, [position], offset=position - 1, sample=1))
    merged = [await anext(generator), await anext(generator)]
    assert [(delta.sample, delta.tokens) for delta in merged] == [(0, list(range(1, 50))), (1, list(range(1, 50)))]
    await generator.aclose()


async def test_a_reader_that_does_not_read_is_aborted() -> None:
    core = FakeCore()
    client = await connected(core)
    generator = client.generate([1], GREEDY)
    reading = asyncio.ensure_future(anext(generator))
    await asyncio.sleep(0)
    core.say_rows(Row(1, [10]))
    await reading
    for _ in range(2 * READER_BEATS):  # nothing is pending, so nobody is slow
        core.say(Heartbeat())
        client.beat()
    core.say_rows(Row(1, [11], offset=1))
    for _ in range(READER_BEATS + 1):
        core.say(Heartbeat())
        assert core.sent(Abort) == []
        client.beat()
    assert core.sent(Abort) == [Abort(EPOCH, 1)]
    assert (await anext(generator)).tokens == [11]
    with pytest.raises(PyllmError, match="not read for 60 s"):
        await anext(generator)


async def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_sent() -> None:
    core = FakeCore()
    client = await connected(core)
    with pytest.raises(RequestTooLargeError):
        client.submit([1] * 300, GREEDY, Recorder())
    with pytest.raises(RequestTooLargeError):
        await anext(client.generate([1] * 300, GREEDY))
    assert core.sent(Submit) == []
    assert client.num_requests == 0


async def test_a_prompt_alone_may_be_scored() -> None:
    core = ScriptedCore(lambda prompt, sample: [7, 8, 9])
    client = await connected(core)
    params = SamplingParams(max_tokens=0, prompt_logprobs=1, logprobs=1)
    deltas = [delta async for delta in client.generate([5, 6, 7], params)]
    assert [delta.tokens for delta in deltas] == [[] for _ in deltas]
    assert [delta.finish for delta in deltas][-1] == FinishCode.LENGTH
    assert sum(len(delta.prompt_logprobs or ()) for delta in deltas) == 2
    assert all(delta.logprobs is None for delta in deltas)
    assert core.sent(Submit)[0].max_tokens == 1


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("stop", ["Paris"], "give stop_token_ids"),
        ("stop", "Paris", "give stop_token_ids"),
        ("include_stop_str_in_output", True, "leave it out"),
        ("bad_words", ["x"], "give bad_words_token_ids"),
        ("skip_special_tokens", False, "leave it out"),
        ("spaces_between_special_tokens", False, "leave it out"),
        ("truncate_prompt_tokens", 3, "as many token ids as you want"),
        ("output_kind", RequestOutputKind.FINAL_ONLY, "outputs are deltas"),
        ("stream_interval", 5, "leave it out"),
    ],
)
async def test_what_takes_a_tokenizer_is_refused_by_name(name: str, value: object, instead: str) -> None:
    core = FakeCore()
    client = await connected(core)
    with pytest.raises(RequestError, match=f"^{name}: there is no tokenizer here; .*{instead}") as refused:
        await anext(client.generate([1], SamplingParams(**{name: value})))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=f"^{name}: there is no tokenizer here"):
        client.submit([1], SamplingParams(**{name: value}), TokenReader(1))  # type: ignore[arg-type]
    await client.abort(1)
    assert (refused.value.parameter, core.sent(Submit), client.num_requests) == (name, [], 0)


async def test_a_request_that_does_not_encode_leaves_nothing_behind() -> None:
    class Encoding(FakeCore):
        def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
            if isinstance(message, Submit):
                raise OverflowError("can't serialize ints >= 2**64")
            return super().send(message, *frames, identity=identity)

    client = await connected(Encoding())
    with pytest.raises(OverflowError):
        client.submit([1], GREEDY, Recorder())
    assert client.num_requests == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid", RequestError),
        ("failed", RequestError),
        ("error", PyllmError),
        ("too_large", RequestTooLargeError),
        ("draining", EngineDeadError),
    ],
)
async def test_a_rejected_request_fails_alone(code: str, kind: type[PyllmError]) -> None:
    core = FakeCore()
    client = await connected(core)
    bad, good = Recorder(), Recorder()
    request = client.submit([1], GREEDY, bad)
    client.submit([1], GREEDY, good)
    core.say(Rejected(request, code, "no", "grammar"))
    assert [type(error) for error in bad.errors] == [kind]
    if kind is RequestError:
        assert [getattr(error, "parameter", None) for error in bad.errors] == ["grammar"]
    assert (good.errors, client.num_requests, client.alive) == ([], 1, True)


async def test_a_sink_that_fails_ends_its_own_request_only() -> None:
    class Failing(Recorder):
        def delta(self, index: int, delta: TokenDelta) -> None:
            raise ZeroDivisionError

    core = FakeCore()
    client = await connected(core)
    bad, good = Failing(), Recorder()
    a, b = client.submit([1], GREEDY, bad), client.submit([1], GREEDY, good)
    core.say_rows(Row(a, [5]), Row(b, [6]))
    assert (len(bad.errors), good.deltas) == (1, [(0, [6], FinishCode.NONE, 0)])
    assert core.sent(Abort) == [Abort(EPOCH, a)]
    assert client.num_requests == 1


@pytest.mark.parametrize(
    ("outcome", "error", "text"),
    [
        (ProfileOutcome("running", reason="one runs"), ProfileRunningError, "one runs"),
        (
            ProfileOutcome("interrupted", 1.5, "worker 0 died"),
            EngineDeadError,
            "interrupted after 1.5 s: worker 0 died;",
        ),
    ],
)
async def test_a_profile_that_is_not_there_is_an_error(
    outcome: ProfileOutcome, error: type[PyllmError], text: str
) -> None:
    core = FakeCore()
    client = await connected(core)
    asked = asyncio.ensure_future(client.profile(5, 2.0, with_trace=True))
    await asyncio.sleep(0)
    (call,) = core.sent(Call)
    assert (call.method, call.args) == ("profile", (5, 2.0, True, None))
    core.say(Reply(call.id, True, outcome))
    with pytest.raises(error, match=text):
        await asked


async def test_a_core_that_is_lost_takes_its_profile_with_it() -> None:
    core = FakeCore()
    client = await connected(core)
    asked = asyncio.ensure_future(client.profile())
    await asyncio.sleep(0)
    core.on_disconnect()
    with pytest.raises(EngineDeadError, match="there is no profile: the connection to the engine core was lost"):
        await asked
    with pytest.raises(EngineDeadError, match="there is no profile: "):
        await client.profile()


async def test_calls_are_matched_by_id() -> None:
    core = FakeCore()
    client = await connected(core)
    calls = [asyncio.ensure_future(client.call(name, 1, timeout=60)) for name in ("first", "second")]
    await asyncio.sleep(0)
    first, second = core.sent(Call)
    assert (first.method, first.args, first.epoch) == ("first", (1,), EPOCH)
    core.say(Reply(second.id, False, "unknown method 'second'"))
    core.say(Reply(first.id, True, {"x": 1}))
    core.say(Reply(12345, True, None))
    assert await calls[0] == {"x": 1}
    with pytest.raises(RequestError, match="unknown method"):
        await calls[1]


async def test_a_call_that_does_not_encode_leaves_nothing_behind() -> None:
    class Encoding(FakeCore):
        def send(self, message: ClientMessage, *frames: object, identity: bytes = b"") -> bool:
            if isinstance(message, Call):
                raise OverflowError("can't serialize ints >= 2**64")
            return super().send(message, *frames, identity=identity)

    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    client = await connected(Encoding())
    with pytest.raises(RequestError, match="the arguments of the call unpin cannot be sent: can't serialize"):
        await client.unpin(1 << 64)
    client.close()
    del client
    gc.collect()
    assert problems == []


async def test_a_call_without_answer_is_a_timeout() -> None:
    client = await connected(FakeCore())
    with pytest.raises(TimeoutError, match="did not answer 'stats'"):
        await client.call("stats", timeout=0.0)


class AskedCore(FakeCore):
    """Answers every call with one value, in the shape in which the scheduler gives it."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def handle(self, message: ClientMessage) -> None:
        super().handle(message)
        if isinstance(message, Call):
            self.say(Reply(message.id, True, self.value))

    @property
    def asked(self) -> list[tuple[str, tuple[object, ...]]]:
        return [(call.method, call.args) for call in self.sent(Call)]


STEP = {"num_rows": 2, "num_tokens": 9, "num_prefill_tokens": 8, "num_admitted": 1, "num_preempted": 1}
STEP |= {"num_swapped": 0, "num_running": 2, "num_waiting": 3, "num_free_blocks": 4}
SAMPLE = {"sample": 0, "num_tokens": 0, "num_computed": 16, "num_known": 20}
EVENTS = [4, 17, [["stored", b"hash", None, b"\1\0\0\0", "device"], ["removed", b"hash", b"parent", b"", "host"]]]
KNOWN = KVEvents(
    4,
    17,
    [KVEvent("stored", b"hash", None, b"\1\0\0\0", "device"), KVEvent("removed", b"hash", b"parent", b"", "host")],
)


@pytest.mark.parametrize(
    ("ask", "call", "answer", "expected"),
    [
        (lambda client: client.stats(), ("stats", ()), {"num_running": 3}, {"num_running": 3}),
        (
            lambda client: client.decisions(5),
            ("decisions", (5,)),
            [STEP | {"step": 7, "now": 1.5, "stop": "blocks"}, STEP | {"step": 8, "now": 2, "stop": None}],
            [Decision(step=7, now=1.5, stop="blocks", **STEP), Decision(step=8, now=2.0, **STEP)],
        ),
        (lambda client: client.tenants(), ("tenants", ()), [["acme", 100, 2]], [TenantReport("acme", 100, 2)]),
        (
            lambda client: client.reconfigure(scheduling_policy="fair", tenant_weights={"acme": 3}),
            ("reconfigure", ({"scheduling_policy": "fair", "tenant_weights": {"acme": 3}},)),
            {"scheduling_policy": "fair", "watermark": 0.01},
            {"scheduling_policy": "fair", "watermark": 0.01},
        ),
        (lambda client: client.reset_prefix_cache(), ("reset_prefix_cache", ()), None, None),
        (
            lambda client: client.pin(3, [1, 2], tenant="acme", cache_salt="salt"),
            ("pin", (3, b"\1\0\0\0\2\0\0\0", "acme", "salt", "")),
            2,
            2,
        ),
        (lambda client: client.unpin(3), ("unpin", (3,)), False, False),
        (lambda client: client.kv_events(5, tokens=False), ("kv_events", (5, False)), EVENTS, KNOWN),
        (lambda client: client.kv_snapshot(), ("kv_snapshot", (True,)), EVENTS, KNOWN),
    ],
)
async def test_a_call_has_its_arguments_and_the_type_of_its_answer(
    ask: Callable[[EngineClient], Awaitable[object]], call: object, answer: object, expected: object
) -> None:
    core = AskedCore(answer)
    assert await ask(await connected(core)) == expected
    assert core.asked == [call]


async def test_a_request_is_explained_under_the_id_that_the_core_knows() -> None:
    core = AskedCore([SAMPLE | {"state": "swapped", "reason": "blocks", "hold": None, "news": "from a later core"}])
    client = await connected(core)
    request = client.submit([1], GREEDY, Recorder())
    core.say_rows(Row(request, [12], offset=2))  # a gap: it goes by another id now
    assert await client.explain(request) == [SampleReport(state="swapped", reason="blocks", **SAMPLE)]
    again = core.sent(Submit)[1].request
    assert core.asked == [("explain", (again,))]
    core.say_rows(Row(again, [5], finish=FinishCode.STOP))
    with pytest.raises(RequestError, match=f"request {request} has ended"):
        await client.explain(request)


async def test_an_answer_that_cannot_be_read_is_a_protocol_error() -> None:
    client = await connected(AskedCore([{"sample": 0}]))
    with pytest.raises(ProtocolError, match=r"'decisions'.*required field"):
        await client.decisions()


async def test_what_is_sent_again_has_less_time_left() -> None:
    now = 50.0
    core = FakeCore()
    client = await connected(core, clock=lambda: now)
    scheduling = SchedulingParams(priority=4, tenant="acme", timeout=30.0)
    request = client.submit([1], GREEDY, Recorder(), scheduling)
    now = 60.0
    core.say_rows(Row(request, [12], offset=2))
    first, again = core.sent(Submit)
    assert (first.timeout, first.age, first.priority, first.tenant) == (30.0, 0.0, 4, "acme")
    assert (again.timeout, again.age, again.priority, again.tenant) == (20.0, 10.0, 4, "acme")


async def test_generate_passes_the_scheduling_on() -> None:
    core = ScriptedCore(lambda prompt, sample: [5])
    client = await connected(core)
    deltas = [delta async for delta in client.generate([1], GREEDY, SchedulingParams(priority=2, ttft_target=0.5))]
    assert len(deltas) == 1
    (submit,) = core.sent(Submit)
    assert (submit.priority, submit.ttft_target) == (2, 0.5)


async def _given_up(core: FakeCore, client: EngineClient) -> None:
    client.give_up(GivenUpError("it died 10 times"))


async def _ended(core: FakeCore, client: EngineClient) -> None:
    core.say(Rejected(None, "engine_dead", "it was shut down before"))


async def _gone_for_long(core: FakeCore, client: EngineClient) -> None:
    core.answers_hello = False
    core.on_disconnect()
    for _ in range(2 * 60 + 1):
        client.beat()


async def _closed(core: FakeCore, client: EngineClient) -> None:
    client.close()


@pytest.mark.parametrize(
    ("end", "text", "stays"),
    [
        (_given_up, "died 10 times", False),
        (_ended, "was shut down before", True),
        (_gone_for_long, "connection .* was lost, and none was ready within 60 s", False),
        (_closed, "closed", False),
    ],
)
async def test_where_no_core_goes_on_every_stream_fails(
    end: Callable[[FakeCore, EngineClient], Awaitable[None]], text: str, stays: bool
) -> None:
    core = FakeCore()
    client = await connected(core, recovery_timeout=60.0)
    sink = Recorder()
    client.submit([1], GREEDY, sink)
    reading = asyncio.ensure_future(anext(client.generate([1], GREEDY)))
    calling = asyncio.ensure_future(client.call("stats", timeout=60))
    dying = asyncio.ensure_future(client.death())
    await asyncio.sleep(0)
    await end(core, client)
    with pytest.raises(EngineDeadError, match=text):
        await reading
    with pytest.raises(EngineDeadError):
        await calling
    assert [isinstance(error, EngineDeadError) for error in sink.errors] == [True]
    assert (client.alive, client.num_requests, core.closed) == (stays, 0, not stays)
    if not stays:
        assert await dying is sink.errors[0]
        assert (client.condition().ready, client.condition().reason) == (False, str(sink.errors[0]))
        with pytest.raises(EngineDeadError, match=text):
            client.submit([1], GREEDY, sink)
    client.close()
    await dying


async def test_closing_aborts_what_runs() -> None:
    core = FakeCore()
    client = await connected(core)
    request = client.submit([1], GREEDY, Recorder())
    client.close()
    assert core.sent(Abort) == [Abort(EPOCH, request)]


async def test_any_message_of_the_core_is_a_sign_of_life() -> None:
    core = FakeCore()
    client = await connected(core)
    for _ in range(3 * CORE_BEATS):
        client.beat()
        core.say(Heartbeat("ready", 3))
    assert client.alive
    assert len(core.sent(Heartbeat)) == 3 * CORE_BEATS


async def test_a_full_queue_keeps_the_order() -> None:
    core = FakeCore()
    client = await connected(core)
    core.takes_messages = False
    request = client.submit([1], GREEDY, Recorder())
    client.abort(request)
    client.beat()
    assert core.received == [Hello(PROTOCOL_VERSION)]
    core.takes_messages = True
    client.beat()
    assert [type(message) for message in core.received] == [Hello, Submit, Abort, Heartbeat]


async def test_what_does_not_decode_is_counted_and_nothing_else() -> None:
    core = FakeCore()
    client = await connected(core)
    sink = Recorder()
    request = client.submit([1], GREEDY, sink)
    core.on_malformed(b"", "truncated")
    core.say(msgspec.structs.replace(deltas(Row(request, [5])), samples=b""))
    core.say(Rejected(None, "malformed", "this frame does not decode"))
    assert (client.malformed_frames, client.alive, sink.errors, sink.deltas) == (2, True, [], [])
