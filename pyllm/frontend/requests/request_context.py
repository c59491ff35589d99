"""The properties of a request outside its body: its headers, id, tenant, time limit and ticket.

The gateway makes it; routes and generations use it.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Self

import msgspec

from pyllm.config.api_keys import Allowance, Role
from pyllm.errors import RequestError, renamed
from pyllm.frontend.http.asgi import Scope
from pyllm.frontend.http.event_ids import Position
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.http.routing import Request
from pyllm.frontend.requests.admission_ticket import Ticket
from pyllm.frontend.requests.request_headers import (
    MAX_REQUEST_ID_CHARACTERS,
    RequestHeaders,
    checked_tenant,
    is_request_id,
)
from pyllm.frontend.shared.messages import Granted, Refused

# The key of the `RequestContext` in an ASGI scope.
CONTEXT = "pyllm.context"
# The key of the answer's x-request-id in an ASGI scope.
REQUEST_ID = "pyllm.request_id"
# The response header that says how many tokens an answer may have, where that is fewer than the request asks for.
MAX_TOKENS_HEADER = b"pyllm-max-tokens"
# The response header that names what was adjusted in the messages for the chat template (`chat/template_traits.py`).
ADJUSTED_MESSAGES_HEADER = b"pyllm-adjusted-messages"


class RequestContext(msgspec.Struct):
    """One request's id, which is part of its answer's id, its tenant, and the seconds that it may take.

    `session` names the conversation or the like that the request belongs to: all its requests go to one core where that
    costs nothing. `data_parallel_rank` is the core that a header asks for.

    `arrival` is the time of arrival, by the monotonic clock. Admission or refusal sets `ticket` and `budgets`. The
    context is entered for one exchange: at its end it returns the ticket, unless a generation has taken that.

    `fields` are those of its body that have no effect. `max_tokens` is the number of tokens that the context has room
    for, where the body asks for more. `adjusted` are the traits that the chat template lacks, for which the messages
    were put into another form.

    `created` is the answer's time, in seconds since the epoch. `position` is the beginning of a stream with event ids;
    None without ids. `field_names` has the caller's names of fields that errors call otherwise. `model_name` is the
    model's or adapter's name in the answer, `adapter` the key of the adapter that the request names. `chosen_model` is
    the model that a catalogue has chosen, by an alias or because the request names none; `has_catalogue` says that a
    catalogue passes the request on.
    """

    request_id: str
    headers: RequestHeaders = msgspec.field(default_factory=RequestHeaders)
    tenant: str = ""
    session: str = ""
    data_parallel_rank: int | None = None
    role: Role = "user"
    timeout: float | None = None
    arrival: float = msgspec.field(default_factory=time.monotonic)
    allowance: Allowance = Allowance()
    ticket: Ticket | None = None
    budgets: Granted | Refused | None = None
    field_names: Mapping[str, str] = {}
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    position: Position | None = None
    fields: RequestFields = msgspec.field(default_factory=RequestFields)
    max_tokens: int | None = None
    adjusted: tuple[str, ...] = ()
    model_name: str = ""
    adapter: str = ""
    chosen_model: str | None = None
    has_catalogue: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.ticket is not None:
            self.ticket.ended(0)

    def ignore(self, name: str, refusal: str) -> None:
        """Note a field that has no effect, by the name that errors have for it.

        Raises:
            RequestError: the server is strict; `refusal` is the text.
        """
        error = RequestError(refusal, name)
        error.name_fields(self.field_names)
        self.fields.ignore(renamed(name, self.field_names), str(error))

    def name_fields(self, names: Mapping[str, str]) -> None:
        """Make errors call these fields by the values of `names`, or by the caller's names of those."""
        known = self.field_names
        self.field_names = {**known, **{name: known.get(theirs, theirs) for name, theirs in names.items()}}

    def say_field(self, error: Exception) -> None:
        """Replace field names in an error by the caller's; a second call changes nothing."""
        if isinstance(error, RequestError):
            error.name_fields(self.field_names)

    def name_tenant(self, user: str | None, field: str = "user") -> None:
        """Take the tenant from the body, where neither a key nor a header has named it.

        Raises:
            RequestError: it is too long, or has characters that are not printable.
        """
        if user and not self.tenant:
            self.tenant = checked_tenant(user, field)

    def name_session(self, *names: str | None) -> None:
        """Take the session from the first of these that is given, where no header has named it."""
        self.session = self.session or next((name for name in names if name), "")

    def name_request(self, request_id: str | None) -> None:
        """Take the id that the body gives the request, if it gives one.

        Raises:
            RequestError: it is no id: 1 to 128 printable ASCII characters without spaces.
        """
        if request_id is None:
            return
        if not is_request_id(request_id):
            rule = f"1 to {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters"
            raise RequestError(f"request_id must be {rule}, got {request_id[:80]!r}", "request_id")
        self.request_id = request_id


def context_in(scope: Scope) -> RequestContext:
    """The context that was put into the scope, or a new one."""
    context = scope.get(CONTEXT)
    if context is None:
        context = scope[CONTEXT] = RequestContext(uuid.uuid4().hex)
    assert isinstance(context, RequestContext)
    return context


def context_of(request: Request) -> RequestContext:
    """The context of a request, with the position in its stream that its headers ask for.

    Raises:
        RequestError: the id of the last event is not one of ours.
    """
    context = context_in(request.scope)
    if context.position is None and context.headers.wants_event_ids:
        if context.headers.last_event_id:
            context.position = Position.parse(context.headers.last_event_id.decode("latin-1"))
            context.request_id, context.created = context.position.request_id, context.position.created
        else:
            context.position = Position(context.request_id, context.created)
    return context
