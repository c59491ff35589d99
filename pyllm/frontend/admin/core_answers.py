"""Answers of cores to the calls of admins, which may not come in time."""

from collections.abc import Awaitable
from typing import TypeVar

from pyllm.errors import EngineDeadError

T = TypeVar("T")


async def in_time(answer: Awaitable[T], text: str = "the engine core did not answer in time") -> T:
    """The core's answer.

    Raises:
        EngineDeadError: the core does not answer at all, or not in time, which `text` says.
    """
    try:
        return await answer
    except TimeoutError:
        raise EngineDeadError(text) from None
