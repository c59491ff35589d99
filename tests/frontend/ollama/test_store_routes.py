"""`/api/pull` and `/api/delete`, against a small hub on this machine."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.hub_cache import cached_models
from pyllm.checkpoint.model_name import parse_hub_name
from pyllm.config.api_keys import KeyRing
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import describe
from pyllm.frontend.http.pushed_response import push
from pyllm.frontend.http.routes_app import RoutesApp
from pyllm.frontend.http.routing import Response
from pyllm.frontend.ollama.error_format import error_response
from pyllm.frontend.ollama.store_routes import MAX_PULLS, Pull, store_routes
from pyllm.frontend.requests.json_request import decoded
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.admin.test_routes import ADMIN, BOTH, USER, bearer
from tests.frontend.serving import answering, in_process
from tests.hub_server import HubServer
from tests.tiny_model import write_tiny_model
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as hub:
        hub.add("me/tiny", Path(write_tiny_model(tmp_path / "tiny")))
        yield hub


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.endpoint, cache_dir=str(tmp_path / "cache"), offline=False)


@asynccontextmanager
async def serving(tokenizer: Tokenizer, hub: Hub, files: tuple[str, ...] = ()) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the two routes over this hub."""
    routes = store_routes(KeyRing(()), {"tiny"}.__contains__, lambda: files, hub)

    def answer_error(_: object, error: Exception) -> ASGIApp:
        failure = describe(error)
        return Response(error_response(failure), status_code=failure.status)

    app = RoutesApp(routes, decode=decoded, answer_error=answer_error)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http


async def delete(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await http.request("DELETE", "/api/delete", json=body)


async def test_a_model_is_downloaded_with_its_progress_and_deleted(tokenizer: Tokenizer, hub: Hub) -> None:
    async with serving(tokenizer, hub) as http:
        answer = await http.post("/api/pull", json={"model": "me/tiny"})
        again = await http.post("/api/pull", json={"name": "me/tiny", "stream": False, "insecure": True})
        names = [model.name for model in cached_models(hub.cache_dir)]
        deleted = await delete(http, model="me/tiny")
        gone = await delete(http, model="me/tiny")
    assert answer.headers["content-type"] == "application/x-ndjson"
    first, *parts, last = [json.loads(line) for line in answer.text.splitlines()]
    assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
    weights = [part for part in parts if part["digest"] == "model.safetensors"]
    assert weights[-1]["completed"] == weights[-1]["total"] > 0
    assert again.json() == {"status": "success"}
    assert names == ["me/tiny"]
    assert (deleted.status_code, cached_models(hub.cache_dir)) == (200, [])
    assert (gone.status_code, gone.json()) == (404, {"error": "model 'me/tiny' not found"})


async def test_failures_are_told_in_the_stream_or_by_the_status(
    tokenizer: Tokenizer, hub: Hub, server: HubServer
) -> None:
    async with serving(tokenizer, hub) as http:
        streamed = await http.post("/api/pull", json={"model": "me/nothing"})
        whole = await http.post("/api/pull", json={"model": "me/nothing", "stream": False})
        unknown = await http.post("/api/pull", json={"model": "nothing"})
        server.status = 503
        short = await http.post("/api/pull", json={"model": "qwen3:4b"})
    assert "there is no model me/nothing" in json.loads(streamed.text.splitlines()[-1])["error"]
    assert (whole.status_code, "there is no model me/nothing" in whole.json()["error"]) == (500, True)
    assert (unknown.status_code, unknown.json()) == (404, {"error": "model 'nothing' not found"})
    assert "/api/models/Qwen/Qwen3-4B-GGUF/revision/main" in [path for _, path, _ in server.requests]
    assert "qwen3:4b is not in the cache" in short.text


async def test_the_served_model_needs_no_download_and_keeps_its_files(tokenizer: Tokenizer, hub: Hub) -> None:
    path = find_model(parse_hub_name("me/tiny"), hub)
    async with serving(tokenizer, hub, (str(path / "model.safetensors"),)) as http:
        for name in ("tiny", "tiny:latest"):
            answer = await http.post("/api/pull", json={"model": name})
            assert (answer.status_code, answer.json()) == (200, {"status": "success"})
        for name in ("me/tiny", "tiny", "tiny:latest"):
            kept = await delete(http, model=name)
            assert (kept.status_code, "is being served" in kept.json()["error"]) == (400, True)
    assert len(cached_models(hub.cache_dir)) == 1


async def test_so_many_downloads_run_at_once(tokenizer: Tokenizer, hub: Hub, server: HubServer) -> None:
    server.bytes_per_second = 1 << 20
    async with serving(tokenizer, hub) as http:
        pulls = [asyncio.ensure_future(http.post("/api/pull", json={"model": "me/tiny"})) for _ in range(MAX_PULLS)]
        await asyncio.sleep(0)
        refused = await http.post("/api/pull", json={"model": "me/tiny"})
        server.bytes_per_second = 0
        answers = await asyncio.gather(*pulls)
        after = await http.post("/api/pull", json={"model": "me/tiny", "stream": False})
    assert (refused.status_code, "downloaded already" in refused.json()["error"]) == (503, True)
    assert [json.loads(answer.text.splitlines()[-1]) for answer in answers] == [{"status": "success"}] * MAX_PULLS
    assert after.json() == {"status": "success"}


async def test_a_client_that_leaves_ends_its_download(hub: Hub) -> None:
    ended: list[Pull] = []

    async def leave() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        del message

    pull = Pull(parse_hub_name("me/tiny"), hub, True, ended.append)
    await push(pull, {"type": "http"}, leave, send)
    await until(lambda: ended == [pull])
    assert [model.format for model in cached_models(hub.cache_dir)] != ["safetensors"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/pull"), ("DELETE", "/api/delete")])
async def test_where_keys_exist_the_store_is_for_admins(method: str, path: str, tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "x"), tokenizer, keys=BOTH) as frontend:
        body = {"model": "nothing"}
        user = await frontend.http.request(method, path, json=body, headers=bearer(USER))
        admin = await frontend.http.request(method, path, json=body, headers=bearer(ADMIN))
    assert (user.status_code, user.json()) == (403, {"error": "Only keys of the role admin may use this route."})
    assert (admin.status_code, admin.json()) == (404, {"error": "model 'nothing' not found"})
