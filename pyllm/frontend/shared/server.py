"""The process that has the shared state, as its members see it: a ROUTER, and a `LocalState` for each connection.

Knows no member's business: a method is called by its name, with arguments that fit its types.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.frontend.shared.local import LocalState
from pyllm.frontend.shared.messages import MAX_SILENT_BEATS, Ask, Beat, Joined, MemberMessage, StateMessage, Tell, Told
from pyllm.frontend.shared.state import SharedState
from pyllm.ipc import PeerGoneError, Sender

# Answers that a member leaves unread before it is taken for dead.
MAX_HELD = 10_000
# What a member does itself.
NOT_CALLED = frozenset({"beat", "close", "resize"})

logger = logging.getLogger(__name__)


class Methods:
    """What may be called by name: arguments checked against the annotations of `LocalState`."""

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._asked: set[str] = set()
        for name, method in inspect.getmembers(LocalState, inspect.isfunction):
            if name.startswith("_") or name in NOT_CALLED:
                continue
            hints = get_type_hints(method)
            hints.pop("return")
            self._arguments[name] = tuple.__class_getitem__(tuple(hints.values()))
            if inspect.iscoroutinefunction(method):
                self._asked.add(name)

    def arguments(self, method: str, args: tuple[Any, ...], *, asked: bool) -> tuple[Any, ...]:
        """The arguments as the method takes them; raises ValueError for what it does not."""
        if method not in self._arguments or (method in self._asked) is not asked:
            raise ValueError(f"unknown method {method!r}")
        converted: tuple[Any, ...] = msgspec.convert(args, self._arguments[method])
        return converted


class _Member:
    def __init__(self, identity: bytes, state: LocalState, number: int) -> None:
        self.identity = identity
        self.state = state
        self.number = number
        self.num_silent_beats = 0
        self.held: deque[StateMessage] = deque()
        self.tasks: set[asyncio.Task[None]] = set()


class StateServer:
    """Answers members. `connect` gives the sending half, of the handlers for messages and for frames that are none."""

    def __init__(
        self,
        state: SharedState,
        connect: Callable[[Callable[[bytes, MemberMessage], None], Callable[[bytes, str], None]], Sender[StateMessage]],
    ) -> None:
        self._state = state
        self._methods = Methods()
        self._members: dict[bytes, _Member] = {}
        self._num_joined = 0
        self._endpoint = connect(self._receive, self._malformed)

    @property
    def num_members(self) -> int:
        """Connections that are alive."""
        return len(self._members)

    def beat(self) -> None:
        """Tell members that all is well; give back what those held that are gone. To be called at every heartbeat."""
        self._state.records.sweep()
        for member in list(self._members.values()):
            member.num_silent_beats += 1
            if member.num_silent_beats > MAX_SILENT_BEATS:
                logger.warning("an API process was silent for %g s", MAX_SILENT_BEATS * HEARTBEAT_INTERVAL)
                self._drop(member)
            else:
                self._post(member, Beat())

    def close(self) -> None:
        """Answer nobody any more."""
        for member in list(self._members.values()):
            self._drop(member)
        self._endpoint.close()

    def _receive(self, identity: bytes, message: MemberMessage) -> None:
        member = self._members.get(identity)
        if member is None:
            # A stranger, or a member that was taken for dead: it begins anew, which it hears from `Joined`.
            self._num_joined += 1
            member = _Member(identity, LocalState(self._state, self._num_joined), self._num_joined)
            self._members[identity] = member
            self._post(member, Joined())
        member.num_silent_beats = 0
        match message:
            case Ask():
                task = asyncio.create_task(self._answer(member, message))
                member.tasks.add(task)
                task.add_done_callback(member.tasks.discard)
            case Tell(method, args):
                try:
                    getattr(member.state, method)(*self._methods.arguments(method, args, asked=False))
                except ValueError as error:
                    self._malformed(identity, str(error))
            case _:
                pass

    async def _answer(self, member: _Member, ask: Ask) -> None:
        try:
            args = self._methods.arguments(ask.method, ask.args, asked=True)
            told = Told(ask.number, True, await getattr(member.state, ask.method)(*args))
        except ValueError as error:
            told = Told(ask.number, False, str(error))
        self._post(member, told)

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
        logger.warning("a message from an API process is not understood: %s", text)
