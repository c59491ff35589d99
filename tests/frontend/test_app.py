"""The routes beside generation, and every body that is not a request."""

from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyllm import __version__
from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.http.field_descriptions import DESCRIPTIONS
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import MAX_SAMPLES
from tests.client.fake_core import MODEL
from tests.frontend.serving import answering, in_process

JSON = {"content-type": "application/json"}
ROUTES = ("/v1/completions", "/v1/chat/completions")
MESSAGES = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
}
# What must stand beside a field for it to have an effect.
BESIDE: dict[str, dict[str, Any]] = {
    "length_penalty": {"use_beam_search": True, "temperature": 0},
    "min_tokens": {"max_tokens": -1},
    "min_new_tokens": {"max_tokens": -1},
    "/v1/responses min_tokens": {"max_output_tokens": -1},
    "/v1/responses min_new_tokens": {"max_output_tokens": -1},
    "/v1/messages min_tokens": {"max_tokens": 2**31 - 1},
    "/v1/messages min_new_tokens": {"max_tokens": 2**31 - 1},
    "top_logprobs": {"logprobs": True},
    "/v1/responses top_logprobs": {"include": ["message.output_text.logprobs"]},
}
# Values of a range that a small model, without reasoning, refuses, or a route that needs a limit of tokens.
LESS = {
    ("n", MAX_SAMPLES),
    ("n_cmpl", MAX_SAMPLES),
    ("thinking_token_budget", 2**31 - 1),
    ("thinking_budget_tokens", 2**31 - 1),
    ("reasoning_budget", 2**31 - 1),
    ("reasoning_budget_tokens", 2**31 - 1),
    ("/v1/messages n_predict", -1),
    ("/v1/messages num_predict", -1),
    ("/v1/messages max_new_tokens", -1),
    ("/v1/messages max_output_tokens", -1),
}


def bounds_of(field: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") in ("integer", "number")]
    return next((kind for kind in kinds if kind.keys() & {"minimum", "exclusiveMinimum"}), {})


async def test_models_are_listed_with_vllms_fields_and_who_computes_them(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        models = (await frontend.http.get("/v1/models")).json()
    (model,) = models["data"]
    assert isinstance(model.pop("created"), int)
    assert models["object"] == "list"
    assert model == {
        "id": "tiny",
        "object": "model",
        "owned_by": "pyllm",
        "root": "tiny",
        "parent": None,
        "max_model_len": 256,
        "permission": [],
        "model_impl": "native",
        "batch_invariant": False,  # as the fake core says
        "type": "base",  # what Mistral's package tells models apart by
        "capabilities": {
            "completion_chat": True,
            "function_calling": True,
            "completion_fim": False,
            "fine_tuning": False,
            "vision": False,
        },
    }


async def test_health_is_the_engines(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        healthy = await frontend.http.get("/health")
        assert (healthy.status_code, healthy.content) == (200, b"")
        for ping in (await frontend.http.get("/ping"), await frontend.http.post("/ping")):
            assert (ping.status_code, ping.content) == (200, b"")
        frontend.core.answers_hello = False
        frontend.core.on_disconnect()
        assert (await frontend.http.get("/health")).status_code == 503
        assert (await frontend.http.post("/ping")).status_code == 503


async def test_every_route_tells_its_methods(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for path, operations in (await frontend.http.get("/openapi.json")).json()["paths"].items():
            told = await frontend.http.options(path.replace("{", "").replace("}", ""))
            methods = {"OPTIONS", *(method.upper() for method in operations)}
            assert (told.status_code, set(told.headers["allow"].split(", "))) == (204, methods), path


async def test_the_version_is_the_packages(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        assert (await frontend.http.get("/version")).json() == {"version": __version__}


async def test_metrics_are_the_cores_and_our_own(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "Hello world"), tokenizer) as frontend:
        await frontend.http.post("/v1/completions", json={"prompt": "Hello", "n": 2})
        response = await frontend.http.get("/metrics")
        frontend.core.answers_hello = False
        frontend.core.on_disconnect()
        without_core = await frontend.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["vllm:generation_tokens_total", ""] == 6
    assert samples["vllm:request_success_total", "stop"] == 2
    assert samples["vllm:kv_cache_usage_perc", ""] == 0.25
    assert "vllm:generation_tokens_total" in without_core.text
    assert "vllm:kv_cache_usage_perc" not in without_core.text


async def test_the_openapi_document_describes_the_routes(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        document = (await frontend.http.get("/openapi.json")).json()
    assert {*ROUTES, "/v1/models", "/health", "/version", "/metrics"} <= set(document["paths"])
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert {"200", "400", "404", "413", "415", "503"} <= set(chat["responses"])


async def test_the_openapi_document_has_queries_and_bodies(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        paths = (await frontend.http.get("/openapi.json")).json()["paths"]
    limit, core = paths["/admin/requests"]["get"]["parameters"]
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 2000, "default": 100}
    assert core == {"name": "core", "in": "query", "schema": {"type": "integer", "minimum": 0}}
    (_, order, *_) = paths["/v1/responses/{response_id}/input_items"]["get"]["parameters"]
    assert (order["name"], order["in"]) == ("order", "query")
    leaving = paths["/admin/cores/{index}"]["delete"]
    assert [one["name"] for one in leaving["parameters"]] == ["index", "timeout"]
    assert "error" not in leaving["responses"]["202"]["description"]
    body = paths["/admin/config"]["patch"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["type"] == "object"


async def test_the_openapi_document_describes_every_field_of_a_request(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        document = (await frontend.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "requestBody" in operation and not path.startswith("/admin")
    }
    assert len(bodies) > 5
    bare = {
        f"{body}.{name}"
        for body in bodies
        for name, field in schemas[body]["properties"].items()
        if not field.get("description")
    }
    assert bare == set()
    chat = schemas["ChatRequest"]
    tokens = [chat["properties"][name]["anyOf"][0] for name in ("min_tokens", "min_new_tokens")]
    assert tokens == [{"type": "integer", "minimum": 0, "maximum": 2**31 - 1}] * 2
    assert chat["required"] == ["messages"]
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}
    assert "refused" in chat["properties"]["best_of"]["description"]


@pytest.mark.parametrize("route", BODIES)
async def test_the_ranges_in_the_document_are_those_that_are_checked(tokenizer: Tokenizer, route: str) -> None:
    model = msgspec.structs.replace(MODEL, max_logprobs=MODEL.vocab_size)
    async with in_process(answering(tokenizer, "ok", model), tokenizer) as frontend:
        document = (await frontend.http.get("/openapi.json")).json()
        body = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        fields = document["components"]["schemas"][body.rpartition("/")[2]]["properties"]
        ranges = {name: bounds for name, field in fields.items() if (bounds := bounds_of(field))}
        assert ranges
        for name, bounds in ranges.items():
            step = 1 if bounds["type"] == "integer" else 0.001
            inside = [bounds[end] for end in ("minimum", "maximum") if end in bounds]
            outside = [bounds["minimum"] - step] if "minimum" in bounds else [bounds["exclusiveMinimum"]]
            outside += [bounds["maximum"] + step] if "maximum" in bounds else []
            beside = BODIES[route] | BESIDE.get(f"{route} {name}", BESIDE.get(name, {}))
            for value in inside:
                answer = await frontend.http.post(route, json={**beside, name: value})
                is_less = {(name, value), (f"{route} {name}", value)} & LESS
                assert answer.status_code == 200 or is_less, (name, value, answer.text)
            for value in outside:
                answer = await frontend.http.post(route, json={**beside, name: value})
                assert answer.status_code == 400, (name, value)
                assert name in answer.json()["error"]["message"], (value, answer.text)


async def test_no_description_of_a_field_is_of_none(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        schemas = (await frontend.http.get("/openapi.json")).json()["components"]["schemas"]
    used = {
        name
        for body, schema in schemas.items()
        for field, described in schema.get("properties", {}).items()
        for name in (field, f"{body}.{field}")
        if name in DESCRIPTIONS and described.get("description") == DESCRIPTIONS[name]
    }
    assert DESCRIPTIONS.keys() - used == set()


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"{", JSON, 400, "not valid JSON"),
        (b"", JSON, 400, "no body"),
        (b"[]", JSON, 400, "Expected `object`"),
        (b'{"model": "\xff\xfe"}', JSON, 400, "not valid JSON"),
        (b'{"metadata": ' + b'{"a":' * 50_000, JSON, 400, "nested too deeply"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        (b"x" * (ServerConfig().max_request_body_bytes + 1), JSON, 413, "more than 10000000 bytes"),
        (b'{"nope": 1}', JSON, 400, "missing required field"),
        (b'{"prompt": "x", "messages": [{"role": "user"}], "\xff": 1}', JSON, 400, "not valid JSON"),
    ],
)
async def test_a_body_that_is_no_request_is_explained(
    tokenizer: Tokenizer, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for route in ROUTES:
            response = await frontend.http.post(route, content=body, headers=headers)
            assert response.status_code == status
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert text in error["message"]
            assert "Traceback" not in response.text
        assert (await frontend.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)]
)
async def test_what_is_no_route_is_an_error_of_the_same_shape(
    tokenizer: Tokenizer, method: str, path: str, status: int
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.request(method, path)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_an_unforeseen_error_shows_no_traceback(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def encode(self, prompts: Any, add_special_tokens: bool, refuse_long: bool) -> Any:
            raise ZeroDivisionError("secret")

    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        frontend.state.prompts = Broken()
        response = await frontend.http.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "secret" in caplog.text


async def test_a_model_is_found_by_its_id_slashes_included(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        listed = (await frontend.http.get("/v1/models")).json()["data"]
        assert (await frontend.http.get("/v1/models/tiny")).json() == listed[0]
        missing = await frontend.http.get("/v1/models/org/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "'org/other'" in missing.json()["error"]["message"]
