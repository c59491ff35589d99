"""Requests that are written down."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.recorder import Recorder


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads a body, and breaks where the body says so."""
    body = (await receive())["body"]
    assert body != b'"break"'
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def test_a_request_is_written_down_without_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Recorder(echo, path)), base_url="http://test") as http:
        answer = await http.post("/v1/x?beta=true", json={"a": 1}, headers={"Authorization": "Bearer secret"})
        await http.post("/v1/y", content=b"no JSON", headers={"x-api-key": "secret"})
    assert answer.json() == {"a": 1}
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["method"], first["path"], first["body"]) == ("POST", "/v1/x?beta=true", {"a": 1})
    assert (second["path"], second["body"]) == ("/v1/y", "no JSON")
    assert "secret" not in path.read_text()


async def test_a_request_that_fails_is_written_down(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Recorder(echo, path)), base_url="http://test") as http:
        with pytest.raises(AssertionError):
            await http.post("/v1/x", json="break")
    assert json.loads(path.read_text())["body"] == "break"
