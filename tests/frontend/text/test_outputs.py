"""A request's tokens become text per sample; a stop string aborts its own sample; the fold is what users see."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.client import EngineClient
from pyllm.client.logprobs import Logprob
from pyllm.errors import EngineDeadError, PyllmError, RequestError
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.outputs import CompletionOutput, OutputFold, RequestOutput, RequestProcessor
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import RequestOutputKind, SamplingParams
from pyllm.wire.messages import Abort, FinishCode, Rejected
from tests.client.fake_core import EPOCH, FakeCore, Row, connected, told


class Request:
    """A processor, the fold it feeds, and how often that changed."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.changes = 0
        self.fold = OutputFold("req-1", "Hello", tokenizer.encode("Hello"), params, self._change)
        self.processor = RequestProcessor(client, tokenizer, tokenizer.encode("Hello"), params, self.fold)
        self.processor.start()

    def _change(self) -> None:
        self.changes += 1


async def test_the_fold_of_all_deltas_is_the_output(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams())
    tokens = tokenizer.encode(" world 🙂")
    for position, token in enumerate(tokens):
        core.say_rows(Row(1, [token], position, cached_tokens=1))
    before = request.fold.snapshot()
    core.say_rows(Row(1, [0], len(tokens), finish=FinishCode.STOP, cached_tokens=1))
    output = CompletionOutput(0, " world 🙂", [*tokens, 0], "stop", None)
    assert request.fold.snapshot() == RequestOutput("req-1", "Hello", tokenizer.encode("Hello"), [output], True, 1)
    assert before.outputs == [msgspec.structs.replace(output, token_ids=tokens, finish_reason=None)]
    assert (request.changes, request.fold.finished, request.processor.finished) == (len(tokens) + 1, True, True)


async def test_who_wants_only_the_end_takes_one_snapshot(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    taken: list[RequestOutput] = []
    params = SamplingParams(n=2)
    fold = OutputFold("req-1", None, [1], params, lambda: taken.append(fold.snapshot()) if fold.finished else None)
    RequestProcessor(await connected(core), tokenizer, [1], params, fold).start()
    tokens = tokenizer.encode("Hello world")
    for position, token in enumerate(tokens):
        core.say_rows(*(Row(1, [token], position, sample, cached_tokens=1) for sample in range(2)))
    for sample in range(2):
        assert taken == []
        core.say_rows(Row(1, [], len(tokens), sample, FinishCode.LENGTH))
    (output,) = taken
    assert [(sample.text, sample.token_ids) for sample in output.outputs] == [("Hello world", tokens)] * 2
    assert (output.finished, output.num_cached_tokens) == (True, 1)


async def test_a_stop_string_ends_its_sample_and_no_other(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(n=2, stop="stop"))
    stop, after, other = tokenizer.encode("x stop"), tokenizer.encode(" later"), tokenizer.encode("go on")
    core.say_rows(Row(1, [*stop, *after]), Row(1, other, sample=1))
    assert core.sent(Abort) == [Abort(EPOCH, 1, 0)]
    core.say_rows(Row(1, after, offset=len(stop) + len(after)))
    core.say_rows(Row(1, [], len(stop) + 2 * len(after), finish=FinishCode.ABORT))
    assert not request.fold.finished
    core.say_rows(Row(1, tokenizer.encode("!"), len(other), 1, FinishCode.LENGTH))
    first, second = request.fold.snapshot().outputs
    assert (first.text, first.token_ids, first.finish_reason, first.stop_reason) == ("x ", stop, "stop", "stop")
    assert (second.text, second.finish_reason) == ("go on!", "length")
    assert request.fold.finished


async def test_an_abort_ends_every_sample_with_what_it_has(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(n=2, stop="stop"))
    tokens = tokenizer.encode("a sto")
    core.say_rows(Row(1, tokens))
    request.processor.abort()
    request.processor.abort()
    core.say_rows(Row(1, [], len(tokens), 0, FinishCode.ABORT), Row(1, [], 0, 1, FinishCode.ABORT))
    assert core.sent(Abort) == [Abort(EPOCH, 1)]
    outputs = request.fold.snapshot().outputs
    assert [(output.text, output.finish_reason) for output in outputs] == [("a sto", "abort"), ("", "abort")]
    assert request.fold.finished


async def test_a_deadline_ends_a_sample_with_what_it_has(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(stop="stop"))
    tokens = tokenizer.encode("a sto")
    core.say_rows(Row(1, tokens, finish=FinishCode.DEADLINE))
    (output,) = request.fold.snapshot().outputs
    assert (output.text, output.token_ids, output.finish_reason) == ("a sto", tokens, "deadline")
    assert (request.fold.finished, core.sent(Abort)) == (True, [])


async def test_of_a_dropped_request_nothing_more_is_heard(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams())
    request.processor.drop()
    request.processor.drop()
    core.say_rows(Row(1, [5]))
    core.say_rows(Row(1, [], 1, finish=FinishCode.ABORT))
    assert core.sent(Abort) == [Abort(EPOCH, 1)]
    assert request.changes == 0


async def test_log_probabilities_have_their_texts_and_end_with_the_text(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(logprobs=1, stop="!"))
    tokens = tokenizer.encode("ab!c")
    core.say_rows(Row(1, tokens, logprobs=[told(token, 1) for token in tokens]))
    output = request.fold.snapshot().outputs[0]
    assert (output.text, output.token_ids, output.cumulative_logprob) == ("ab", tokens[:3], -3.0)
    best = Logprob(-0.5, 1, tokenizer.token_text(30))
    texts = zip(tokens, "ab!", strict=False)
    assert output.logprobs == [{token: Logprob(-1.0, 2, text), 30: best} for token, text in texts]


async def test_log_probabilities_of_the_prompt_begin_with_its_second_token(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(prompt_logprobs=0, n=2))
    before = request.fold.snapshot()
    prompt = tokenizer.encode("Hello")
    assert (len(prompt), before.prompt_logprobs) == (1, [None])
    params = SamplingParams(prompt_logprobs=0)
    fold = OutputFold("req-2", None, [5, 6, 7], params, lambda: None)
    RequestProcessor(request.processor._client, tokenizer, [5, 6, 7], params, fold).start()
    core.say_rows(Row(2, [6], -2, logprobs=[told(6, 0)]))
    first = fold.snapshot()
    core.say_rows(Row(2, [7, 8], -1, finish=FinishCode.LENGTH, logprobs=[told(7, 0), []]))
    whole = fold.snapshot()
    assert whole.prompt_logprobs == [
        None,
        *({token: Logprob(-1.0, 2, tokenizer.token_text(token))} for token in (6, 7)),
    ]
    assert first.prompt_logprobs == whole.prompt_logprobs[:2]
    (output,) = whole.outputs
    assert (output.token_ids, output.logprobs, output.cumulative_logprob) == ([8], None, None)


async def test_a_beam_has_the_sum_of_its_log_probabilities_and_no_others(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(beam_width=2, n=2))
    tokens = [*tokenizer.encode("ab"), 0]
    entries = [[(token, value, 1)] for token, value in zip(tokens, (-0.5, -1.0, -0.25), strict=True)]
    rows = [
        Row(1, tokens, finish=FinishCode.STOP, logprobs=entries),
        Row(1, tokens[:2], sample=1, finish=FinishCode.LENGTH, logprobs=entries[:2]),
    ]
    core.say_rows(*rows)
    first, second = request.fold.snapshot().outputs
    assert (first.text, first.finish_reason, first.cumulative_logprob, first.logprobs) == ("ab", "stop", -1.75, None)
    assert (second.text, second.finish_reason, second.cumulative_logprob) == ("ab", "length", -1.5)


@pytest.mark.parametrize("kind", [RequestError, EngineDeadError])
async def test_a_failed_request_raises_what_happened(tokenizer: Tokenizer, kind: type[PyllmError]) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams())
    if kind is RequestError:
        core.say(Rejected(1, "invalid", "it can never fit"))
    else:
        core.say_rows(Row(1, [], finish=FinishCode.ERROR))
    assert (request.changes, request.fold.finished, request.processor.finished) == (1, True, True)
    with pytest.raises(kind):
        request.fold.snapshot()


async def test_one_failed_sample_fails_the_request(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(n=2))
    core.say_rows(Row(1, [], finish=FinishCode.ERROR), Row(1, [5], sample=1))
    assert core.sent(Abort) == [Abort(EPOCH, 1)]
    assert request.changes == 1


def outputs_of(params: SamplingParams, deltas: list[tuple[int, TextDelta]]) -> list[RequestOutput]:
    """What who follows the request gets, looking after each delta."""
    fold = OutputFold("req-1", None, [1], params, lambda: None)
    outputs = []
    for index, delta in deltas:
        fold.delta(index, delta)
        if fold.is_due:
            outputs.append(fold.take())
    return outputs


SPLITS = st.lists(st.lists(st.integers(0, 25), max_size=3), max_size=6)


@given(st.lists(SPLITS, min_size=2, max_size=2), st.integers(1, 4) | st.none())
def test_deltas_are_what_the_whole_output_is_made_of(splits: list[list[list[int]]], interval: int | None) -> None:
    deltas = [
        (index, TextDelta("".join(chr(97 + token) for token in tokens), tokens))
        for index, pieces in enumerate(splits)
        for tokens in pieces
    ]
    deltas += [(index, TextDelta("", [], "stop")) for index in range(2)]

    def take(kind: RequestOutputKind) -> list[RequestOutput]:
        params = SamplingParams(n=2, output_kind=kind, stream_interval=interval)
        return outputs_of(params, deltas)

    (final,) = take(RequestOutputKind.FINAL_ONLY)
    cumulative, parts = take(RequestOutputKind.CUMULATIVE), take(RequestOutputKind.DELTA)
    assert cumulative[-1] == final
    assert final.finished
    assert [output.finished for output in parts] == [output.finished for output in cumulative]
    for index, whole in enumerate(final.outputs):
        mine = [sample for output in parts for sample in output.outputs if sample.index == index]
        assert "".join(sample.text for sample in mine) == whole.text
        assert [token for sample in mine for token in sample.token_ids] == whole.token_ids
        assert [sample.finish_reason for sample in mine if sample.finish_reason] == ["stop"]
    for before, after in itertools.pairwise(cumulative[:-1]):
        counts = [sum(len(sample.token_ids) for sample in output.outputs) for output in (before, after)]
        assert counts[1] - counts[0] >= (interval or 1)


async def test_without_detokenize_there_are_tokens_and_no_text(tokenizer: Tokenizer) -> None:
    core = FakeCore()
    request = Request(await connected(core), tokenizer, SamplingParams(detokenize=False, logprobs=1))
    tokens = tokenizer.encode("ab")
    core.say_rows(Row(1, tokens, finish=FinishCode.LENGTH, logprobs=[told(token, 1) for token in tokens]))
    (output,) = request.fold.snapshot().outputs
    assert (output.text, output.token_ids, output.finish_reason) == ("", tokens, "length")
    assert {entry.decoded_token for entries in output.logprobs or [] for entry in entries.values()} == {None}
