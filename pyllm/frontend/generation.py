"""Everything that one HTTP request has the engine do: all samples of all its prompts. Knows no response format."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from pyllm.errors import DeadlineError, PyllmError, RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import HEADER
from pyllm.frontend.keep_alive import KeepAlive
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.metrics import RequestMetrics
from pyllm.frontend.outputs import Request, RequestProcessor
from pyllm.frontend.request_context import RequestContext
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.tracing import RequestTrace
from pyllm.sampling_params import MAX_SAMPLES, SamplingParams
from pyllm.scheduling_params import SchedulingParams


class TokenCounts(NamedTuple):
    """Tokens of all choices together; a prompt counts once, however many samples it has.

    `cached` of the prompts' tokens were in the prefix cache.
    """

    prompt: int
    completion: int
    cached: int


class Receiver(Protocol):
    """Where the text goes. Choices are numbered prompt by prompt, and within one by sample."""

    def text(self, choice: int, delta: TextDelta) -> None:
        """New text of one choice; one with a finish reason is its last."""

    def prompt_logprobs(self, choice: int, logprobs: list[LogprobEntries]) -> None:
        """Those of the next tokens of a choice's prompt, beginning at its second."""

    def error(self, error: PyllmError) -> None:
        """The whole request has failed; nothing follows."""


class Generation:
    """Submits the prompts, counts what comes, and ends all of it when one part fails or nobody waits any more.

    `context` is of a request that was admitted; from `start` on its ticket is this one's to give back.

    Raises:
        RequestError: there are more choices than one request may have.
    """

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        scheduling: SchedulingParams,
        context: RequestContext,
    ) -> None:
        assert context.ticket is not None
        self.num_choices = num_choices(len(prompts), params)
        self._state = state
        self._context = context
        self._ticket = context.ticket
        self._prompts = prompts
        self._params = params
        self._scheduling = scheduling
        self._seed: int | None = None  # where the request has none, and its answer may have to be generated again
        self._cuts: Sequence[Sequence[int]] | None = None
        self._receiver: Receiver
        self._processors: list[RequestProcessor] = []
        self._metrics: list[RequestMetrics] = []
        self._num_open = self.num_choices

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return self._num_open == 0

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        return TokenCounts(
            sum(map(len, self._prompts)),
            sum(metrics.num_tokens for metrics in self._metrics),
            sum(metrics.num_cached_tokens for metrics in self._metrics),
        )

    def counts_of(self, choice: int) -> TokenCounts:
        """Tokens of one choice so far, and of its prompt."""
        index, sample = divmod(choice, self._params.n)
        metrics = self._metrics[index]
        return TokenCounts(len(self._prompts[index]), metrics.num_tokens_of(sample), metrics.num_cached_tokens)

    @property
    def keep_alive(self) -> KeepAlive:
        """Who keeps silent streams open."""
        return self._state.keep_alive

    def fix_seed(self, seed: int | None, is_repeated: bool = False) -> int:
        """Before `start`: use this seed, or draw one, unless the request has its own; gives the one in use.

        Raises:
            RequestError: it is repeated with another seed than the first time.
        """
        own = self._params.seed
        if own is None:
            self._seed = secrets.randbits(63) if seed is None else seed
            return self._seed
        own %= 2**64
        if is_repeated and own != seed:
            raise RequestError(f"the header {HEADER} has seed {seed}, this request {own}; repeat the same one", HEADER)
        return own

    def cut(self, cuts: Sequence[Sequence[int]]) -> None:
        """Before `start`: split what comes of each choice at these counts of its tokens, ascending, above 0."""
        if any(cuts):
            self._cuts = cuts

    def start(self, receiver: Receiver) -> None:
        """Submit every prompt.

        Raises:
            RequestError, EngineDeadError: one of them cannot run; then none does.
            DeadlineError: its time is over already.
        """
        self._receiver = receiver
        scheduling = self._with_time_left()
        self._state.enter(self.fail)
        self._ticket.hold()
        try:
            for index, prompt in enumerate(self._prompts):
                self._submit(prompt, index, scheduling)
        except PyllmError as error:
            self._end("error")
            self._context.say_field(error)
            raise

    def abort(self) -> None:
        """End what still runs; nothing more is heard of it."""
        self._end("abort")

    def fail(self, error: PyllmError) -> None:
        """End what still runs, and tell the receiver why."""
        if not self.finished:
            self._end("error")
            self._context.say_field(error)
            self._receiver.error(error)

    def token_came(self) -> None:
        """Note that a prompt has its first token."""
        self._ticket.started()

    def choice_ended(self, reason: str) -> None:
        """Note that the next text of one choice is its last, and why."""
        self._num_open -= 1
        if self._num_open == 0:
            self._leave(reason)

    def expired(self) -> bool:
        """Note that time is over for one choice. True: it was for all, without a token, and the request has failed."""
        if self._ticket.first_token is not None:
            return False
        self._end("deadline")
        assert self._scheduling.timeout is not None
        self._receiver.error(_out_of_time(self._scheduling.timeout))
        return True

    def _with_time_left(self) -> SchedulingParams:
        """The scheduling, with what is left of its time; tokenising has taken some."""
        timeout = self._scheduling.timeout
        if timeout is None:
            return self._scheduling
        left = timeout - self._ticket.age
        if left <= 0:
            raise _out_of_time(timeout)
        return msgspec.structs.replace(self._scheduling, timeout=left)

    def _submit(self, prompt: Sequence[int], index: int, scheduling: SchedulingParams) -> None:
        if self.finished:
            return  # One before it was refused at once.
        params = self._params
        metrics = self._state.metrics.request(len(prompt), params.n)
        self._metrics.append(metrics)
        choices = range(index * params.n, (index + 1) * params.n)
        sink = _PromptSink(self, self._receiver, choices, metrics)
        if self._seed is not None:
            # Equal prompts are to have different answers, as they have with seeds that the client draws.
            params = msgspec.structs.replace(params, seed=(self._seed + index) % 2**64)
        cuts = None if self._cuts is None else self._cuts[choices.start : choices.stop]
        request = Request(prompt, params, scheduling)
        self._processors.append(RequestProcessor(self._state.client, self._state.tokenizer, request, sink, cuts))

    def _end(self, reason: str) -> None:
        self._num_open = 0
        for processor in self._processors:
            processor.drop()
        for metrics in self._metrics:
            metrics.end(reason)
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        """Give everything back; the second time, change nothing."""
        self._state.leave(self.fail)
        counts = self.counts
        if self._ticket.ended(counts.completion) and self._state.tracer is not None:
            self._state.tracer.request(self._trace(counts, reason))

    def _trace(self, counts: TokenCounts, reason: str) -> RequestTrace:
        ticket = self._ticket
        return RequestTrace(
            request_id=self._context.request_id,
            parent=self._context.trace,
            params=self._params,
            num_choices=self.num_choices,
            num_prompt_tokens=counts.prompt,
            num_cached_tokens=counts.cached,
            num_output_tokens=counts.completion,
            first_token=None if ticket.first_token is None else ticket.first_token - ticket.arrival,
            duration=ticket.age,
            finish_reason=reason,
        )


def num_choices(num_prompts: int, params: SamplingParams) -> int:
    """How many choices that makes.

    Raises:
        RequestError: there are more than one request may have.
    """
    number = num_prompts * params.n
    if number > MAX_SAMPLES:
        raise RequestError(f"{num_prompts} prompts times n = {params.n} is more than {MAX_SAMPLES} choices", "n")
    return number


def _out_of_time(timeout: float) -> DeadlineError:
    return DeadlineError(f"The request's time of {timeout:g} s was over before its first token.")


class _PromptSink:
    """The text sink of one prompt's samples: counts what comes, and passes it on."""

    __slots__ = ("_choices", "_first_choice", "_generation", "_has_tokens", "_metrics", "_receiver")

    def __init__(self, generation: Generation, receiver: Receiver, choices: range, metrics: RequestMetrics) -> None:
        self._generation = generation
        self._receiver = receiver
        self._choices = choices
        self._first_choice = choices.start
        self._metrics = metrics
        self._has_tokens = False

    def text(self, sample: int, delta: TextDelta, num_cached_tokens: int) -> None:
        if delta.tokens:
            if not self._has_tokens:
                self._has_tokens = True
                self._generation.token_came()
            self._metrics.delta(sample, len(delta.tokens), num_cached_tokens)
        if delta.finish_reason is not None:
            self._metrics.finish(sample, delta.finish_reason)
            if delta.finish_reason == "deadline" and self._generation.expired():
                return
            self._generation.choice_ended(delta.finish_reason)
        self._receiver.text(self._first_choice + sample, delta)

    def prompt_logprobs(self, logprobs: list[LogprobEntries]) -> None:
        for choice in self._choices:
            self._receiver.prompt_logprobs(choice, logprobs)

    def error(self, error: PyllmError) -> None:
        self._generation.fail(error)
