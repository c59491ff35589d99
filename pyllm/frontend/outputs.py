"""What a request gives its user, and the processor that turns one request's tokens into it. Knows no HTTP."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from pyllm.errors import EngineDeadError, PyllmError
from pyllm.frontend.client import EngineClient
from pyllm.frontend.detokenizer import Detokenizer, TextDelta
from pyllm.frontend.reports import SampleReport
from pyllm.messages import FinishCode
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams

if TYPE_CHECKING:
    from pyllm.frontend.tokenizer import Tokenizer  # Only passed through here; its library loads in 30 ms.


class CompletionOutput(msgspec.Struct):
    """One sample: the text and tokens so far, and how it ended (`finish_reason` None: it goes on)."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class RequestOutput(msgspec.Struct):
    """One request: its prompt, and all its samples. `num_cached_tokens` of the prompt were in the prefix cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0


class Request(NamedTuple):
    """What one request asks for."""

    prompt_token_ids: list[int]
    params: SamplingParams
    scheduling: SchedulingParams = DEFAULT_SCHEDULING


class TextSink(Protocol):
    """Where the text of one request goes: plain functions, called from the event loop, that must not block."""

    def text(self, sample: int, delta: TextDelta, num_cached_tokens: int) -> None:
        """New text of one sample, and its tokens; a `finish_reason` marks its last."""

    def error(self, error: PyllmError) -> None:
        """The request has failed; nothing follows."""


class RequestProcessor:
    """The sink of one request's tokens: a detokenizer for each sample, and an abort where a stop string matches.

    Making one submits the request; raises as `EngineClient.submit` does.
    """

    __slots__ = ("_client", "_detokenizers", "_num_open", "_request", "_sink")

    def __init__(self, client: EngineClient, tokenizer: "Tokenizer", request: Request, sink: TextSink) -> None:
        prompt, params, scheduling = request
        self._client = client
        self._sink = sink
        # By sample; None once it has ended.
        self._detokenizers: list[Detokenizer | None] = [
            Detokenizer(tokenizer.text_decoder(prompt, params.skip_special_tokens), params) for _ in range(params.n)
        ]
        self._num_open = params.n
        self._request = client.submit(prompt, params, self, scheduling)

    @property
    def finished(self) -> bool:
        """Whether every sample has ended, or the request has failed."""
        return self._num_open == 0

    def abort(self) -> None:
        """End the request; every sample that has not ended gets its last delta at once, with what was held back."""
        if not self.finished:
            self._client.abort(self._request)
            for sample in range(len(self._detokenizers)):
                if (detokenizer := self._detokenizers[sample]) is not None:
                    self._close(sample)
                    self._sink.text(sample, detokenizer.feed([], FinishCode.ABORT), 0)

    async def explain(self) -> list[SampleReport]:
        """Where each sample stands, and why; raises as `EngineClient.explain` does."""
        return await self._client.explain(self._request)

    def drop(self) -> None:
        """End the request; the sink hears nothing more of it."""
        if not self.finished:
            self._close_all()
            self._client.abort(self._request)

    def delta(self, sample: int, tokens: list[int], finish: FinishCode, cached_tokens: int) -> None:
        """Take new tokens from the client."""
        detokenizer = self._detokenizers[sample]
        if detokenizer is None:
            return  # It ended here, by a stop string, and these were on their way.
        if finish == FinishCode.ERROR:
            self._client.abort(self._request)
            self.error(EngineDeadError("the engine could not go on with this request"))
            return
        delta = detokenizer.feed(tokens, finish)
        if delta.finish_reason is not None:
            self._close(sample)
            if not finish:
                self._client.abort(self._request, sample)
        self._sink.text(sample, delta, cached_tokens)

    def error(self, error: PyllmError) -> None:
        """Pass the request's failure on."""
        if not self.finished:
            self._close_all()
            self._sink.error(error)

    def _close(self, sample: int) -> None:
        self._detokenizers[sample] = None
        self._num_open -= 1

    def _close_all(self) -> None:
        self._detokenizers = [None] * len(self._detokenizers)
        self._num_open = 0


class OutputFold:
    """A text sink that adds up one request. `on_change` is called after every change, the last one included.

    Who wants the finished output only waits until `finished` and takes one `snapshot`: a change alone copies nothing.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        num_samples: int,
        on_change: Callable[[], None],
    ) -> None:
        self.failure: PyllmError | None = None
        self._output = RequestOutput(
            request_id, prompt, prompt_token_ids, [CompletionOutput(index) for index in range(num_samples)]
        )
        self._unfinished = num_samples
        self._on_change = on_change

    @property
    def finished(self) -> bool:
        """Whether nothing follows, be it that all samples have ended or that the request has failed."""
        return self._unfinished == 0 or self.failure is not None

    def text(self, sample: int, delta: TextDelta, num_cached_tokens: int) -> None:
        """Add what is new."""
        completion = self._output.outputs[sample]
        completion.text += delta.text
        completion.token_ids.extend(delta.tokens)
        self._output.num_cached_tokens = max(self._output.num_cached_tokens, num_cached_tokens)
        if delta.finish_reason is not None:
            completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
            self._unfinished -= 1
        self._on_change()

    def error(self, error: PyllmError) -> None:
        """Keep the failure for the reader."""
        self.failure = error
        self._on_change()

    def snapshot(self) -> RequestOutput:
        """All that came so far, as an object of its own.

        Raises:
            PyllmError: the request has failed.
        """
        if self.failure is not None:
            raise self.failure
        outputs = [msgspec.structs.replace(each, token_ids=each.token_ids[:]) for each in self._output.outputs]
        return msgspec.structs.replace(self._output, outputs=outputs, finished=self._unfinished == 0)
