"""Requests to a catalogue: by name, alias and query; streams that wait for their model; the list; what admins may."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.catalogue_server import ServerParts, create_catalogue_app
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.supervision.process_samples import ProcessSampler
from tests.frontend.catalogue.fake_supervisor import FakeSupervisor, Served
from tests.waiting import until

SIZES = {"a": 40, "b": 50, "c": 60}
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}]}
PROMPT = {"prompt": "x", "max_tokens": 20}


@asynccontextmanager
async def serving(
    folder: Path, tokenizer: Tokenizer, supervisor: FakeSupervisor | None = None, **options: Any
) -> AsyncGenerator[tuple[Served, httpx.AsyncClient]]:
    served = await Served.start(folder, tokenizer, supervisor or FakeSupervisor(SIZES, 110), **options)
    parts = ServerParts(served.catalogue.credentials, ProcessSampler(list), lambda: 0.0, lambda: None)
    transport = httpx.ASGITransport(create_catalogue_app(served.catalogue, parts), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield served, http
    served.catalogue.close()


async def text_of(http: httpx.AsyncClient, **body: Any) -> tuple[str, str]:
    """The model's name in the answer, and its text."""
    answer = (await http.post("/v1/chat/completions", json=CHAT | body)).json()
    return answer["model"], answer["choices"][0]["message"]["content"]


async def test_a_request_is_answered_by_the_model_that_it_names(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer, aliases={"gpt-4o": {"b": 1.0}}) as (_, http):
        assert await text_of(http, model="a") == ("a", "I am a")
        assert await text_of(http, model="gpt-4o") == ("b", "I am b")
        assert await text_of(http) == ("a", "I am a")
        unknown = await http.post("/v1/chat/completions", json=CHAT | {"model": "x"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "'a', 'b', 'c', 'gpt-4o'" in unknown.text
        broken = await http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
        assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_name_with_ollamas_tag_is_the_same_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer, aliases={"gpt": {"b": 1.0}, "other:latest": {"a": 1.0}}) as (_, http):
        for name, model in {"a:latest": "a", "gpt:latest": "b", "other": "a", "other:latest": "a"}.items():
            assert await text_of(http, model=name) == (model, f"I am {model}")
        assert (await http.get("/v1/models/b:latest")).json()["id"] == "b"


async def test_routes_without_a_body_are_those_of_a_loaded_model_or_of_the_query(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    async with serving(tmp_path, tokenizer) as (served, http):
        answer = await http.get("/model_info")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert (await http.get("/model_info?model=b")).json()["served_model_name"] == "b"
        assert (await http.get("/model_info")).json()["served_model_name"] == "b"
        assert (await http.get("/no/such/route")).status_code == 404
        assert served.model("a").stage == "unloaded"


class Stream:
    """One POST by raw ASGI messages, whose answer can be looked at while it comes."""

    def __init__(self, app: ASGIApp, path: str, body: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self._body: Any = {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}
        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
        }
        client = ("127.0.0.1", 1)
        self.ended = asyncio.ensure_future(
            app(scope | {"headers": headers, "client": client}, self._receive, self._send)
        )

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def _receive(self) -> Any:
        if self._body is None:
            await until(lambda: bool(self.sent) and not self.sent[-1].get("more_body", True))
            return {"type": "http.disconnect"}
        message, self._body = self._body, None
        return message

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def test_a_stream_stays_open_while_its_model_is_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    server = ServerConfig(sse_keep_alive_interval=0.001)
    async with serving(tmp_path, tokenizer, supervisor, server=server) as (served, http):
        supervisor.goes_on.clear()
        stream = Stream(http._transport.app, "/v1/completions", PROMPT | {"model": "a", "stream": True})  # type: ignore[attr-defined]
        await until(lambda: stream.text.count(": keep-alive\n\n") >= 2)
        assert stream.sent[0]["status"] == 200
        supervisor.goes_on.set()
        await stream.ended
        assert [message["type"] for message in stream.sent].count("http.response.start") == 1
        assert stream.text.endswith("data: [DONE]\n\n")
        assert served.model("a").num_uses == 0


async def test_a_stream_whose_model_fails_ends_with_an_error_in_its_apis_shape(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    supervisor.broken = {"a", "b"}
    server = ServerConfig(sse_keep_alive_interval=0.001)
    async with serving(tmp_path, tokenizer, supervisor, server=server) as (_, http):
        for name, path, begin in (
            ("a", "/v1/chat/completions", 'data: {"error":'),
            ("b", "/v1/messages", "event: error\ndata: {"),
        ):
            supervisor.goes_on.clear()
            body = CHAT | {"model": name, "stream": True, "max_tokens": 5}
            stream = Stream(http._transport.app, path, body)  # type: ignore[attr-defined]
            await until(lambda stream=stream: bool(stream.sent))  # type: ignore[misc]
            supervisor.goes_on.set()
            await stream.ended
            last = stream.text.split(": keep-alive\n\n")[-1]
            assert last.startswith(begin)
            assert f"{name} does not start" in last
        whole = await http.post("/v1/chat/completions", json=CHAT | {"model": "a"})
        assert (whole.status_code, "retry-after" in whole.headers) == (503, True)


async def test_probes_and_unknown_paths_load_no_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer) as (served, http):
        assert (await http.get("/health_generate?model=a")).json()["status"] == "generating"
        assert served.model("a").stage == "unloaded"
        await text_of(http, model="b")
        unknown = await http.post("/no/such/route", json={"model": "a"})
        assert unknown.status_code == (await http.get("/nothing")).status_code == 404
        assert served.model("a").stage == "unloaded"


async def test_a_client_that_leaves_waits_no_longer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    async with serving(tmp_path, tokenizer, supervisor) as (served, http):
        supervisor.goes_on.clear()
        asking = asyncio.ensure_future(http.post("/v1/completions", json=PROMPT | {"model": "a"}))
        await until(lambda: served.model("a").num_waiting == 1)
        asking.cancel()
        await until(lambda: served.model("a").num_waiting == 0)


async def test_the_list_has_all_models_with_their_stages_and_aliases(tokenizer: Tokenizer, tmp_path: Path) -> None:
    supervisor = FakeSupervisor(SIZES, 110)
    supervisor.broken = {"c"}
    aliases = {"gpt-4o": {"b": 1.0}}
    async with serving(tmp_path, tokenizer, supervisor, aliases=aliases, b={"tenants": ("alice",)}) as (_, http):
        await text_of(http, model="a")
        await http.post("/v1/chat/completions", json=CHAT | {"model": "c"})
        cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
        assert set(cards) == {"a", "c"}
        assert (cards["a"]["status"]["value"], cards["a"]["status"]["num_bytes"]) == ("loaded", 40)
        assert (cards["a"]["max_model_len"], cards["c"]["max_model_len"]) == (256, None)
        assert cards["c"]["status"] == {"value": "failed", "reason": "c does not start", "num_bytes": 60}
        of_alice = (await http.get("/v1/models", headers={"x-llm-d-inference-fairness-id": "alice"})).json()["data"]
        assert [(card["id"], card["root"]) for card in of_alice] == [
            ("a", "a"), ("b", "b"), ("c", "c"), ("gpt-4o", "b"),
        ]  # fmt: skip
        assert (await http.get("/v1/models/a")).json()["id"] == "a"
        assert (await http.get("/v1/models/b")).status_code == 404


async def test_admins_load_unload_and_name_models(tokenizer: Tokenizer, tmp_path: Path) -> None:
    server = ServerConfig(admin_on_loopback=True)
    async with serving(tmp_path, tokenizer, server=server) as (served, http):
        loaded = await http.post("/v1/models/load", json={"model": "b"})
        assert loaded.json()["status"]["value"] == "loaded"
        unloaded = await http.post("/models/unload", json={"model": "b"})
        assert unloaded.json()["status"]["value"] == "unloaded"
        named = await http.post("/v1/models/alias", json={"alias": "fast", "models": {"a": 3, "b": 1}})
        assert named.json() == {"aliases": {"fast": {"a": 3.0, "b": 1.0}}}
        dealt = [(await text_of(http, model="fast"))[0] for _ in range(4)]
        assert sorted(dealt) == ["a", "a", "a", "b"]
        refused = await http.post("/v1/models/alias", json={"alias": "a", "model": "b"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "alias")
        assert (await http.post("/v1/models/alias", json={"alias": "fast"})).json() == {"aliases": {}}
        assert served.model("a").num_loads == 1


async def test_nobody_else_may(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer) as (_, http):
        for path in ("/v1/models/load", "/v1/models/unload", "/v1/models/alias"):
            assert (await http.post(path, json={"model": "a", "alias": "x"})).status_code == 403


async def test_metrics_are_those_of_all_loaded_models_and_of_the_server(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer) as (_, http):
        for name in ("a", "b"):
            await text_of(http, model=name)
        text = (await http.get("/metrics")).text
        for name in ("a", "b"):
            assert f'vllm:prompt_tokens_total{{engine="0",model_name="{name}"}}' in text
            assert f'pyllm:model_loads_total{{model_name="{name}"}} 1.0' in text
        assert 'pyllm:model_loaded{model_name="c"} 0.0' in text
        assert text.count("# TYPE vllm:prompt_tokens_total counter") == 1
        assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 2.0' in text


async def test_the_server_is_healthy_without_a_loaded_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with serving(tmp_path, tokenizer) as (served, http):
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/health/ready")).json()["num_cores"] == 0
        await served.catalogue.drain(0.0)
        assert (await http.get("/health")).status_code == 503
