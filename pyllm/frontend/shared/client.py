"""The shared state of a server with several API processes, as one of them uses it: elsewhere, with the same methods."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from pyllm import ipc
from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.errors import EngineDeadError, ProtocolError, PyllmError
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
# Messages that wait for a slow state process before what is asked of it is refused.
MAX_UNSENT = 100_000
ANSWER_TIME = 10.0  # seconds that a call may take which waits for nothing but the state
_LOST = "the state that the API processes share is not there"

Connect = Callable[
    [Callable[[bytes, StateMessage], None], Callable[[bytes, str], None], Callable[[], None]],
    ipc.Sender[MemberMessage],
]

logger = logging.getLogger(__name__)


class RemoteState:
    """`LocalState` over a wire, whose calls raise EngineDeadError while the state is not there.

    A call has `answer_time` seconds. `read` and `abandoned` wait for others, so for them the state's beats must come.
    `await RemoteState.connect(address)` makes one over ZeroMQ; with the constructor any transport will do.
    """

    def __init__(self, connect: Connect, answer_time: float = ANSWER_TIME) -> None:
        self._answer_time = answer_time
        self._num_silent_beats = 0
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._unsent: deque[MemberMessage] = deque()
        self._joined = asyncio.Event()
        self._lost = asyncio.get_running_loop().create_future()
        self._endpoint = connect(self._receive, self._malformed, self._disconnected)
        self._post(Join())

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
                await state._joined.wait()
        except TimeoutError:
            state.close()
            raise EngineDeadError(f"no shared state answered at {address} within {timeout:g} s") from None
        return state

    async def death(self) -> PyllmError:
        """Wait until the connection is lost."""
        await asyncio.shield(self._lost)
        return EngineDeadError(_LOST)

    def close(self) -> None:
        """Disconnect; what this process held is given back."""
        self._endpoint.close(CLOSE_LINGER)
        self._fail_all()

    def beat(self, row: bytes) -> None:
        """Give a sign of life, twice a second, and look for one; `row` is what this process has counted."""
        self.count(row)
        self._num_silent_beats += 1
        if self._num_silent_beats > MAX_SILENT_BEATS and not self._lost.done():
            logger.error("the shared state was silent for %g s", MAX_SILENT_BEATS * HEARTBEAT_INTERVAL)
            self._disconnected()

    def resize(self, share: float) -> None:
        """Nothing is kept here: the process that has the state looks after its memory itself."""

    async def admit(self, admission: Admission) -> Granted | Refused:
        """As `LocalState`."""
        answer: Granted | Refused = await self._ask(Granted | Refused, "admit", admission)
        return answer

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """As `LocalState`."""
        answer: Granted | Refused = await self._ask(Granted | Refused, "charge", ticket, num_prompt_tokens)
        return answer

    def started(self, ticket: int) -> None:
        """As `LocalState`."""
        self._tell("started", ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        """As `LocalState`."""
        self._tell("ended", ticket, num_output_tokens)

    async def claim(self, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """As `LocalState`."""
        kind = Run | Attached | Conflict | Full
        answer: Run | Attached | Conflict | Full = await self._ask(kind, "claim", tenant, key, digest, origin)
        return answer

    async def take_over(self, record: int) -> Run | Attached | Full:
        """As `LocalState`."""
        answer: Run | Attached | Full = await self._ask(Run | Attached | Full, "take_over", record)
        return answer

    async def read(self, record: int, offset: int) -> Page:
        """As `LocalState`."""
        answer: Page = await self._ask(Page, "read", record, offset, waits=True)
        return answer

    async def find(self, record: int, event_id: bytes) -> int:
        """As `LocalState`."""
        answer: int = await self._ask(int, "find", record, event_id)
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
        await self._ask(None, "abandoned", run, waits=True)

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

    async def _ask(self, kind: Any, method: str, *args: Any, waits: bool = False) -> Any:
        if self._lost.done() or len(self._unsent) > MAX_UNSENT:
            raise EngineDeadError(_LOST)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._post(Ask(number, method, args))
        try:
            async with asyncio.timeout(None if waits else self._answer_time):
                value = await answer
        except TimeoutError:
            text = f"the shared state did not answer {method!r} within {self._answer_time:g} s"
            raise EngineDeadError(text) from None
        finally:
            self._asked.pop(number, None)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"the shared state answered {method!r} with what is none: {error}") from None

    def _tell(self, method: str, *args: Any) -> None:
        self._post(Tell(method, args))

    def _post(self, message: MemberMessage) -> None:
        if self._lost.done():
            return
        self._unsent.append(message)
        try:
            while self._unsent and self._endpoint.send(self._unsent[0]):
                self._unsent.popleft()
        except ipc.PeerGoneError:
            self._disconnected()

    def _receive(self, identity: bytes, message: StateMessage) -> None:
        del identity
        self._num_silent_beats = 0
        match message:
            case Told(number, ok, value):
                answer = self._asked.get(number)
                if answer is None or answer.done():
                    return
                if ok:
                    answer.set_result(value)
                else:
                    answer.set_exception(ProtocolError(f"the shared state refused a call: {value}"))
            case Joined():
                if self._joined.is_set():
                    logger.warning("the shared state had given this process up")
                    self._fail_all()
                self._joined.set()
            case Beat():
                pass

    def _malformed(self, identity: bytes, text: str) -> None:
        del identity
        logger.warning("a message from the shared state does not decode: %s", text)

    def _disconnected(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        self._fail_all()

    def _fail_all(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(_LOST))


# The shared state, in this process or in another.
Shared = LocalState | RemoteState
