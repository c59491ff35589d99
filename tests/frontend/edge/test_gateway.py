"""What every request meets before its route: keys, ids, sizes, times, origins."""

import asyncio
import hashlib
import json
import logging
from typing import Any

import httpx
import pytest

from pyllm.config.api_keys import ApiKey, KeyRing, new_key
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import DeadlineError
from pyllm.frontend.edge.gateway import Gateway
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import connected
from tests.frontend.serving import answering, events, in_process, state_of

KEY = new_key("team-a")[0]


def ring(**limits: int) -> KeyRing:
    return KeyRing([ApiKey(name="team-a", sha256=hashlib.sha256(KEY.encode()).hexdigest(), **limits)])


BEARER = {"authorization": f"Bearer {KEY}"}
BODY = {"prompt": "x", "max_tokens": 2}


async def test_every_route_but_the_probes_needs_a_key(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=ring()) as frontend:
        document = (await frontend.http.get("/openapi.json", headers=BEARER)).json()
        routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
        assert len(routes) > 6
        for method, path in [*routes, ("get", "/openapi.json"), ("get", "/nope"), ("put", "/")]:
            response = await frontend.http.request(method, path)
            if path.startswith(("/health", "/ping")):
                assert response.status_code == 200
                continue
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert "API key" in response.text
        for headers in (BEARER, {"x-api-key": KEY}, {"authorization": f"bearer {KEY}"}):
            assert (await frontend.http.get("/version", headers=headers)).status_code == 200
            assert (await frontend.http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        for wrong in (f"Bearer {KEY}x", "Bearer ", "Bearer", f"Basic {KEY}", KEY, "Bearer \xff"):
            response = await frontend.http.get("/version", headers={"authorization": wrong.encode("latin-1")})
            assert response.status_code == 401
            assert KEY not in response.text
        for path in ("/health/../version", "/version/", "/health/", "/health/live/x", "/HEALTH", "/health%2f"):
            assert (await frontend.http.get(path)).status_code == 401
    assert KEY not in caplog.text


async def test_the_tenant_is_the_keys_then_the_headers_then_the_users(tokenizer: Tokenizer) -> None:
    header = {"x-llm-d-inference-fairness-id": "router"}
    user = {**BODY, "user": "somebody"}
    tenants = []
    for keys, headers, body in (
        (ring(), {**BEARER, **header}, user),
        (KeyRing(), header, user),
        (KeyRing(), {}, user),
        (KeyRing(), {}, BODY),
    ):
        async with in_process(answering(tokenizer, "ok"), tokenizer, keys=keys) as frontend:
            assert (await frontend.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
            chat = {"messages": [{"role": "user", "content": "x"}], "user": body.get("user")}
            assert (await frontend.http.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 200
            tenants.append([submit.tenant for submit in frontend.core.sent(Submit)])
    assert tenants == [["team-a"] * 2, ["router"] * 2, ["somebody"] * 2, [""] * 2]


@pytest.mark.parametrize(
    ("headers", "body", "parameter"),
    [
        ({"x-request-timeout": "soon"}, BODY, "x-request-timeout"),
        ({"x-llm-d-inference-fairness-id": "x" * 257}, BODY, "x-llm-d-inference-fairness-id"),
        ({}, {**BODY, "user": "a\nb"}, "user"),
        ({}, {**BODY, "user": "x" * 257}, "user"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(
    tokenizer: Tokenizer, headers: dict[str, str], body: dict[str, Any], parameter: str
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == parameter


async def test_an_encoded_body_is_refused(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        encoded = await frontend.http.post("/v1/completions", json=BODY, headers={"content-encoding": "gzip"})
        plain = await frontend.http.post("/v1/completions", json=BODY, headers={"content-encoding": "Identity"})
    assert (encoded.status_code, plain.status_code) == (415, 200)
    assert "'gzip'" in encoded.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ('application/json;Charset="UTF-8"', 200),
        ("application/json; charset=latin-1", 415),
        ('application/json; x=y; charset = "utf-16"', 415),
    ],
)
async def test_a_body_in_another_charset_is_refused(tokenizer: Tokenizer, content_type: str, status: int) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        headers = {"content-type": content_type}
        response = await frontend.http.post("/v1/completions", content=json.dumps(BODY), headers=headers)
    assert response.status_code == status
    assert status == 200 or "UTF-8" in response.json()["error"]["message"]


async def test_a_request_id_is_part_of_every_answer(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=ring()) as frontend:
        http, mine = frontend.http, {**BEARER, "x-request-id": "my-id_1"}
        answer = await http.post("/v1/completions", json=BODY, headers=mine)
        assert answer.json()["id"] == "cmpl-my-id_1"
        streamed = await http.post("/v1/completions", json={**BODY, "stream": True}, headers=mine)
        assert {chunk["id"] for chunk in events(streamed.text)} == {"cmpl-my-id_1"}
        bad = await http.post("/v1/completions", json={}, headers=mine)
        refused = await http.get("/version", headers={"x-request-id": "my-id_1"})
        unknown = await http.get("/nope", headers=mine)
        for response in (answer, streamed, bad, refused, unknown):
            assert response.headers.get_list("x-request-id") == ["my-id_1"]
        made = {(await http.get("/health", headers={"x-request-id": bad})).headers["x-request-id"]
                for bad in ("a b", "x" * 129)}  # fmt: skip
        assert len(made) == 2
        assert all(name.isalnum() for name in made)


async def test_bodies_have_a_size(tokenizer: Tokenizer) -> None:
    async def chunked() -> Any:
        for _ in range(3):
            yield b"x" * 60

    server = ServerConfig(max_request_body_bytes=100)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        for content in (b"x" * 101, chunked()):
            response = await frontend.http.post(
                "/v1/completions", content=content, headers={"content-type": "application/json"}
            )
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
            assert "more than 100 bytes" in response.json()["error"]["message"]
        assert (await frontend.http.post("/v1/completions", json=BODY)).status_code == 200


async def test_an_upload_that_stops_ends_its_connection(tokenizer: Tokenizer) -> None:
    sent: list[Any] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(DeadlineError):
            await receive()
        await send({"type": "http.response.start", "status": 408, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    client = await connected(answering(tokenizer, "ok"))
    gateway = Gateway(route, state_of(client, tokenizer), body_patience=0.01)
    scope: Any = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    await gateway(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    client.close()
    assert (b"connection", b"close") in sent[0]["headers"]


async def test_other_origins_are_off_by_default(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.get("/version", headers={"origin": "https://a.com"})
        preflight = await frontend.http.options(
            "/v1/completions", headers={"origin": "https://a.com", "access-control-request-method": "POST"}
        )
    assert not any(name.startswith("access-control") for name in (*response.headers, *preflight.headers))
    assert set(preflight.headers["allow"].split(", ")) == {"OPTIONS", "POST"}


async def test_named_origins_are_let_in_and_need_no_key_to_ask(tokenizer: Tokenizer) -> None:
    server = ServerConfig(allowed_origins=("https://a.com",))
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, keys=ring()) as frontend:
        asking = {"origin": "https://a.com", "access-control-request-method": "POST"}
        preflight = await frontend.http.options("/v1/completions", headers=asking)
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == "https://a.com"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = await frontend.http.get("/version", headers={"origin": "https://a.com"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.com"  # so that a page can read the error
        other = await frontend.http.get("/version", headers={**BEARER, "origin": "https://b.com"})
        assert "access-control-allow-origin" not in other.headers
        assert other.headers["vary"] == "origin"
        assert (await frontend.http.options("/version", headers={"origin": "https://a.com"})).status_code == 401


async def test_any_origin(tokenizer: Tokenizer) -> None:
    server = ServerConfig(allowed_origins=("*",))
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        response = await frontend.http.get("/version", headers={"origin": "https://b.com"})
    assert response.headers["access-control-allow-origin"] == "*"


async def test_a_keys_own_limits_come_before_the_servers(tokenizer: Tokenizer) -> None:
    server = ServerConfig(max_requests_per_minute=100)
    keys = ring(max_requests_per_minute=1)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, keys=keys) as frontend:
        first = await frontend.http.post("/v1/completions", json=BODY, headers=BEARER)
        second = await frontend.http.post("/v1/completions", json=BODY, headers=BEARER)
    assert (first.status_code, first.headers["x-ratelimit-limit-requests"]) == (200, "1")
    assert (second.status_code, second.headers["retry-after"]) == (429, "60")


async def test_a_page_whose_name_leads_here_gets_no_answer(tokenizer: Tokenizer) -> None:
    rebound = {"host": "evil.com:8000", "accept-language": "en", "accept": "text/html"}
    server = ServerConfig(host="0.0.0.0")
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        for path in ("/", "/page/app.js", "/v1/models", "/metrics", "/openapi.json", "/nope"):
            answer = await frontend.http.get(path, headers=rebound)
            assert answer.status_code == 403, path
            assert "'evil.com'" in answer.json()["error"]["message"]
            assert "--allowed-hosts" in answer.json()["error"]["message"]
        assert (await frontend.http.post("/v1/completions", json=BODY, headers=rebound)).status_code == 403
        assert (await frontend.http.get("/health", headers=rebound)).status_code == 200
        assert (await frontend.http.get("/v1/models", headers={"host": "llm.example.com"})).status_code == 200
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, keys=ring()) as frontend:
        assert (await frontend.http.get("/", headers=rebound)).status_code == 200
        assert (await frontend.http.get("/v1/models", headers={**rebound, **BEARER})).status_code == 200
        assert (await frontend.http.get("/v1/models", headers=rebound)).status_code == 401


@pytest.mark.parametrize("name", ["host", "origin"])
async def test_two_hosts_or_origins_are_refused_before_everything_else(tokenizer: Tokenizer, name: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=ring()) as frontend:
        for path in ("/", "/health", "/v1/models"):
            answer = await frontend.http.get(path, headers=[(name, "http://a"), (name, "http://b")])
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_what_only_tokenises_counts_as_a_request(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    keys = ring(max_requests_per_minute=2, max_concurrent_requests=1)
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=keys) as frontend:
        answers = [await frontend.http.post(path, json=body, headers=BEARER) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(
    "path", ["/%00", "/%ff%fe", "/..%2f..%2fetc/passwd", "/v1/models/%F0%9F%99%82", "/" + "a" * 5000]
)
async def test_hostile_paths_show_nothing(tokenizer: Tokenizer, path: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response: httpx.Response = await frontend.http.get(path)
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ".py" not in response.text


async def test_a_path_of_a_proxy_may_be_there_or_not(tokenizer: Tokenizer) -> None:
    server = ServerConfig(root_path="/llm")
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server, keys=ring()) as frontend:
        for path, status in {
            "/health": 200,
            "/llm/health": 200,
            "/llm/version": 401,
            "/llmx/health": 401,
            "/llm/llm/health": 401,
        }.items():
            assert (await frontend.http.get(path)).status_code == status, path
        assert (await frontend.http.post("/llm/v1/completions", json=BODY, headers=BEARER)).status_code == 200
        document = (await frontend.http.get("/llm/openapi.json", headers=BEARER)).json()
    assert document["servers"] == [{"url": "/llm"}]


async def test_the_documents_of_the_api_may_be_off(tokenizer: Tokenizer) -> None:
    server = ServerConfig(disable_fastapi_docs=True)
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        for path in ("/docs", "/openapi.json"):
            assert (await frontend.http.get(path)).status_code == 404


async def test_pages_may_send_what_is_configured(tokenizer: Tokenizer) -> None:
    server = ServerConfig(allowed_origins=("https://a.com",), allowed_methods=("GET",), allow_credentials=True)
    asking = {
        "origin": "https://a.com",
        "access-control-request-method": "GET",
        "access-control-request-headers": "x-c",
    }
    async with in_process(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        answer = await frontend.http.options("/version", headers=asking)
    assert answer.headers["access-control-allow-methods"] == "GET"
    assert answer.headers["access-control-allow-headers"] == "x-c"
    assert answer.headers["access-control-allow-credentials"] == "true"
