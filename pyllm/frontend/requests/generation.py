"""All samples of all prompts of one HTTP request: submits, counts and ends them together. Knows no answer format."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.client.submission import room_for_output
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.http.event_ids import LAST_EVENT_ID, StreamIdentity
from pyllm.frontend.http.keep_alive import KeepAlive
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.observability.request_log import OutputLog
from pyllm.frontend.requests.prompt_batch import PromptBatch
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.outputs import RequestProcessor
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams

logger = logging.getLogger(__name__)

# Most log-probabilities of an answer, where more than so many come with a token: each takes 2 us of a thread, and
# some 70 bytes as JSON.
MAX_LOGPROBS = 1 << 20
MAX_UNBOUNDED_LOGPROBS = 20  # the default of --max-logprobs


# Gives the part of a choice's new text that stays, and whether the text ends there.
TakeText = Callable[[str], tuple[str, bool]]


class TokenCounts(NamedTuple):
    """Tokens of all choices together; a prompt counts once, however many samples it has.

    `cached` of the prompts' tokens were in the prefix cache. `is_expired` says that a deadline ended a choice.
    """

    prompt: int
    completion: int
    cached: int
    is_expired: bool = False


class Generation(PromptBatch):
    """Submits the prompts, counts their output, and ends them all when one fails or the client has left.

    It is the sink of its prompts' text: `delta`, `prompt_logprobs` and `error` are for them. Choices are numbered
    prompt by prompt.

    Raises:
        RequestError: there are more log-probabilities than one request may have.
    """

    _params: SamplingParams

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        scheduling: SchedulingParams,
        context: RequestContext,
    ) -> None:
        super().__init__(state, context, prompts, params, scheduling)
        room = room_for_output(max(map(len, prompts)), state.client.model)
        _check_logprobs(prompts, params, room, state.client.model.vocab_size)
        # The number of tokens that the context has room for, where that is fewer than the request asks for.
        self.reduced_limit = room if params.max_tokens is not None and 0 < room < params.max_tokens else None
        self._seed: int | None = None  # where the request has none, and its answer may have to be generated again
        self._boundaries: Sequence[Sequence[int]] | None = None
        self._takes: Sequence[TakeText] = ()
        self._unlimited: set[int] = set()  # choices whose text may go on, where the texts are limited
        self._output_log: OutputLog | None = None
        self._has_tokens = False
        # Of each choice, the metrics of its prompt, and its sample there.
        self._measured: list[tuple[RequestMetrics, int]] = []
        self._sink: OutputSink[TextDelta]
        self._pass_on: Callable[[int, TextDelta], None]  # chosen once, as each token goes this way
        self._processors: list[RequestProcessor] = []

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        return TokenCounts(self.num_prompt_tokens, self._num_output_tokens, self._num_cached_tokens, self._is_expired)

    def counts_of(self, choice: int) -> TokenCounts:
        """Tokens of one choice so far, and of its prompt."""
        metrics, sample = self._measured[choice]
        return TokenCounts(metrics.num_prompt_tokens, metrics.num_tokens_of(sample), metrics.num_cached_tokens)

    def seconds_of(self, choice: int) -> tuple[float, float]:
        """Seconds of a choice to its first token, and from that to its last one so far; 0 without tokens."""
        metrics, sample = self._measured[choice]
        return metrics.seconds_of(sample)

    @property
    def keep_alive(self) -> KeepAlive:
        """The sender of comments that keep silent streams open."""
        return self._state.keep_alive

    def identity(self) -> StreamIdentity:
        """The model, adapter, prompts and parameters that its tokens depend on, besides the seed."""
        fingerprint, adapter = self._state.client.fingerprint, self._scheduling.adapter
        return StreamIdentity.of(fingerprint, self._prompts, self._params, adapter)

    def fix_seed(self, seed: int | None, is_repeated: bool = False) -> int:
        """Use this seed, or draw one, unless the request has its own; gives the seed in use. Call before `start`.

        Raises:
            RequestError: it is repeated with another seed than the first time.
        """
        own = self._params.seed
        if own is None:
            self._seed = self._state.client.draw_seed() if seed is None else seed
            return self._seed
        own %= 2**64
        if is_repeated and own != seed:
            text = f"the header {LAST_EVENT_ID} has seed {seed}, this request {own}; repeat the same request"
            raise RequestError(text, LAST_EVENT_ID)
        return own

    def split_at(self, boundaries: Sequence[Sequence[int]]) -> None:
        """Split each choice's deltas at these counts of its tokens, ascending, above 0. Call before `start`."""
        if any(boundaries):
            self._boundaries = boundaries

    def limit_texts(self, takes: Sequence[TakeText]) -> None:
        """Shorten each choice's text by its function, and end all choices once each has ended or has all of its text.

        Call before `start`.
        """
        self._takes = takes
        self._unlimited = set(range(len(takes)))

    def start(self, sink: OutputSink[TextDelta]) -> None:
        """Submit every prompt, once. Each choice is an index of the sink.

        Raises:
            RequestError, EngineDeadError: a prompt cannot run; then none does.
            DeadlineError: the request's time is over already.
        """
        self._sink = sink
        log = self._state.request_log
        if log.has_outputs:
            self._output_log = OutputLog(log, self._context.request_id)
        self._pass_on = self._pass_on_watched if self._takes or log.has_outputs else sink.delta
        self._start()

    def run_aside(self, work: Callable[[], bytes], done: Callable[[bytes], None]) -> None:
        """Run a function that takes long on a thread, one such at a time, and call `done` with its result.

        If it fails, the sink gets an error, and `done` an empty result.
        """
        job = asyncio.get_running_loop().run_in_executor(self._state.answer_thread, work)
        job.add_done_callback(partial(self._ran_aside, done))

    def delta(self, index: int, delta: TextDelta) -> None:
        """Count a choice's new text, and pass it on."""
        metrics, sample = self._measured[index]
        if delta.start_times is not None:
            metrics.started(delta.start_times)
        if delta.tokens or (delta.finish_reason == "length" and not metrics.has_begun):  # the end of a prompt alone
            if not self._has_tokens:
                self._has_tokens = True
                self._ticket.started()
            metrics.delta(sample, len(delta.tokens), delta.cached_tokens)
        if delta.finish_reason is not None:
            metrics.finish(sample, delta.finish_reason)
            if delta.finish_reason == "deadline" and self._choice_expired():
                return
            self._choice_ended(delta.finish_reason)
            if delta.finish_reason == "deadline":
                delta.finish_reason = "length"  # Clients know no other reason for an answer that ends early.
        self._pass_on(index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        """Pass on log-probabilities of a prompt, for each of its choices: they share it."""
        for choice in range(index, index + self._params.n):
            self._sink.prompt_logprobs(choice, logprobs)

    def _ran_aside(self, done: Callable[[bytes], None], job: "asyncio.Future[bytes]") -> None:
        failure = job.exception()
        if failure is not None:
            logger.error("an answer could not be written", exc_info=failure)
            self.close()
            self._sink.error(PyllmError("the answer could not be written; the server's log says why"))
        done(b"" if failure is not None else job.result())

    def _submit(self, index: int, scheduling: SchedulingParams) -> None:
        params = self._params
        first = index * params.n
        if self._seed is not None:
            # Equal prompts are to have different answers, as they have with seeds that the client draws.
            params = msgspec.structs.replace(params, seed=(self._seed + index) % 2**64)
        self._measured += [(self._metrics[index], sample) for sample in range(params.n)]
        client, tokenizer = self._state.client, self._state.tokenizer
        processor = RequestProcessor(client, tokenizer, self._prompts[index], params, self, first_index=first)
        processor.start(scheduling, None if self._boundaries is None else self._boundaries[first : first + params.n])
        self._processors.append(processor)

    def _pass_on_watched(self, choice: int, delta: TextDelta) -> None:
        """Log the text and limit it, as far as the request asks for either."""
        if self._output_log is not None:
            self._output_log.add(choice, delta)
        if not self._takes:
            self._sink.delta(choice, delta)
            return
        delta.text, is_all = self._takes[choice](delta.text)
        self._sink.delta(choice, delta)
        if choice in self._unlimited and (is_all or delta.finish_reason is not None):
            self._unlimited.remove(choice)
            if not self._unlimited:
                for processor in self._processors:
                    processor.abort()

    def _drop(self) -> None:
        for processor in self._processors:
            processor.drop()

    def _report(self, error: PyllmError) -> None:
        self._sink.error(error)


def _check_logprobs(prompts: Sequence[Sequence[int]], params: SamplingParams, room: int, vocab_size: int) -> None:
    """Refuse more log-probabilities than an answer may have: writing them would stop other streams."""
    of_token, of_prompt = (
        0 if count is None else 1 + (vocab_size if count < 0 else min(count, vocab_size))
        for count in (params.logprobs, params.prompt_logprobs)
    )
    max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
    num_prompt_tokens = sum(map(len, prompts)) - len(prompts)
    num_logprobs = of_prompt * num_prompt_tokens + of_token * max_tokens * params.n * len(prompts)
    if max(of_token, of_prompt) > 1 + MAX_UNBOUNDED_LOGPROBS and num_logprobs > MAX_LOGPROBS:
        text = (
            f"{num_prompt_tokens} prompt tokens with {of_prompt} log-probabilities each and {max_tokens} output tokens "
            f"of {params.n * len(prompts)} choices with {of_token} each are {num_logprobs}, and an answer has at most "
            f"{MAX_LOGPROBS} where more than {MAX_UNBOUNDED_LOGPROBS} come with a token: ask for fewer, or use "
            "pyllm.LLM, which has no such limit"
        )
        raise RequestError(text, "prompt_logprobs" if of_prompt * num_prompt_tokens > MAX_LOGPROBS else "logprobs")
