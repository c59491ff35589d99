"""Admits a request with a ticket of the shared state, or raises the reason for its refusal. Knows no route."""

from pyllm.errors import EngineDeadError
from pyllm.frontend.http.failure import QueueFullError, RateLimitError
from pyllm.frontend.requests.admission_ticket import Ticket
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.shared.messages import LIMIT_REASONS, LOST, Admission, Granted, Refused


async def admit(state: ServerState, context: RequestContext, num_sequences: int) -> Ticket:
    """A ticket for the request, before its prompt is read; it is returned at the end of the exchange at the latest.

    A request without sequences counts for its account only, not in the queue.

    Raises:
        RateLimitError: its account's budget is used up.
        QueueFullError: too many requests wait already.
        EngineDeadError: the shared state is unavailable, or has lost the request.
    """
    number = next(state.ticket_numbers)
    try:
        answer = await state.shared.admit(Admission(number, context.tenant, context.allowance, num_sequences))
    except BaseException:
        state.shared.ended(number, 0)  # Whether it was granted is not known.
        raise
    granted = _judged(state, context, answer)
    context.ticket = Ticket(state.shared, number, context.arrival, granted.counts_tokens)
    return context.ticket


async def charge(state: ServerState, context: RequestContext, num_prompt_tokens: int) -> None:
    """Count the tokens of all prompts of an admitted request; raises as `admit` does."""
    assert context.ticket is not None
    answer = await context.ticket.charge(num_prompt_tokens)
    if answer is not None:
        _judged(state, context, answer)


def _judged(state: ServerState, context: RequestContext, answer: Granted | Refused) -> Granted:
    context.budgets = answer
    if isinstance(answer, Granted):
        return answer
    if answer.reason == LOST:
        raise EngineDeadError(answer.text)
    state.metrics.rejected[answer.reason] += 1
    if answer.reason in LIMIT_REASONS:
        kind = "tokens" if answer.reason == "tokens" else "requests"
        raise RateLimitError(answer.text, kind, answer.retry_after)
    raise QueueFullError(answer.text, answer.retry_after)
