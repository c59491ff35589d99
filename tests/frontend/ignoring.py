"""A request with fields that have no effect, checked against the same request without them. Knows no API."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from pyllm.config.server_settings import ServerConfig, UnknownFields
from pyllm.wire.messages import Submit
from tests.frontend.serving import Frontend

HEADER = "pyllm-ignored-fields"
# Makes a frontend with this server; each has a core of its own.
Serve = Callable[[ServerConfig], AbstractAsyncContextManager[Frontend]]

# What differs between two answers to one request.
_VOLATILE = frozenset({"id", "call_id", "created", "created_at", "completed_at", "request_id"})


async def check_no_effect(serve: Serve, path: str, body: dict[str, Any], plain: dict[str, Any], *names: str) -> None:
    """`body` is `plain` with fields that are told by these names; a strict server refuses the first of them."""
    expected = await _answer(serve, "warn", path, plain)
    assert expected == (200, None, *expected[2:]), expected
    assert await _answer(serve, "warn", path, body) == (200, ", ".join(names), *expected[2:])
    assert await _answer(serve, "ignore", path, body) == expected
    assert await _answer(serve, "refuse", path, plain) == expected
    async with serve(ServerConfig(unknown_fields="refuse")) as frontend:
        refusal = await frontend.http.post(path, json=body)
        assert frontend.core.sent(Submit) == []
    error = refusal.json()["error"]
    assert refusal.status_code == 400, refusal.text
    assert error.get("param", names[0]) == names[0], error  # Anthropic's errors have the name in the text only.
    assert names[0].rpartition(".")[2] in error["message"]


async def _answer(
    serve: Serve, policy: UnknownFields, path: str, body: dict[str, Any]
) -> tuple[int, str | None, Any, list[Submit]]:
    """Status, header and answer, and what reached the core."""
    async with serve(ServerConfig(unknown_fields=policy)) as frontend:
        response = await frontend.http.post(path, json=body)
        submits = frontend.core.sent(Submit)
    steady = [msgspec.structs.replace(submit, request=0, seed=0, age=0.0, name="") for submit in submits]
    return response.status_code, response.headers.get(HEADER), _steady(response.json()), steady


def _steady(value: Any) -> Any:
    match value:
        case dict():
            return {name: _steady(part) for name, part in value.items() if name not in _VOLATILE}
        case list():
            return [_steady(part) for part in value]
        case _:
            return value
