"""Everything that one HTTP request has the engine do: all samples of all its prompts. Knows no response format."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.columns import StartTimes
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.event_ids import LAST_EVENT_ID
from pyllm.frontend.keep_alive import KeepAlive
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.metrics import RequestMetrics
from pyllm.frontend.outputs import Request, RequestProcessor
from pyllm.frontend.request_context import RequestContext
from pyllm.frontend.request_life import RequestLife
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.submission import room_for_output
from pyllm.sampling_params import MAX_SAMPLES, SamplingParams
from pyllm.scheduling_params import SchedulingParams


class TokenCounts(NamedTuple):
    """Tokens of all choices together; a prompt counts once, however many samples it has.

    `cached` of the prompts' tokens were in the prefix cache. `is_expired` says that a deadline ended a choice.
    """

    prompt: int
    completion: int
    cached: int
    is_expired: bool = False


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
        self.num_choices = num_choices(len(prompts), params)
        room = room_for_output(max(map(len, prompts)), state.client.model)
        if params.max_tokens is not None and 0 < room < params.max_tokens:
            context.max_tokens = room
        self._state = state
        self._prompts = prompts
        self._params = params
        self._life = RequestLife(state, context, prompts, params, scheduling, drop=self._drop)
        self._seed: int | None = None  # where the request has none, and its answer may have to be generated again
        self._cuts: Sequence[Sequence[int]] | None = None
        self._receiver: Receiver
        self._processors: list[RequestProcessor] = []

    @property
    def finished(self) -> bool:
        """Whether nothing follows."""
        return self._life.num_open == 0

    @property
    def counts(self) -> TokenCounts:
        """Tokens so far."""
        life = self._life
        return TokenCounts(life.num_prompt_tokens, life.num_output_tokens, life.num_cached_tokens, life.is_expired)

    def counts_of(self, choice: int) -> TokenCounts:
        """Tokens of one choice so far, and of its prompt."""
        index, sample = divmod(choice, self._params.n)
        metrics = self._life.metrics[index]
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
            raise RequestError(
                f"the header {LAST_EVENT_ID} has seed {seed}, this request {own}; repeat the same one", LAST_EVENT_ID
            )
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
        self._life.start(self._submit, receiver.error)

    def abort(self) -> None:
        """End what still runs; nothing more is heard of it."""
        self._life.abort()

    def _submit(self, index: int, metrics: RequestMetrics, scheduling: SchedulingParams) -> None:
        params = self._params
        choices = range(index * params.n, (index + 1) * params.n)
        sink = _PromptSink(self._life, self._receiver, choices, metrics)
        if self._seed is not None:
            # Equal prompts are to have different answers, as they have with seeds that the client draws.
            params = msgspec.structs.replace(params, seed=(self._seed + index) % 2**64)
        cuts = None if self._cuts is None else self._cuts[choices.start : choices.stop]
        request = Request(self._prompts[index], params, scheduling)
        self._processors.append(RequestProcessor(self._state.client, self._state.tokenizer, request, sink, cuts))

    def _drop(self) -> None:
        for processor in self._processors:
            processor.drop()


def num_choices(num_prompts: int, params: SamplingParams) -> int:
    """How many choices that makes.

    Raises:
        RequestError: there are more than one request may have.
    """
    number = num_prompts * params.n
    if number > MAX_SAMPLES:
        raise RequestError(f"{num_prompts} prompts times n = {params.n} is more than {MAX_SAMPLES} choices", "n")
    return number


class _PromptSink:
    """The text sink of one prompt's samples: counts what comes, and passes it on."""

    __slots__ = ("_choices", "_first_choice", "_has_tokens", "_life", "_metrics", "_receiver")

    def __init__(self, life: RequestLife, receiver: Receiver, choices: range, metrics: RequestMetrics) -> None:
        self._life = life
        self._receiver = receiver
        self._choices = choices
        self._first_choice = choices.start
        self._metrics = metrics
        self._has_tokens = False

    def started(self, times: StartTimes) -> None:
        self._metrics.started(times)

    def text(self, sample: int, delta: TextDelta, num_cached_tokens: int) -> None:
        if delta.tokens:
            if not self._has_tokens:
                self._has_tokens = True
                self._life.came()
            self._metrics.delta(sample, len(delta.tokens), num_cached_tokens)
        if delta.finish_reason is not None:
            self._metrics.finish(sample, delta.finish_reason)
            if delta.finish_reason == "deadline" and self._life.expired():
                return
            self._life.choice_ended(delta.finish_reason)
            if delta.finish_reason == "deadline":
                delta.finish_reason = "length"  # Clients know no other reason for an answer that is cut short.
        self._receiver.text(self._first_choice + sample, delta)

    def prompt_logprobs(self, logprobs: list[LogprobEntries]) -> None:
        for choice in self._choices:
            self._receiver.prompt_logprobs(choice, logprobs)

    def error(self, error: PyllmError) -> None:
        self._life.fail(error)
