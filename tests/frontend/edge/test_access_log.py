"""Every answer is counted by method, route and status, and logged if wanted; those that no route makes, too."""

import asyncio
import logging

import httpx
import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.edge.access_log import AccessLog, RouteNames
from pyllm.frontend.http.asgi import Receive, Scope, Send
from pyllm.frontend.observability.http_counts import HttpCounts
from pyllm.frontend.requests.request_context import REQUEST_ID
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.frontend.serving import answering, behind_uvicorn
from tests.waiting import until

BODY = {"prompt": "a", "max_tokens": 3}


def counts(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("http_requests_total{")]
    return {name.removeprefix("http_requests_total"): float(value) for name, value in lines}


async def test_every_answer_is_counted_but_those_of_probes(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        http = frontend.http
        assert (await http.get("/metrics")).text.count("http_requests_total{") == 0
        await http.post("/v1/completions", json=BODY)
        async with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response:
            _ = [line async for line in response.aiter_lines()]
        await http.post("/v1/completions", content=b"{")
        await http.post("/completions", json=BODY)
        await http.get("/v1/completions")
        await http.get("/nowhere/at/all")
        await http.get("/v1/responses/resp_1")
        await http.request("PROPFIND", "/v1/models")
        for probe in ("/health", "/health/live", "/health/ready", "/version"):
            await http.get(probe)
        text = (await http.get("/metrics")).text
    assert counts(text) == {
        '{handler="/v1/completions",method="POST",status="2xx"}': 3,
        '{handler="/v1/completions",method="POST",status="4xx"}': 1,
        '{handler="/v1/completions",method="GET",status="4xx"}': 1,
        '{handler="none",method="GET",status="4xx"}': 1,
        '{handler="/v1/responses/{response_id}",method="GET",status="4xx"}': 1,
        '{handler="/v1/models",method="other",status="4xx"}': 1,
    }
    assert 'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 4.0' in text


async def test_a_refused_host_and_what_is_no_http_are_counted_and_logged(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerConfig(access_log=True)
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        with caplog.at_level(logging.INFO, "pyllm.frontend"):
            async with httpx.AsyncClient(base_url=frontend.http.base_url) as other:
                await other.get("/v1/models", headers={"host": "evil.example", "origin": "http://evil.example"})
                await other.get("/v1/models", headers={"x-large": "x" * (80 << 10)})
        text = (await frontend.http.get("/metrics")).text
    assert counts(text) == {
        '{handler="/v1/models",method="GET",status="4xx"}': 1,
        '{handler="none",method="other",status="4xx"}': 1,
    }
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [line for line in lines if '"GET /v1/models" 403 ' in line]
    assert "what came on a connection was no request: answered with 431" in lines


async def test_the_access_log_has_each_request_with_its_id_and_no_probe(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerConfig(access_log=True)
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        with caplog.at_level(logging.INFO, "pyllm.frontend.edge.access_log"):
            await frontend.http.post("/v1/completions?key=secret", json=BODY, headers={"x-request-id": "mine"})
            await frontend.http.get("/no%0Aline")
            await frontend.http.get("/health")
    lines = [record for record in caplog.records if record.name.endswith("access_log")]
    assert [(record.request_id, record.fields["path"], record.fields["status"]) for record in lines] == [  # type: ignore[attr-defined]  # set by `extra`
        ("mine", "/v1/completions", 200),
        (lines[1].request_id, "/no%0Aline", 404),  # type: ignore[attr-defined]
    ]
    assert '"POST /v1/completions" 200 ' in lines[0].getMessage()
    assert lines[0].getMessage().endswith(" s, request mine")
    assert "secret" not in caplog.text


async def test_there_is_no_access_log_unless_asked_for(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        with caplog.at_level(logging.INFO):
            await frontend.http.post("/v1/completions", json=BODY)
    assert not [record for record in caplog.records if record.name.endswith("access_log")]


def test_names_of_routes() -> None:
    routes = RouteNames(["/", "/v1/models", "/v1/models/{name:path}", "/admin/requests/{name:str}", "/x/{a:int}/y"])
    assert routes.name("/v1/models/") == "/v1/models"
    assert routes.name("/v1/models/owner/model") == "/v1/models/{name}"
    assert routes.name("/admin/requests/7") == "/admin/requests/{name}"
    assert routes.name("/admin/requests/7/8") == "none"
    assert routes.name("/x/1/y") == "/x/{a}/y"
    assert routes.name("/") == "/"


@pytest.mark.parametrize(("root_path", "path"), [("", "/v1/completions"), ("/llm", "/llm/completions")])
async def test_the_access_log_has_the_id_of_a_request_that_got_no_answer(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, root_path: str, path: str
) -> None:
    core = answering(tokenizer, "ok")
    core.paused = True
    server = ServerConfig(access_log=True, root_path=root_path)
    with caplog.at_level(logging.INFO, "pyllm.frontend.edge.access_log"):
        async with behind_uvicorn(core, tokenizer, server=server) as frontend:
            asking = asyncio.create_task(frontend.http.post(path, json=BODY, headers={"x-request-id": "mine"}))
            await until(lambda: core.sent(Submit))
            asking.cancel()
            await until(lambda: [record for record in caplog.records if record.name.endswith("access_log")])
    (line,) = [record for record in caplog.records if record.name.endswith("access_log")]
    assert (line.request_id, line.fields["status"]) == ("mine", 499)  # type: ignore[attr-defined]


async def test_the_access_log_has_the_id_of_a_request_that_failed_around_the_routes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        scope[REQUEST_ID] = "mine"  # type: ignore[typeddict-unknown-key]
        raise RuntimeError

    record = AccessLog(fail, RouteNames(()), HttpCounts(), is_logged=True)
    scope = {"type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "client": None}
    with caplog.at_level(logging.INFO, "pyllm.frontend.edge.access_log"), pytest.raises(RuntimeError):
        await record(scope, None, None)  # type: ignore[arg-type]
    assert caplog.messages[0].endswith(" s, request mine")
