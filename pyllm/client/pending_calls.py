"""The calls of one client that await an answer. Knows neither sockets nor methods."""

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from pyllm.errors import ProtocolError, PyllmError
from pyllm.wire.messages import Reply

T = TypeVar("T")


class Done:
    """The result of a call that is finished; it may be awaited, as vLLM's coroutines."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class Calls:
    """Pending calls by the id in `Call` and `Reply`. Each call goes to one core."""

    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._cores: dict[int, int] = {}

    def open(self, number: int, core: int = 0) -> asyncio.Future[Reply]:
        """A future for a call's answer; `close` it in the end."""
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._cores[number] = core
        return answer

    def close(self, number: int) -> None:
        """Stop waiting for an answer."""
        del self._answers[number], self._cores[number]

    def settle(self, reply: Reply) -> None:
        """Pass on an answer; unexpected ones are dropped."""
        answer = self._answers.get(reply.id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def fail_all(self, error: PyllmError, core: int | None = None) -> None:
        """Fail all pending calls, or all of one core."""
        for number, answer in self._answers.items():
            if not answer.done() and core in (None, self._cores[number]):
                answer.set_exception(error)


def converted(value: Any, kind: type[T] | None, method: str) -> T:
    """The value of an answer as its type; raises ProtocolError if it is another one."""
    try:
        converted: T = msgspec.convert(value, kind)
        return converted
    except msgspec.ValidationError as error:
        text = f"the core answered {method!r} with what this client cannot read: {error}; do their versions agree?"
        raise ProtocolError(text) from None
