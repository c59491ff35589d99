"""Coroutines that run together: all succeed, or all end. Knows no engine."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all, in order; when one fails, the others are cancelled, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
