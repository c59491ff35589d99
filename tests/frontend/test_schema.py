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
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import connected
from tests.frontend.serving import answering, state_of
from tests.tiers import cases

T = TypeVar("T")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# How many requests are made up for each route in `make properties`, and a quarter of them in `make test`.
CASES = 40


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


@pytest.mark.hypothesis
def test_answers_to_requests_of_the_documented_form_are_as_documented(server: Server) -> None:
    served = {
        result.ok().label: _served(server, result.ok(), schemathesis.GenerationMode.POSITIVE)
        for result in server.schema.get_all_operations()
    }
    # Most bodies that are made up are refused; those that are not show what the document says of answers.
    assert sum(count > 0 for label, count in served.items() if label.startswith("POST")) >= 5


def test_each_operation_has_an_id_of_its_own(server: Server) -> None:
    ids = [operation["operationId"] for path in server.document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) > 20


@pytest.mark.hypothesis
def test_answers_to_other_requests_are_as_documented(server: Server) -> None:
    for result in server.schema.get_all_operations():
        if result.ok().body:
            _served(server, result.ok(), schemathesis.GenerationMode.NEGATIVE)


def _served(server: Server, operation: Any, mode: schemathesis.GenerationMode) -> int:
    """How many of the requests that were made up for an operation could be served; all answers are checked."""
    served = 0

    @settings(
        max_examples=cases(CASES),
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), num_options=st.none() | st.integers(0, 3))
    def check(case: Any, num_options: int | None) -> None:
        nonlocal served
        if num_options is not None:
            _simplify(case, server.document, num_options)
        response = server.request(**_request(case))
        served += response.status_code == 200
        case.validate_response(response, checks=CHECKS)

    check()
    return served


def _request(case: Any) -> dict[str, Any]:
    options = case.as_transport_kwargs(base_url="http://test")
    return {name: options[name] for name in ("method", "url", "params", "headers", "json") if name in options} | (
        {"content": options["data"]} if "data" in options else {}
    )


def _simplify(case: Any, document: dict[str, Any], num_options: int) -> None:
    """Leave out what the document says is not supported, and all but a few of the options: most bodies are refused."""
    body = case.body
    if not isinstance(body, dict):
        return
    operation = document["paths"][case.operation.path][case.operation.method]
    reference = operation["requestBody"]["content"]["application/json"]["schema"].get("$ref")
    if reference is None:  # any object
        return
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    for field in [field for field in body if field not in schema["required"]]:
        is_supported = not schema["properties"].get(field, {}).get("description", "").startswith("Not supported")
        if field == "model" or not is_supported or num_options == 0:
            del body[field]
        else:
            num_options -= 1
