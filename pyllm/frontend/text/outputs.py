"""The outputs of a request for its user, and the processor that makes them of its tokens. Knows no HTTP."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.logprobs import Logprob, LogprobEntries, PackedEntries, chosen, no_text, unpacked
from pyllm.client.reports import SampleReport
from pyllm.client.streams import OutputSink
from pyllm.client.token_reader import TokenDelta
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.frontend.text.detokenizer import Detokenizer, TextDelta
from pyllm.frontend.text.segment_sink import SegmentSink
from pyllm.frontend.text.stop_strings import StopStrings
from pyllm.parameters.sampling_params import RequestOutputKind, SamplingParams
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.wire.messages import FinishCode

if TYPE_CHECKING:  # Only passed through here; their library loads in 30 ms.
    from pyllm.frontend.text.text_decoder import TextDecoder
    from pyllm.frontend.text.tokenizer import Tokenizer


class CompletionOutput(msgspec.Struct):
    """One sample: the text and tokens so far, and how it ended (`finish_reason` None: it goes on).

    With `RequestOutputKind.DELTA` text, tokens and log-probabilities are those that are new.

    `logprobs` has the entries of each token, where they were asked for: its own first, then the likeliest ones, best
    first. `cumulative_logprob` is the sum of the tokens' own, of a beam as well.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


class RequestOutput(msgspec.Struct):
    """One request: its prompt, and all its samples. `num_cached_tokens` of the prompt were in the prefix cache.

    `prompt` is the text, of a conversation as it was rendered; None where only token ids were given. With
    `RequestOutputKind.DELTA` the samples are those with something new.

    `prompt_logprobs` has the entries of each token of the prompt, where they were asked for; the first has None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


class RequestProcessor:
    """The sink of one request's tokens: a detokenizer for each sample, and an abort where a stop string matches.

    `start` submits the request. `sink` gets the text of sample 0 under the index `first_index`, that of the other
    samples under those after it.
    """

    __slots__ = (
        *("_client", "_detokenizers", "_first_index", "_num_open", "_params", "_prompt", "_request", "_sink"),
        "_token_text",
    )

    def __init__(
        self,
        client: EngineClient,
        tokenizer: "Tokenizer",
        prompt: Sequence[int],
        params: SamplingParams,
        sink: OutputSink[TextDelta],
        *,
        first_index: int = 0,
    ) -> None:
        self._prompt = prompt
        self._params = params
        self._client = client
        self._first_index = first_index
        self._sink = sink
        self._token_text = tokenizer.token_text if params.detokenize else no_text
        stop_strings = StopStrings.of(params.stop_strings)
        # By sample; None once it has ended.
        self._detokenizers: list[Detokenizer | None] = [
            Detokenizer(decoder_of(tokenizer, prompt, params), params, stop_strings) for _ in range(params.n)
        ]
        self._num_open = params.n
        self._request: int  # the client's id for it, from `start` on

    def start(
        self, scheduling: SchedulingParams = DEFAULT_SCHEDULING, boundaries: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Submit the request, once; raises as `EngineClient.submit` does.

        With `boundaries` no delta of a sample's text spans one of these counts of its tokens.
        """
        sink = self if boundaries is None else SegmentSink(self, boundaries)
        self._request = self._client.submit_for_text(self._prompt, self._params, sink, scheduling)

    @property
    def finished(self) -> bool:
        """Whether every sample has ended, or the request has failed."""
        return self._num_open == 0

    def abort(self) -> None:
        """End the request; every open sample gets its last delta at once, with the text that was held back."""
        if not self.finished:
            self._client.abort(self._request)
            for sample in range(len(self._detokenizers)):
                if (detokenizer := self._detokenizers[sample]) is not None:
                    self._close(sample)
                    self._sink.delta(self._first_index + sample, detokenizer.feed([], FinishCode.ABORT))

    async def explain(self) -> list[SampleReport]:
        """The state of each sample, and its reason; raises as `EngineClient.explain` does."""
        return await self._client.explain(self._request)

    def drop(self) -> None:
        """End the request; the sink gets nothing more."""
        if not self.finished:
            self._close_all()
            self._client.abort(self._request)

    def delta(self, index: int, delta: TokenDelta) -> None:
        """Take new tokens from the client."""
        detokenizer = self._detokenizers[index]
        if detokenizer is None:
            return  # A stop string ended it while these tokens were on their way.
        finish, logprobs = delta.finish, delta.logprobs
        if finish and finish == FinishCode.ERROR:
            self._client.abort(self._request)
            self.error(EngineDeadError("the engine could not go on with this request"))
            return
        text = detokenizer.feed(delta.tokens, finish)
        text.cached_tokens, text.start_times = delta.cached_tokens, delta.start_times
        if text.finish_reason is not None:
            self._close(index)
            if not finish:
                self._client.abort(self._request, index)
        if logprobs is not None:
            del logprobs[len(text.tokens) :]
            text.logprobs = self._with_texts(logprobs)
        self._sink.delta(self._first_index + index, text)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Take log-probabilities of the prompt from the client."""
        if not self.finished:
            self._sink.prompt_logprobs(self._first_index + index, self._with_texts(logprobs))

    def error(self, error: PyllmError) -> None:
        """Pass the request's failure on."""
        if not self.finished:
            self._close_all()
            self._sink.error(error)

    def _with_texts(self, logprobs: list[LogprobEntries]) -> list[LogprobEntries]:
        for entries in logprobs:
            if isinstance(entries, PackedEntries):
                entries.token_text = self._token_text
                continue
            for token, entry in entries.items():
                entry.decoded_token = self._token_text(token)
        return logprobs

    def _close(self, sample: int) -> None:
        self._detokenizers[sample] = None
        self._num_open -= 1

    def _close_all(self) -> None:
        self._detokenizers = [None] * len(self._detokenizers)
        self._num_open = 0


class _Taken(NamedTuple):
    """The part of a sample that earlier outputs have given."""

    num_tokens: int = 0
    num_characters: int = 0
    finish_reason: str | None = None


class OutputFold:
    """A sink that adds up the text of one request. `on_change` is called after every change, the last one included.

    A caller that wants only the finished output waits until `finished` and takes one `snapshot`: a change alone copies
    nothing. A caller that follows the request calls `take` whenever an output `is_due`.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        on_change: Callable[[], None],
    ) -> None:
        self.failure: PyllmError | None = None
        start = 0.0 if params.num_logprobs is not None or params.beam_width else None
        self._output = RequestOutput(
            request_id,
            prompt,
            prompt_token_ids,
            [
                CompletionOutput(index, logprobs=None if params.num_logprobs is None else [], cumulative_logprob=start)
                for index in range(params.n)
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        self._unfinished = params.n
        self._on_change = on_change
        self._kind = params.output_kind
        self._interval = params.stream_interval or 1
        self._num_new_tokens = 0  # since the last output
        self._has_begun = False
        self._taken = [_Taken()] * params.n

    @property
    def is_due(self) -> bool:
        """Whether there is an output to take, by the parameters' `output_kind` and `stream_interval`."""
        if self.finished:
            return True
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return False
        return not self._has_begun or self._num_new_tokens >= self._interval

    @property
    def finished(self) -> bool:
        """Whether nothing follows: all samples have ended, or the request has failed."""
        return self._unfinished == 0 or self.failure is not None

    def delta(self, index: int, delta: TextDelta) -> None:
        """Add new output of a sample."""
        completion = self._output.outputs[index]
        completion.text += delta.text
        completion.token_ids.extend(delta.tokens)
        self._num_new_tokens += len(delta.tokens)
        if delta.logprobs is not None:
            _add_logprobs(completion, delta.logprobs)
        self._output.num_cached_tokens = max(self._output.num_cached_tokens, delta.cached_tokens)
        if delta.finish_reason is not None:
            completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
            self._unfinished -= 1
        self._on_change()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Add log-probabilities of the prompt's next tokens."""
        if self._output.prompt_logprobs is not None:
            self._output.prompt_logprobs.extend(map(unpacked, logprobs))

    def error(self, error: PyllmError) -> None:
        """Keep the failure for the reader."""
        self.failure = error
        self._on_change()

    def take(self) -> RequestOutput:
        """The next output of a request that is followed: the whole output so far, or the part since the last one.

        Raises:
            PyllmError: the request has failed.
        """
        if self.failure is not None:
            raise self.failure
        is_first, self._has_begun, self._num_new_tokens = not self._has_begun, True, 0
        if self._kind is not RequestOutputKind.DELTA:
            return self.snapshot()
        parts = map(self._new_part, self._output.outputs)
        return msgspec.structs.replace(
            self._output,
            outputs=[output for output in parts if output is not None],
            finished=self._unfinished == 0,
            prompt_logprobs=self._output.prompt_logprobs if is_first else None,
        )

    def _new_part(self, whole: CompletionOutput) -> CompletionOutput | None:
        """The part of a sample that earlier outputs did not have; None: there is none."""
        taken, known = self._taken[whole.index], _Taken(len(whole.token_ids), len(whole.text), whole.finish_reason)
        if taken == known:
            return None
        self._taken[whole.index] = known
        return msgspec.structs.replace(
            whole,
            text=whole.text[taken.num_characters :],
            token_ids=whole.token_ids[taken.num_tokens :],
            logprobs=whole.logprobs and whole.logprobs[taken.num_tokens :],
        )

    def snapshot(self) -> RequestOutput:
        """A copy of the whole output so far.

        Raises:
            PyllmError: the request has failed.
        """
        if self.failure is not None:
            raise self.failure
        outputs = [
            msgspec.structs.replace(each, token_ids=each.token_ids[:], logprobs=each.logprobs and each.logprobs[:])
            for each in self._output.outputs
        ]
        of_prompt = self._output.prompt_logprobs
        return msgspec.structs.replace(
            self._output,
            outputs=outputs,
            finished=self._unfinished == 0,
            prompt_logprobs=of_prompt and of_prompt[:],
        )


class _NoText:
    """The `TextDecoder` of a request that wants token ids alone."""

    def decode(self, tokens: Sequence[int]) -> str:
        return ""


def decoder_of(tokenizer: "Tokenizer", prompt: Sequence[int], params: SamplingParams) -> "TextDecoder":
    """A decoder for the tokens after `prompt`, which gives no text where the parameters want none."""
    return tokenizer.text_decoder(prompt, params.skip_special_tokens) if params.detokenize else _NoText()


def _add_logprobs(completion: CompletionOutput, logprobs: list[LogprobEntries]) -> None:
    if completion.logprobs is not None:
        completion.logprobs.extend(map(unpacked, logprobs))
    if completion.cumulative_logprob is not None:
        owns = [own for entries in logprobs if (own := chosen(entries)) is not None]
        completion.cumulative_logprob += sum(own.logprob for _, own in owns)
