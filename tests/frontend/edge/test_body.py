"""A body ends in time and within its size, or the request does."""

import asyncio
from typing import Any

import pytest

from pyllm.errors import DeadlineError
from pyllm.frontend.edge.body import BoundedBody
from pyllm.frontend.http.failure import BodyTooLargeError, ClientGoneError


def parts(*messages: dict[str, Any]) -> Any:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def test_parts_pass_and_then_the_disconnect() -> None:
    body = BoundedBody(parts(part(b"ab", True), part(b"c", False), GONE), limit=3, patience=60)
    assert [await body.receive() for _ in range(3)] == [part(b"ab", True), part(b"c", False), GONE]


async def test_too_much_is_refused_as_soon_as_it_is() -> None:
    body = BoundedBody(parts(part(b"ab", True), part(b"cd", True)), limit=3, patience=60)
    await body.receive()
    with pytest.raises(BodyTooLargeError, match="more than 3 bytes"):
        await body.receive()


async def test_nothing_for_too_long_is_a_timeout() -> None:
    body = BoundedBody(parts(part(b"ab", True)), limit=3, patience=0.01)
    await body.receive()
    with pytest.raises(DeadlineError, match=r"0\.01 s"):
        await body.receive()
    assert body.stalled


async def test_a_client_that_leaves_halfway_has_no_body() -> None:
    body = BoundedBody(parts(part(b"ab", True), GONE), limit=3, patience=60)
    await body.receive()
    with pytest.raises(ClientGoneError):
        await body.receive()
