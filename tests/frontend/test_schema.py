"""Requests made up from `/openapi.json` get no 5xx, and no answer that the document does not describe."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pyllm.frontend.app import create_app
from pyllm.frontend.tokenizer import Tokenizer
from tests.frontend.fake_core import connected
from tests.frontend.serving import answering, state_of

T = TypeVar("T")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# How many requests are made up for each route.
CASES = 25


class Server:
    """The application over a scripted core, on an event loop of its own: Hypothesis is no coroutine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._http = self._run(self._open(tokenizer))
        self.document = self.request(method="GET", url="/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(self.document)

    def request(self, **options: Any) -> httpx.Response:
        return self._run(self._http.request(**options))

    def close(self) -> None:
        self._run(self._http.aclose())
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self, tokenizer: Tokenizer) -> httpx.AsyncClient:
        self._client = await connected(answering(tokenizer, "Hello"))
        transport = httpx.ASGITransport(create_app(state_of(self._client, tokenizer)))
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Generator[Server, None, None]:
    server = Server(tokenizer)
    yield server
    server.close()


@pytest.mark.parametrize("generation", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_as_the_document_says(server: Server, generation: schemathesis.GenerationMode) -> None:
    for operation in map(_operation, server.schema.get_all_operations()):
        counts = dict.fromkeys(("made", "served"), 0)

        @settings(
            max_examples=CASES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(data=st.data())
        def check(data: st.DataObject, operation: Any = operation, counts: dict[str, int] = counts) -> None:
            case = data.draw(operation.as_strategy(generation_mode=generation))
            if data.draw(st.booleans()):
                _keep_supported(case.body, server.document)
            response = server.request(**_request(case))
            counts["made"] += 1
            counts["served"] += response.status_code == 200
            case.validate_response(response, checks=CHECKS)

        check()
        print(operation.label, counts)


def _operation(result: Any) -> Any:
    return result.ok()


def _request(case: Any) -> dict[str, Any]:
    options = case.as_transport_kwargs(base_url="http://test")
    return {name: options[name] for name in ("method", "url", "params", "headers", "json") if name in options} | (
        {"content": options["data"]} if "data" in options else {}
    )


def _keep_supported(body: Any, document: dict[str, Any]) -> None:
    """Leave out what the document says is not supported."""
    if not isinstance(body, dict):
        return
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            if field.get("description", "").startswith("Not supported") or name == "model":
                body.pop(name, None)
