"""The life that all requests to the engine share: they start, have a deadline, and end once.

Does not know whether a request generates or embeds.
"""

from collections.abc import Callable, Sequence

import msgspec

from pyllm.errors import DeadlineError, PyllmError, RequestError
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.observability.tracing import RequestTrace
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams

SubmitPrompt = Callable[[int, RequestMetrics, SchedulingParams], None]
OnFailure = Callable[[PyllmError], None]


class RequestLifecycle:
    """The lifecycle of one request. `params` are None where nothing is sampled; `drop` ends the submitted prompts.

    `context` is that of an admitted request; from `start` on the lifecycle has to return its ticket.
    """

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None,
        scheduling: SchedulingParams,
        *,
        drop: Callable[[], None],
    ) -> None:
        assert context.ticket is not None
        self.num_choices = len(prompts) * (1 if params is None else params.n)
        self.num_open = self.num_choices  # 0: no output follows
        self.num_prompt_tokens = sum(map(len, prompts))
        self.is_expired = False  # a deadline has ended a choice
        self.metrics: list[RequestMetrics] = []  # of each prompt that was submitted
        self._state = state
        self._context = context
        self._ticket = context.ticket
        self._prompts = prompts
        self._params = params
        self._scheduling = scheduling
        self._drop = drop
        self._on_failure: OnFailure

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all choices so far."""
        return sum(metrics.num_tokens for metrics in self.metrics)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompts that were in the prefix cache."""
        return sum(metrics.num_cached_tokens for metrics in self.metrics)

    def start(self, submit: SubmitPrompt, on_failure: OnFailure) -> None:
        """Register the request, and submit every prompt; `on_failure` is called with a later failure.

        Raises:
            RequestError, EngineDeadError: a prompt cannot run; then none does.
            DeadlineError: the request's time is over already.
        """
        self._on_failure = on_failure
        self._context.ticket = None  # Its end returns it, not the end of the exchange.
        try:
            scheduling = self._with_time_left()
            self._state.enter(self.fail)
            for index, prompt in enumerate(self._prompts):
                if not self.num_open:
                    return  # An earlier prompt was refused at once.
                metrics = self._state.metrics.request(len(prompt), self._params)
                self.metrics.append(metrics)
                with RequestError.of_item(index, len(self._prompts)):
                    submit(index, metrics, scheduling)
        except PyllmError as error:
            self._end(_reason(error))
            self._context.say_field(error)
            raise

    def output_started(self) -> None:
        """Note that the first token or embedding has come."""
        self._ticket.started()

    def choice_ended(self, reason: str) -> None:
        """Note that one choice is complete, and why."""
        self.num_open -= 1
        if self.num_open == 0:
            self._leave(reason)

    def choice_expired(self) -> bool:
        """Note that a choice has timed out. True: the request had no token at all, and has failed."""
        self.is_expired = True
        if self._ticket.first_token is not None:
            return False
        timeout = self._scheduling.timeout
        assert timeout is not None
        self.fail(self._out_of_time(timeout))
        return True

    def abort(self) -> None:
        """End the choices that still run; no output or failure follows."""
        if self.num_open:
            self._end("abort")

    def fail(self, error: PyllmError) -> None:
        """End the choices that still run, and report the error."""
        if self.num_open:
            self._end(_reason(error))
            self._context.say_field(error)
            self._on_failure(error)

    def _with_time_left(self) -> SchedulingParams:
        """The scheduling parameters with the remaining time; tokenising has taken some."""
        timeout = self._scheduling.timeout
        if timeout is None:
            return self._scheduling
        left = timeout - self._ticket.age
        if left <= 0:
            raise self._out_of_time(timeout)
        return msgspec.structs.replace(self._scheduling, timeout=left)

    def _out_of_time(self, timeout: float) -> DeadlineError:
        awaited = "embedding" if self._params is None else "token"
        return DeadlineError(f"The request timed out after {timeout:g} s, before its first {awaited}.")

    def _end(self, reason: str) -> None:
        self.num_open = 0
        self._drop()
        for metrics in self.metrics:
            metrics.end(reason)
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        """Release everything; a second call changes nothing."""
        self._state.leave(self.fail)
        if self._ticket.ended(self.num_output_tokens) and self._state.tracer is not None:
            self._state.tracer.request(self._trace(reason))

    def _trace(self, reason: str) -> RequestTrace:
        ticket = self._ticket
        return RequestTrace(
            request_id=self._context.request_id,
            parent=self._context.headers.trace,
            params=self._params,
            num_choices=self.num_choices,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            first_token=None if ticket.first_token is None else ticket.first_token - ticket.arrival,
            duration=ticket.age,
            finish_reason=reason,
        )


def _reason(error: PyllmError) -> str:
    return "deadline" if isinstance(error, DeadlineError) else "error"
