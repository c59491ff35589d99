"""All samples of all prompts of one HTTP request: submits, counts and ends them together. Knows no answer format."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pyllm.client.logprobs import LogprobEntries
from pyllm.client.streams import OutputSink
from pyllm.client.submission import room_for_output
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.http.event_ids import LAST_EVENT_ID, StreamIdentity
from pyllm.frontend.http.keep_alive import KeepAlive
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.requests.output_sinks import EndingSink, LoggedSink, TakeText
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.request_lifecycle import RequestLifecycle
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.outputs import Request, RequestProcessor
from pyllm.sampling_params import MAX_SAMPLES, SamplingParams
from pyllm.scheduling_params import SchedulingParams

# Most log-probabilities of an answer, where more than so many come with a token: each takes 2 us of the event loop as
# JSON, and 100 bytes before.
MAX_LOGPROBS = 1 << 20
MAX_UNBOUNDED_LOGPROBS = 20  # the default of --max-logprobs


class TokenCounts(NamedTuple):
    """Tokens of all choices together; a prompt counts once, however many samples it has.

    `cached` of the prompts' tokens were in the prefix cache. `is_expired` says that a deadline ended a choice.
    """

    prompt: int
    completion: int
    cached: int
    is_expired: bool = False


class Generation:
    """Submits the prompts, counts their output, and ends them all when one fails or the client has left.

    `context` is that of an admitted request; from `start` on the generation has to return its ticket.

    Raises:
        RequestError: there are more choices or log-probabilities than one request may have.
    """

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        scheduling: SchedulingParams,
        context: RequestContext,
    ) -> None:
        self.num_choices = num_choices(len(prompts), params)
        room = room_for_output(max(map(len, prompts)), state.client.model)
        _check_logprobs(prompts, params, room, state.client.model.vocab_size)
        if params.max_tokens is not None and 0 < room < params.max_tokens:
            context.max_tokens = room
        self._state = state
        self._prompts = prompts
        self._params = params
        self._request_id = context.request_id
        self._lifecycle = RequestLifecycle(state, context, prompts, params, scheduling, drop=self._drop)
        self._seed: int | None = None  # where the request has none, and its answer may have to be generated again
        self._boundaries: Sequence[Sequence[int]] | None = None
        self._takes: Sequence[TakeText] = ()
        self._sink: OutputSink[TextDelta]
        self._processors: list[RequestProcessor] = []

    @property
    def finished(self) -> bool:
        """Whether no further output follows."""
        return self._lifecycle.num_open == 0

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        cycle = self._lifecycle
        return TokenCounts(cycle.num_prompt_tokens, cycle.num_output_tokens, cycle.num_cached_tokens, cycle.is_expired)

    def counts_of(self, choice: int) -> TokenCounts:
        """Tokens of one choice so far, and of its prompt."""
        index, sample = divmod(choice, self._params.n)
        metrics = self._lifecycle.metrics[index]
        return TokenCounts(len(self._prompts[index]), metrics.num_tokens_of(sample), metrics.num_cached_tokens)

    def seconds_of(self, choice: int) -> tuple[float, float]:
        """Seconds of a choice to its first token, and from that to its last one so far; 0 without tokens."""
        index, sample = divmod(choice, self._params.n)
        return self._lifecycle.metrics[index].seconds_of(sample)

    @property
    def keep_alive(self) -> KeepAlive:
        """The sender of comments that keep silent streams open."""
        return self._state.keep_alive

    def identity(self) -> StreamIdentity:
        """The model, prompts and parameters that its tokens depend on, besides the seed."""
        return StreamIdentity.of(self._state.client.fingerprint, self._prompts, self._params)

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
        """Cut the choices' texts, and end all choices once each is complete; see `EndingSink`. Call before `start`."""
        self._takes = takes

    def start(self, sink: OutputSink[TextDelta]) -> None:
        """Submit every prompt. Each choice is an index of the sink.

        Raises:
            RequestError, EngineDeadError: a prompt cannot run; then none does.
            DeadlineError: the request's time is over already.
        """
        log = self._state.request_log
        log.received(self._request_id, self._prompts, self._params)
        self._sink = sink
        if self._takes:
            self._sink = EndingSink(self._sink, self._takes, self._end_early)
        if log.has_outputs:
            self._sink = LoggedSink(self._sink, log, self._request_id)
        self._lifecycle.start(self._submit, sink.error)

    def abort(self) -> None:
        """End the choices that still run; the sink gets nothing more."""
        self._lifecycle.abort()

    def _submit(self, index: int, metrics: RequestMetrics, scheduling: SchedulingParams) -> None:
        params = self._params
        choices = range(index * params.n, (index + 1) * params.n)
        sink = _PromptSink(self._lifecycle, self._sink, choices, metrics)
        if self._seed is not None:
            # Equal prompts are to have different answers, as they have with seeds that the client draws.
            params = msgspec.structs.replace(params, seed=(self._seed + index) % 2**64)
        boundaries = None if self._boundaries is None else self._boundaries[choices.start : choices.stop]
        request = Request(self._prompts[index], params, scheduling)
        self._processors.append(RequestProcessor(self._state.client, self._state.tokenizer, request, sink, boundaries))

    def _end_early(self) -> None:
        for processor in self._processors:
            processor.abort()

    def _drop(self) -> None:
        for processor in self._processors:
            processor.drop()


def num_choices(num_prompts: int, params: SamplingParams) -> int:
    """The number of choices of so many prompts.

    Raises:
        RequestError: there are more than one request may have.
    """
    number = num_prompts * params.n
    if number > MAX_SAMPLES:
        raise RequestError(f"{num_prompts} prompts times n = {params.n} is more than {MAX_SAMPLES} choices", "n")
    return number


def _check_logprobs(prompts: Sequence[Sequence[int]], params: SamplingParams, room: int, vocab_size: int) -> None:
    """Refuse more log-probabilities than an answer may have: writing them would stop other streams."""
    of_token, of_prompt = (
        0 if count is None else 1 + (vocab_size if count < 0 else count)
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


class _PromptSink:
    """Counts the text of one prompt's samples, and passes it on under the request's choices."""

    __slots__ = ("_choices", "_first_choice", "_has_tokens", "_lifecycle", "_metrics", "_sink")

    def __init__(
        self, lifecycle: RequestLifecycle, sink: OutputSink[TextDelta], choices: range, metrics: RequestMetrics
    ) -> None:
        self._lifecycle = lifecycle
        self._sink = sink
        self._choices = choices
        self._first_choice = choices.start
        self._metrics = metrics
        self._has_tokens = False

    def delta(self, index: int, delta: TextDelta) -> None:
        if delta.start_times is not None:
            self._metrics.started(delta.start_times)
        if delta.tokens or (delta.finish_reason == "length" and not self._has_tokens):  # the end of a prompt alone
            if not self._has_tokens:
                self._has_tokens = True
                self._lifecycle.output_started()
            self._metrics.delta(index, len(delta.tokens), delta.cached_tokens)
        if delta.finish_reason is not None:
            self._metrics.finish(index, delta.finish_reason)
            if delta.finish_reason == "deadline" and self._lifecycle.choice_expired():
                return
            self._lifecycle.choice_ended(delta.finish_reason)
            if delta.finish_reason == "deadline":
                delta.finish_reason = "length"  # Clients know no other reason for an answer that ends early.
        self._sink.delta(self._first_choice + index, delta)

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        del index  # The samples share their prompt.
        for choice in self._choices:
            self._sink.prompt_logprobs(choice, logprobs)

    def error(self, error: PyllmError) -> None:
        self._lifecycle.fail(error)
