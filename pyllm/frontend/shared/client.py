"""The shared state of a server with several API processes, as one of them uses it: elsewhere, with the same methods.

When that process dies, this one joins its successor and tells it what it has let in.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import zmq

from pyllm import ipc
from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.errors import EngineDeadError, ProtocolError
from pyllm.frontend.link import Connect, Link
from pyllm.frontend.shared.local import LocalState
from pyllm.frontend.shared.messages import (
    MAX_SILENT_BEATS,
    Admission,
    Ask,
    Attached,
    Beat,
    Conflict,
    Full,
    Granted,
    Headers,
    Join,
    Joined,
    MemberMessage,
    Page,
    Refused,
    Run,
    StateMessage,
    Tell,
    Told,
)

CLOSE_LINGER = 0.5  # seconds that the last words get to leave
# Messages that wait for a slow state process, and calls that wait for an answer, before what is asked is refused.
MAX_UNSENT = 100_000
ANSWER_TIME = 10.0  # seconds that a call may take which waits for nothing but the state, or for its successor
SILENCE = 2.0  # seconds without a word of the state, counted in our own beats, after which it lets nobody in
_LOST = "the state that the API processes share is not there"
_SILENT = "the state that the API processes share has given no sign of life"

logger = logging.getLogger(__name__)


class StateLostError(EngineDeadError):
    """The shared state died, and with it the record that was asked for."""


class _Question(NamedTuple):
    """A call without an answer yet. With `is_bound` it names what only the state has that it was first put to."""

    ask: Ask
    answer: "asyncio.Future[Any]"
    is_bound: bool


class _Ticket:
    """What a successor has to know of a request that was let in."""

    __slots__ = ("admission", "is_started", "num_prompt_tokens")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.num_prompt_tokens = 0
        self.is_started = False


class RemoteState:
    """`LocalState` over a wire. Calls raise EngineDeadError where the state, or its successor, gives no answer.

    A call has `answer_time` seconds, and is put to a successor again, unless it is about a record, which is gone then:
    StateLostError. `read` and `abandoned` wait for others, so for them the state's beats must come.
    `await RemoteState.connect(address)` makes one over ZeroMQ; with the constructor any transport will do.
    """

    def __init__(self, connect: Connect[StateMessage, MemberMessage], answer_time: float = ANSWER_TIME) -> None:
        self._connect = connect
        self._answer_time = answer_time
        self._num_silent_beats = 0
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._joined = asyncio.Event()
        self._is_closed = False
        self._link: Link[StateMessage, MemberMessage] = Link(self._receive, self._malformed, self._lose)
        self._join()

    @classmethod
    async def connect(cls, address: str, timeout: float) -> "RemoteState":  # noqa: ASYNC109 - the handshake's deadline
        """Connect to the process that is bound, or will be bound, to a ZeroMQ address.

        Raises:
            EngineDeadError: no answer within `timeout` seconds.
        """

        def connect(
            on_message: Callable[[bytes, StateMessage], None],
            on_malformed: Callable[[bytes, str], None],
            on_disconnect: Callable[[], None],
        ) -> ipc.Sender[MemberMessage]:
            socket = ipc.connect(zmq.Context.instance(), address)
            return ipc.Endpoint(socket, StateMessage, on_message, on_malformed, on_disconnect)

        state = cls(connect)
        try:
            async with asyncio.timeout(timeout):
                while not state._joined.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(HEARTBEAT_INTERVAL):
                            await state._joined.wait()
                    state._look()
        except TimeoutError:
            state.close()
            raise EngineDeadError(f"no shared state answered at {address} within {timeout:g} s") from None
        return state

    def close(self) -> None:
        """Disconnect; what this process held is given back."""
        self._is_closed = True
        self._joined.clear()
        self._link.close(CLOSE_LINGER)
        self._fail(lambda question: True)

    def beat(self, row: bytes) -> None:
        """Give a sign of life, twice a second, and look for one; `row` is what this process has counted."""
        self.count(row)
        self._look()

    @property
    def trouble(self) -> str:
        """Why no request can be let in now; empty where it can."""
        if not self._joined.is_set():
            return _LOST
        seconds = self._num_silent_beats * HEARTBEAT_INTERVAL
        return f"{_SILENT} for {seconds:g} s" if seconds > SILENCE else ""

    def resize(self, share: float) -> None:
        """Nothing is kept here: the process that has the state looks after its memory itself."""

    async def admit(self, admission: Admission) -> Granted | Refused:
        """As `LocalState`."""
        answer: Granted | Refused = await self._ask(Granted | Refused, "admit", admission)
        if isinstance(answer, Granted):
            self._tickets[admission.ticket] = _Ticket(admission)
        return answer

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """As `LocalState`."""
        answer: Granted | Refused = await self._ask(Granted | Refused, "charge", ticket, num_prompt_tokens)
        if isinstance(answer, Refused):
            self._tickets.pop(ticket, None)
        elif (held := self._tickets.get(ticket)) is not None:
            held.num_prompt_tokens += num_prompt_tokens
        return answer

    def started(self, ticket: int) -> None:
        """As `LocalState`."""
        if (held := self._tickets.get(ticket)) is not None:
            held.is_started = True
        self._tell("started", ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        """As `LocalState`."""
        self._tickets.pop(ticket, None)
        self._tell("ended", ticket, num_output_tokens)

    async def claim(self, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """As `LocalState`."""
        kind = Run | Attached | Conflict | Full
        answer: Run | Attached | Conflict | Full = await self._ask(kind, "claim", tenant, key, digest, origin)
        return answer

    async def take_over(self, record: int) -> Run | Attached | Full:
        """As `LocalState`."""
        answer: Run | Attached | Full = await self._ask(Run | Attached | Full, "take_over", record, is_bound=True)
        return answer

    async def read(self, record: int, offset: int) -> Page:
        """As `LocalState`."""
        answer: Page = await self._ask(Page, "read", record, offset, is_bound=True, waits=True)
        return answer

    async def find(self, record: int, event_id: bytes) -> int:
        """As `LocalState`."""
        answer: int = await self._ask(int, "find", record, event_id, is_bound=True)
        return answer

    def leave(self, record: int) -> None:
        """As `LocalState`."""
        self._tell("leave", record)

    def start(self, run: int, status: int, headers: Headers) -> None:
        """As `LocalState`."""
        self._tell("start", run, status, headers)

    def append(self, run: int, body: bytes) -> None:
        """As `LocalState`."""
        self._tell("append", run, body)

    def finish(self, run: int, keep: bool) -> None:
        """As `LocalState`."""
        self._tell("finish", run, keep)

    async def abandoned(self, run: int) -> None:
        """As `LocalState`."""
        await self._ask(None, "abandoned", run, is_bound=True, waits=True)

    async def put_response(self, response_id: str, tenant: str, response: bytes) -> None:
        """As `LocalState`."""
        await self._ask(None, "put_response", response_id, tenant, response)

    async def get_response(self, response_id: str, tenant: str) -> bytes | None:
        """As `LocalState`."""
        answer: bytes | None = await self._ask(bytes | None, "get_response", response_id, tenant)
        return answer

    async def delete_response(self, response_id: str, tenant: str) -> bool:
        """As `LocalState`."""
        answer: bool = await self._ask(bool, "delete_response", response_id, tenant)
        return answer

    async def totals(self, row: bytes) -> bytes:
        """As `LocalState`."""
        answer: bytes = await self._ask(bytes, "totals", row)
        return answer

    def count(self, row: bytes) -> None:
        """As `LocalState`."""
        self._tell("count", row)

    async def _ask(self, kind: Any, method: str, *args: Any, is_bound: bool = False, waits: bool = False) -> Any:
        if self._is_closed or max(len(self._questions), self._link.num_unsent) > MAX_UNSENT:
            raise EngineDeadError(_LOST)
        if is_bound and not self._joined.is_set():
            raise StateLostError(_LOST)
        number = next(self._numbers)
        question = _Question(Ask(number, method, args), asyncio.get_running_loop().create_future(), is_bound)
        self._questions[number] = question
        if self._joined.is_set():
            self._link.post(question.ask)
        try:
            async with asyncio.timeout(None if waits else self._answer_time):
                value = await question.answer
        except TimeoutError:
            text = f"the shared state did not answer {method!r} within {self._answer_time:g} s"
            raise EngineDeadError(text) from None
        finally:
            self._questions.pop(number, None)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"the shared state answered {method!r} with what is none: {error}") from None

    def _tell(self, method: str, *args: Any) -> None:
        # What a successor must know it is told when it is joined.
        if self._joined.is_set():
            self._link.post(Tell(method, args))

    def _look(self) -> None:
        """Look for a silent state, or for its successor."""
        self._num_silent_beats += 1
        is_silent = self._num_silent_beats > MAX_SILENT_BEATS
        if self._joined.is_set():
            self._link.flush()
            if is_silent:
                logger.error("the shared state was silent for %g s", MAX_SILENT_BEATS * HEARTBEAT_INTERVAL)
                self._lose()
        elif is_silent or not self._link.is_open:
            self._join()
        else:
            self._link.flush()

    def _join(self) -> None:
        self._num_silent_beats = 0
        self._link.open(self._connect)
        self._link.post(Join())

    def _receive(self, message: StateMessage) -> None:
        self._num_silent_beats = 0
        match message:
            case Told(number, ok, value):
                question = self._questions.get(number)
                if question is None or question.answer.done():
                    return
                if ok:
                    question.answer.set_result(value)
                else:
                    question.answer.set_exception(ProtocolError(f"the shared state refused a call: {value}"))
            case Joined():
                if self._joined.is_set():
                    logger.warning("the shared state had given this process up")
                    self._lose()  # With a fresh connection it is clear what is put to it anew.
                else:
                    self._become_member()
            case Beat():
                pass

    def _become_member(self) -> None:
        self._joined.set()
        for held in self._tickets.values():
            self._tell("readmit", held.admission, held.num_prompt_tokens, held.is_started)
        for question in list(self._questions.values()):
            if self._joined.is_set():
                self._link.post(question.ask)

    def _malformed(self, text: str) -> None:
        logger.warning("a message from the shared state does not decode: %s", text)

    def _lose(self) -> None:
        """Begin anew with a successor; before one was joined, the next try is at the next beat."""
        self._link.close()
        if not self._joined.is_set():
            return
        logger.warning("%s: another one is looked for", _LOST)
        self._joined.clear()
        self._fail(lambda question: question.is_bound)
        self._join()

    def _fail(self, is_over: Callable[[_Question], bool]) -> None:
        for question in list(self._questions.values()):
            if is_over(question) and not question.answer.done():
                question.answer.set_exception(StateLostError(_LOST))


# The shared state, in this process or in another.
Shared = LocalState | RemoteState
