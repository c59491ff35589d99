"""The application in somebody else's process: a server's lifespan events, requests, and what goes on beside them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllm.frontend.embedded_app import EmbeddedApp
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.zmq_core import ZmqCore
from tests.frontend.api_config import api_config
from tests.frontend.serving import answering


@pytest.fixture
async def embedded(tokenizer: Tokenizer, tmp_path: Path) -> AsyncIterator[EmbeddedApp]:
    address = f"ipc://{tmp_path}/core"
    async with ZmqCore(answering(tokenizer, "hello"), address):
        embedded = await EmbeddedApp.start(api_config(tmp_path, address))
        yield embedded
        embedded.close()


async def test_a_server_starts_and_ends_it(embedded: EmbeddedApp) -> None:
    events = iter(["lifespan.startup", "lifespan.shutdown"])
    answers: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": next(events)}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message["type"])

    app: Any = embedded.app
    await app({"type": "lifespan"}, receive, send)
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_it_answers_requests(embedded: EmbeddedApp) -> None:
    transport = httpx.ASGITransport(embedded.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 20})
    assert answer.json()["choices"][0]["text"] == "hello"


async def test_models_of_clients_are_in_the_folder_of_downloads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    address, downloads = f"ipc://{tmp_path}/core", tmp_path / "downloads"
    (downloads / "models--me--begun").mkdir(parents=True)
    async with ZmqCore(answering(tokenizer, "hello"), address):
        embedded = await EmbeddedApp.start(api_config(tmp_path, address, download_dir=str(downloads)))
        transport = httpx.ASGITransport(embedded.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.request("DELETE", "/api/delete", json={"model": "me/begun"})
        embedded.close()
    assert (answer.status_code, list(downloads.iterdir())) == (200, [])


async def test_it_lives_as_long_as_its_client(embedded: EmbeddedApp) -> None:
    tending = asyncio.create_task(embedded.tend())
    assert embedded.alive
    assert embedded.fingerprint
    await asyncio.sleep(0)
    tending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tending
    embedded.close()
    assert not embedded.alive


async def test_it_remembers_its_metrics(embedded: EmbeddedApp) -> None:
    tending = asyncio.create_task(embedded.tend())
    app: Any = embedded.app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        while not (await http.get("/metrics/history")).json()["ages"]:
            await asyncio.sleep(0)
    tending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tending


async def test_it_records_where_requests_go(tokenizer: Tokenizer, tmp_path: Path) -> None:
    address, recording = f"ipc://{tmp_path}/core", tmp_path / "recording"
    async with ZmqCore(answering(tokenizer, "hello"), address):
        config = api_config(tmp_path, address, placement="prefix", placement_recording=str(recording))
        (await EmbeddedApp.start(config)).close()
    assert recording.stat().st_size > 0
