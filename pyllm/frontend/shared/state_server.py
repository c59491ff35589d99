"""The shared state's side of the wire: a ROUTER, with a `LocalState` for each connected API process (a member).

Calls methods by name, with arguments of their annotated types. Does not know the purpose of a method.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import msgspec

from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.messages import (
    MAX_SILENT_BEATS,
    Beat,
    Joined,
    MemberMessage,
    StateCall,
    StateMessage,
    StateReply,
)
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import PeerGoneError, Sender

# A member that leaves more answers than this unread counts as dead.
MAX_HELD = 10_000

logger = logging.getLogger(__name__)


class _Method(NamedTuple):
    arguments: Any  # a tuple type
    is_answered: bool


def _methods() -> dict[str, _Method]:
    found = {}
    for name, method in inspect.getmembers(LocalState, inspect.isfunction):
        if not name.startswith("_") and name not in ("beat", "close", "resize"):  # A member does these by itself.
            hints = get_type_hints(method)
            del hints["return"]
            found[name] = _Method(tuple.__class_getitem__(tuple(hints.values())), inspect.iscoroutinefunction(method))
    return found


_METHODS = _methods()


class _Member:
    def __init__(self, identity: bytes, state: LocalState, number: int) -> None:
        self.identity = identity
        self.state = state
        self.number = number
        self.num_silent_beats = 0
        self.held: deque[StateMessage] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def bind(self, call: StateCall) -> Callable[[], Any]:
        """A call, ready to be made; raises ValueError if no method takes it."""
        method = _METHODS.get(call.method)
        if method is None or method.is_answered is not (call.number != 0):
            raise ValueError(f"unknown method {call.method!r}")
        return partial(getattr(self.state, call.method), *msgspec.convert(call.args, method.arguments))


class StateServer:
    """Answers its members. `connect` takes handlers for messages and for malformed frames; it returns the sender."""

    def __init__(
        self,
        state: SharedState,
        connect: Callable[[Callable[[bytes, MemberMessage], None], Callable[[bytes, str], None]], Sender[StateMessage]],
    ) -> None:
        self._state = state
        self._members: dict[bytes, _Member] = {}
        self._num_joined = 0
        self._endpoint = connect(self._receive, self._malformed)

    @property
    def num_members(self) -> int:
        """The number of live connections."""
        return len(self._members)

    def beat(self) -> None:
        """Send a sign of life to each member, and release everything that dead ones held. Call at every heartbeat."""
        self._state.records.sweep()
        for member in list(self._members.values()):
            member.num_silent_beats += 1
            if member.num_silent_beats > MAX_SILENT_BEATS:
                logger.warning("an API process was silent for %g s", MAX_SILENT_BEATS * HEARTBEAT_INTERVAL)
                self._drop(member)
            else:
                self._post(member, Beat())

    def close(self) -> None:
        """Drop all members and close the endpoint."""
        for member in list(self._members.values()):
            self._drop(member)
        self._endpoint.close()

    def _receive(self, identity: bytes, message: MemberMessage) -> None:
        member = self._members.get(identity)
        if member is None:
            # A new member, or one that was dropped as dead. `Joined` tells it that nothing is held for it.
            self._num_joined += 1
            member = _Member(identity, LocalState(self._state, self._num_joined), self._num_joined)
            self._members[identity] = member
            self._post(member, Joined())
        member.num_silent_beats = 0
        if not isinstance(message, StateCall):
            return
        if message.number:
            task = asyncio.create_task(self._answer(member, message))
            member.tasks.add(task)
            task.add_done_callback(member.tasks.discard)
            return
        try:
            member.bind(message)()
        except ValueError as error:
            self._malformed(identity, str(error))

    async def _answer(self, member: _Member, call: StateCall) -> None:
        try:
            answer = StateReply(call.number, True, await member.bind(call)())
        except ValueError as error:
            answer = StateReply(call.number, False, str(error))
        self._post(member, answer)

    def _post(self, member: _Member, message: StateMessage) -> None:
        member.held.append(message)
        try:
            while member.held and self._endpoint.send(member.held[0], identity=member.identity):
                member.held.popleft()
        except PeerGoneError:
            self._drop(member)
            return
        if len(member.held) > MAX_HELD:
            logger.warning("an API process left %d answers unread", len(member.held))
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        if self._members.pop(member.identity, None) is not None:
            for task in member.tasks:
                task.cancel()
            member.held.clear()
            self._state.drop(member.number)

    def _malformed(self, identity: bytes, text: str) -> None:
        del identity
        logger.warning("cannot read a message from an API process: %s", text)
