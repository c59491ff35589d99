"""The shared state in another process, with the methods of `LocalState`, which are derived from it.

When that process dies, `RemoteState` joins its successor and tells it which requests are admitted.
"""

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, get_type_hints

import msgspec
import zmq

from pyllm.errors import EngineDeadError, ProtocolError
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.messages import (
    MAX_SILENT_BEATS,
    Admission,
    Beat,
    Granted,
    Join,
    Joined,
    MemberMessage,
    Refused,
    StateCall,
    StateMessage,
    StateReply,
)
from pyllm.wire import ipc
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.link import Connect, Link

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_LINGER = 0.5  # seconds for which a closed socket still sends
# Calls fail when so many messages wait for a slow state process, or so many calls for an answer.
MAX_UNSENT = 100_000
ANSWER_TIME = 10.0  # seconds within which the state, or its successor, must answer a call that waits for nothing else
ADMISSION_SILENCE = 2.0  # seconds of silence, counted in our own beats, after which no request is admitted
_LOST = "the state that the API processes share is not there"
_SILENT = "the state that the API processes share has given no sign of life"

logger = logging.getLogger(__name__)


class StateLostError(EngineDeadError):
    """The shared state died, and the record that a call named with it."""


class _Question(NamedTuple):
    """A pending call. With `is_bound` it names a record, so that no successor of the state can answer it."""

    call: StateCall
    answer: "asyncio.Future[Any]"
    is_bound: bool


@dataclass(slots=True)
class _Ticket:
    """An admitted request, as a successor of the state has to know it."""

    admission: Admission
    num_prompt_tokens: int = 0
    is_started: bool = False


def _remote_call(
    method: Callable[Concatenate[LocalState, P], Coroutine[Any, Any, T]], *, is_bound: bool = False, waits: bool = False
) -> Callable[Concatenate["RemoteState", P], Coroutine[Any, Any, T]]:
    """A method of `LocalState` over the wire: sends its arguments and waits for an answer of the annotated type."""
    name, signature, kind = method.__name__, inspect.signature(method), get_type_hints(method)["return"]

    async def ask(state: "RemoteState", /, *args: P.args, **kwargs: P.kwargs) -> T:
        _, *values = signature.bind(state, *args, **kwargs).args
        answer: T = await state._ask(kind, name, *values, is_bound=is_bound, waits=waits)
        return answer

    return ask


def _remote_notice(method: Callable[Concatenate[LocalState, P], None]) -> Callable[Concatenate["RemoteState", P], None]:
    """A method of `LocalState` over the wire: sends its arguments and does not wait."""
    name, signature = method.__name__, inspect.signature(method)

    def tell(state: "RemoteState", /, *args: P.args, **kwargs: P.kwargs) -> None:
        _, *values = signature.bind(state, *args, **kwargs).args
        state._notify(name, *values)

    return tell


class RemoteState:
    """`LocalState` over the wire.

    A call raises EngineDeadError if neither the state nor a successor answers it within `answer_time` seconds. `read`
    and `abandoned` wait for other requests, so they have no deadline: they wait for as long as the state sends beats.
    A call that names a record raises StateLostError when the state dies, as its successor does not have the record.
    `await RemoteState.connect(address)` connects over ZeroMQ; the constructor takes any transport.
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
        """Disconnect. The state releases everything that this process held."""
        self._is_closed = True
        self._joined.clear()
        self._link.close(CLOSE_LINGER)
        self._fail(lambda question: True)

    def beat(self, row: bytes) -> None:
        """Send a sign of life and check for one, twice a second. `row` has the counters of this process."""
        self.count(row)
        self._look()

    @property
    def trouble(self) -> str:
        """The reason why no request can be admitted now; empty if one can."""
        if not self._joined.is_set():
            return _LOST
        seconds = self._num_silent_beats * HEARTBEAT_INTERVAL
        return f"{_SILENT} for {seconds:g} s" if seconds > ADMISSION_SILENCE else ""

    def resize(self, share: float) -> None:
        """Nothing to do: the process that has the state watches its own memory."""

    async def admit(self, admission: Admission) -> Granted | Refused:
        answer: Granted | Refused = await self._ask(Granted | Refused, "admit", admission)
        if isinstance(answer, Granted):
            self._tickets[admission.ticket] = _Ticket(admission)
        return answer

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        answer: Granted | Refused = await self._ask(Granted | Refused, "charge", ticket, num_prompt_tokens)
        if isinstance(answer, Refused):
            self._tickets.pop(ticket, None)
        elif (held := self._tickets.get(ticket)) is not None:
            held.num_prompt_tokens += num_prompt_tokens
        return answer

    def started(self, ticket: int) -> None:
        if (held := self._tickets.get(ticket)) is not None:
            held.is_started = True
        self._notify("started", ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        self._tickets.pop(ticket, None)
        self._notify("ended", ticket, num_output_tokens)

    claim = _remote_call(LocalState.claim)
    take_over = _remote_call(LocalState.take_over, is_bound=True)
    read = _remote_call(LocalState.read, is_bound=True, waits=True)
    find = _remote_call(LocalState.find, is_bound=True)
    leave = _remote_notice(LocalState.leave)
    start = _remote_notice(LocalState.start)
    append = _remote_notice(LocalState.append)
    finish = _remote_notice(LocalState.finish)
    abandoned = _remote_call(LocalState.abandoned, is_bound=True, waits=True)
    put_response = _remote_call(LocalState.put_response)
    get_response = _remote_call(LocalState.get_response)
    delete_response = _remote_call(LocalState.delete_response)
    follow_cores = _remote_call(LocalState.follow_cores, waits=True)
    reserve_core = _remote_call(LocalState.reserve_core)
    add_core = _remote_call(LocalState.add_core)
    remove_core = _remote_call(LocalState.remove_core)
    totals = _remote_call(LocalState.totals)
    count = _remote_notice(LocalState.count)

    async def _ask(self, kind: Any, method: str, *args: Any, is_bound: bool = False, waits: bool = False) -> Any:
        if self._is_closed or max(len(self._questions), self._link.num_unsent) > MAX_UNSENT:
            raise EngineDeadError(_LOST)
        if is_bound and not self._joined.is_set():
            raise StateLostError(_LOST)
        number = next(self._numbers)
        question = _Question(StateCall(number, method, args), asyncio.get_running_loop().create_future(), is_bound)
        self._questions[number] = question
        if self._joined.is_set():
            self._link.post(question.call)
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
            raise ProtocolError(f"the shared state answered {method!r} with a wrong type: {error}") from None

    def _notify(self, method: str, *args: Any) -> None:
        if self._joined.is_set():  # Else a successor must be joined first; `_become_member` tells it the tickets.
            self._link.post(StateCall(0, method, args))

    def _look(self) -> None:
        """Leave a state that is silent, or look for its successor."""
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
            case StateReply(number, ok, value):
                question = self._questions.get(number)
                if question is None or question.answer.done():
                    return
                if ok:
                    question.answer.set_result(value)
                else:
                    question.answer.set_exception(ProtocolError(f"the shared state refused a call: {value}"))
            case Joined():
                if self._joined.is_set():
                    logger.warning("the shared state dropped this process as silent")
                    self._lose()  # A fresh connection makes clear which calls are sent again.
                else:
                    self._become_member()
            case Beat():
                pass

    def _become_member(self) -> None:
        self._joined.set()
        for held in self._tickets.values():
            self._notify("readmit", held.admission, held.num_prompt_tokens, held.is_started)
        for question in list(self._questions.values()):
            if self._joined.is_set():
                self._link.post(question.call)

    def _malformed(self, text: str) -> None:
        logger.warning("cannot read a message from the shared state: %s", text)

    def _lose(self) -> None:
        """Join a successor. If none was joined yet, the next beat tries again."""
        self._link.close()
        if not self._joined.is_set():
            return
        logger.warning("%s; looking for its successor", _LOST)
        self._joined.clear()
        self._fail(lambda question: question.is_bound)
        self._join()

    def _fail(self, is_over: Callable[[_Question], bool]) -> None:
        for question in list(self._questions.values()):
            if is_over(question) and not question.answer.done():
                question.answer.set_exception(StateLostError(_LOST))


# The shared state, in this process or in another.
Shared = LocalState | RemoteState
