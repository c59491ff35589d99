"""The state that all API processes share: tickets of admitted requests, records, responses, totals, the list of cores.

Knows no wire.
"""

import secrets
import time
from collections.abc import Callable

from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.core_membership import CoreMembership
from pyllm.frontend.shared.idempotency_records import Records
from pyllm.frontend.shared.messages import LOST, Admission, Granted, Refused
from pyllm.frontend.shared.queue import AdmissionQueue
from pyllm.frontend.shared.rate_limits import RateLimits
from pyllm.frontend.shared.stored_responses import StoredResponses
from pyllm.frontend.shared.totals import Totals
from pyllm.wire.supervision_messages import CoreList


class _Ticket:
    __slots__ = ("account", "is_started", "num_sequences", "num_tokens")

    def __init__(self, admission: Admission) -> None:
        self.account = admission.account
        self.num_sequences = admission.num_sequences
        self.num_tokens = 0
        self.is_started = False


class SharedState:
    """The state of one server. `member` is the calling API process; `drop` releases everything that it holds.

    A ticket is open from the `admit` that granted it until its `ended`, or until a `charge` that was refused. Calls
    about a ticket that is not open change nothing. `on_cores` is called with each new list of cores. Records, responses
    and the accounts' limits are those of `beside`, the state of another model of the same server, if there is one.
    """

    def __init__(
        self,
        config: SharedConfig,
        clock: Callable[[], float] = time.monotonic,
        on_cores: Callable[[CoreList], None] = lambda cores: None,
        *,
        beside: "SharedState | None" = None,
    ) -> None:
        if beside is None:
            self.records = Records(config.idempotency_retention, clock, first_number=secrets.randbits(60))
            self.responses = StoredResponses(config.max_stored_responses)
            self._limits = RateLimits(clock)
        else:
            self.records, self.responses, self._limits = beside.records, beside.responses, beside._limits
        self.totals = Totals()
        self._counts_queued_tokens = config.max_num_queued_tokens > 0
        self._queue = AdmissionQueue(config)
        self.cores = CoreMembership(config, self._queue.resize, on_cores)
        self._tickets: dict[int, dict[int, _Ticket]] = {}

    @property
    def num_tickets(self) -> int:
        """The number of open tickets."""
        return sum(map(len, self._tickets.values()))

    def admit(self, member: int, admission: Admission) -> Granted | Refused:
        """Open a ticket, unless the account or the queue has no room."""
        # The queue first: a server that is full takes nothing from anybody's budget.
        refused = self._queue.enter(admission.num_sequences)
        if refused is None:
            refused = self._limits.enter(admission.account, admission.allowance)
            if refused is not None:
                self._queue.leave_waiting(admission.num_sequences, 0)
        if refused is not None:
            return refused
        self._tickets.setdefault(member, {})[admission.ticket] = _Ticket(admission)
        return self._granted(admission.account, admission.allowance.max_tokens_per_minute > 0)

    def readmit(self, member: int, admission: Admission, num_prompt_tokens: int, is_started: bool) -> None:
        """Open a ticket that an earlier state granted. This refuses nothing and takes from no budget."""
        if admission.ticket in self._tickets.get(member, {}):
            return
        held = self._tickets.setdefault(member, {})[admission.ticket] = _Ticket(admission)
        held.num_tokens = num_prompt_tokens
        self._limits.reenter(admission.account, admission.allowance)
        self._queue.reenter(admission.num_sequences, num_prompt_tokens)
        if is_started:
            self.started(member, admission.ticket)

    def charge(self, member: int, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """Count a prompt, unless the account or the queue has no room for it: then the ticket is closed."""
        held = self._tickets.get(member, {}).get(ticket)
        if held is None:
            return Refused(LOST, "The server has lost this request. Please send it again.", 1.0)
        # A request with an output token waits no longer, and neither do its prompt's tokens.
        refused = None if held.is_started else self._queue.charge(num_prompt_tokens)
        if refused is None:
            held.num_tokens += num_prompt_tokens
            refused = self._limits.charge(held.account, num_prompt_tokens)
        if refused is not None:
            self.ended(member, ticket, 0)
            return refused
        return self._granted(held.account, counts_tokens=True)

    def started(self, member: int, ticket: int) -> None:
        """Note a request's first token, after which it waits no longer."""
        held = self._tickets.get(member, {}).get(ticket)
        if held is not None and not held.is_started:
            held.is_started = True
            self._queue.started(held.num_sequences, held.num_tokens)

    def ended(self, member: int, ticket: int, num_output_tokens: int) -> None:
        """Close a ticket, and count its request's output tokens."""
        held = self._tickets.get(member, {}).pop(ticket, None)
        if held is None:
            return
        if held.is_started:
            self._queue.leave_running(held.num_sequences)
        else:
            self._queue.leave_waiting(held.num_sequences, held.num_tokens)
        self._limits.leave(held.account, num_output_tokens)

    def resize(self, share: float) -> None:
        """Keep at most this share of the bytes of records and responses. No ticket and no running request is lost."""
        self.records.resize(share)
        self.responses.resize(share)

    def drop(self, member: int) -> None:
        """Close every ticket of an API process that is gone, and let others take over its runs."""
        self.records.drop(member)
        self.totals.drop(member)
        self.cores.drop(member)
        for ticket in list(self._tickets.get(member, ())):
            self.ended(member, ticket, 0)
        self._tickets.pop(member, None)

    def _granted(self, account: str, counts_tokens: bool) -> Granted:
        return Granted(*self._limits.remaining(account), counts_tokens or self._counts_queued_tokens)
