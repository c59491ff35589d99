"""The prompts of one HTTP request: they start together, have one deadline, and end together.

Does not know whether they generate or are embedded.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from pyllm.errors import DeadlineError, PyllmError, RequestError
from pyllm.frontend.observability.metrics import RequestMetrics
from pyllm.frontend.observability.tracing import RequestTrace
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams


class PromptBatch(ABC):
    """The prompts of an admitted request. `params` are None where nothing is sampled.

    From its start on the batch has to return the ticket of `context`.
    """

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None,
        scheduling: SchedulingParams,
    ) -> None:
        assert context.ticket is not None
        self.num_choices = len(prompts) * (1 if params is None else params.n)
        self.num_prompt_tokens = sum(map(len, prompts))
        self._state = state
        self._context = context
        self._ticket = context.ticket
        self._prompts = prompts
        self._params = params
        self._scheduling = scheduling
        self._metrics: list[RequestMetrics] = []  # of each prompt that was submitted
        self._num_open = self.num_choices
        self._is_expired = False  # a deadline has ended a choice

    @property
    def finished(self) -> bool:
        """Whether no further output follows."""
        return self._num_open == 0

    def close(self) -> None:
        """End the choices that still run; no output or failure follows. A second call changes nothing."""
        if self._num_open:
            self._end("abort")

    def error(self, error: PyllmError) -> None:
        """End the choices that still run, as a prompt has failed, and report the error."""
        if self._num_open:
            self._end(_reason(error))
            self._context.say_field(error)
            self._report(error)

    @abstractmethod
    def _submit(self, index: int, scheduling: SchedulingParams) -> None:
        """Submit one prompt."""

    @abstractmethod
    def _drop(self) -> None:
        """End the submitted prompts; no output of theirs follows."""

    @abstractmethod
    def _report(self, error: PyllmError) -> None:
        """Tell the reader of the output that the request has failed."""

    @property
    def _num_output_tokens(self) -> int:
        return sum(metrics.num_tokens for metrics in self._metrics)

    @property
    def _num_cached_tokens(self) -> int:
        return sum(metrics.num_cached_tokens for metrics in self._metrics)

    def _start(self) -> None:
        """Register the request, and submit every prompt.

        Raises:
            RequestError, EngineDeadError: a prompt cannot run; then none does.
            DeadlineError: the request's time is over already.
        """
        context = self._context
        self._state.request_log.received(context.request_id, self._prompts, self._params, context.model_name)
        self._context.ticket = None  # The end of the batch returns it, not the end of the exchange.
        try:
            scheduling = self._with_time_left()
            self._state.enter(self.error)
            for index, prompt in enumerate(self._prompts):
                if self.finished:
                    return  # An earlier prompt was refused at once.
                self._metrics.append(self._state.metrics.request(len(prompt), self._params))
                with RequestError.of_item(index, len(self._prompts)):
                    self._submit(index, scheduling)
        except PyllmError as error:
            self._end(_reason(error))
            self._context.say_field(error)
            raise

    def _choice_ended(self, reason: str) -> None:
        """Note that one choice is complete, and why."""
        self._num_open -= 1
        if self._num_open == 0:
            self._leave(reason)

    def _choice_expired(self) -> bool:
        """Note that a choice has timed out. True: the request had no token at all, and has failed."""
        self._is_expired = True
        if self._ticket.first_token is not None:
            return False
        timeout = self._scheduling.timeout
        assert timeout is not None
        self.error(self._out_of_time(timeout))
        return True

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
        self._num_open = 0
        self._drop()
        for metrics in self._metrics:
            metrics.end(reason)
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        """Release everything; a second call changes nothing."""
        self._state.leave(self.error)
        if self._ticket.ended(self._num_output_tokens) and self._state.tracer is not None:
            self._state.tracer.request(self._trace(reason))

    def _trace(self, reason: str) -> RequestTrace:
        ticket = self._ticket
        return RequestTrace(
            request_id=self._context.request_id,
            model_name=self._context.model_name,
            parent=self._context.headers.trace,
            params=self._params,
            num_choices=self.num_choices,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            first_token=None if ticket.first_token is None else ticket.first_token - ticket.arrival,
            duration=ticket.age,
            finish_reason=reason,
        )


def _reason(error: PyllmError) -> str:
    return "deadline" if isinstance(error, DeadlineError) else "error"
