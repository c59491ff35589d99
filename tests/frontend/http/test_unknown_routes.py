import pytest

from pyllm.frontend.http.unknown_routes import MEANT, explain_unknown_route, normal_path
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.serving import answering, in_process

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/v1/messages", "did you mean /v1/messages?"),
        ("POST", "/v1/chat/completions/chat/completions", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/completions/responses", "did you mean /v1/responses?"),
        ("POST", "/v2/chat/completions", "did you mean /v1/chat/completions?"),
        ("GET", "/v1/metrics", "GET /metrics"),
        ("POST", "/flush_cache", "POST /reset_prefix_cache"),
        ("POST", "/init_weight_transfer_engine", "POST /admin/weights"),
        ("POST", "/init_communicator/", "POST /admin/weights"),
        ("POST", "/update_weights_from_disk", "POST /admin/weights with a path"),
        ("POST", "/v1/chat", "POST /v1/chat/completions"),
        ("GET", "/status", "GET /health"),
        ("GET", "/ready", "GET /health"),
        ("POST", "/v1/tokenize", "not below /v1"),
        ("POST", "/completion", "POST /v1/completions"),
        ("GET", "/props", "GET /server_info"),
        ("GET", "/slots/0", "GET /admin/requests"),
        ("POST", "/v1/classify", "did you mean /classify?"),
        ("POST", "/pooling", "/v1/score"),
        ("POST", "/v1/audio/transcriptions", "only text"),
        ("POST", "/v1/files", "pyllm batch"),
        ("POST", "/generate", "POST /v1/completions"),
        ("GET", "/page/nothing.js", "GET /openapi.json"),
        ("GET", "/nope", "GET /openapi.json"),
    ],
)
async def test_a_404_says_the_path_and_what_was_meant(method: str, path: str, said: str, tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.request(method, path, json={} if method == "POST" else None)
    assert response.status_code == 404
    text = response.json()["error"]["message"]
    assert text.startswith(f"There is no route {method} {path}: ")
    assert said in text
    assert not text.endswith("?.")


async def test_ollamas_paths_are_answered_in_its_shape(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/api/create", json={})
        blob = await frontend.http.head("/api/blobs/sha256:1")
    assert (response.status_code, blob.status_code) == (404, 404)
    assert response.json()["error"].startswith("There is no route POST /api/create: ")
    assert "flags of `pyllm serve`" in response.json()["error"]


async def test_a_405_says_what_the_route_takes(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.get("/v1/completions")
        several = await frontend.http.put("/admin/cores")
    assert (response.status_code, response.headers["allow"]) == (405, "POST, OPTIONS")
    assert (several.status_code, several.headers["allow"]) == (405, "GET, POST, OPTIONS")
    assert response.json()["error"]["message"] == "/v1/completions does not take GET, but POST."


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/completions", {"prompt": "Hello"}),
        ("/responses", {"input": "Hello"}),
        ("/messages", CHAT),
        ("/messages/count_tokens", {"messages": CHAT["messages"]}),
        ("/embeddings", {"input": "Hello"}),
        ("/models", None),
        ("/models/tiny", None),
    ],
)
async def test_routes_work_without_v1(path: str, body: object, tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        method = "GET" if body is None else "POST"
        plain, versioned = [await frontend.http.request(method, root + path, json=body) for root in ("", "/v1")]
    assert plain.status_code == versioned.status_code != 404
    assert plain.json().keys() == versioned.json().keys()


async def test_an_answer_is_kept_under_an_idempotency_key_without_v1_too(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        headers = {"Idempotency-Key": "one"}
        first = await frontend.http.post("/chat/completions", json=CHAT, headers=headers)
        again = await frontend.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert first.status_code == 200
    assert first.content == again.content


async def test_no_route_is_said_to_be_another_one(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        routes = {path for path in MEANT if (await frontend.http.get(path)).status_code != 404}
    assert routes == set()


def test_a_path_is_below_the_root_and_openais_routes_get_a_version() -> None:
    assert normal_path("/chat/completions") == "/v1/chat/completions"
    for path in ("/v1/models", "/health", "/chatter", "/", "/page/chat/x.js"):
        assert normal_path(path) == path
    assert normal_path("/llm/chat/completions", "/llm") == normal_path("/chat/completions", "/llm")
    for path, normal in (("/llm", "/"), ("/llm/health", "/health"), ("/llms/health", "/llms/health")):
        assert normal_path(path, "/llm") == normal


def test_a_long_path_is_cut() -> None:
    assert len(explain_unknown_route("GET", "/" + "x" * 10_000, ["/v1/models"])) < 400
