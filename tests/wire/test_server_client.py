import httpx2
import pytest

from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.wire.server_client import UnreachableError, decode_chunk, list_models, open_client


def client_of(answer: httpx2.Response | Exception) -> httpx2.AsyncClient:
    def handle(request: httpx2.Request) -> httpx2.Response:
        assert request.url == "http://host/openai/v1/models"
        assert request.extensions["timeout"]["connect"] == 10
        if isinstance(answer, Exception):
            raise answer
        return answer

    return open_client("http://host/openai", transport=httpx2.MockTransport(handle))


async def test_the_names_of_models() -> None:
    models = {"data": [{"id": "a", "object": "model"}, {"id": "b"}]}
    assert await list_models(client_of(httpx2.Response(200, json=models))) == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "kind", "error"),
    [
        (httpx2.ConnectError("refused"), UnreachableError, "cannot reach http://host/openai: refused; is the server"),
        (httpx2.ReadTimeout(""), UnreachableError, "cannot reach http://host/openai: ReadTimeout;"),
        (httpx2.Response(401, json={"detail": "no"}), RequestError, "answered 401: no .give the server's key by --api"),
        (httpx2.Response(404, text="none"), RequestError, "answered 404: none"),
        (httpx2.Response(500, text="bad"), PyllmError, "answered 500: bad"),
        (httpx2.Response(200, text="<html>"), PyllmError, "lists no models: it is no OpenAI-compatible server"),
        (httpx2.Response(200, content=b'{"data": [{"id": "\xff"}]}'), PyllmError, "lists no models"),
    ],
)
async def test_a_server_without_models_is_an_error(
    answer: httpx2.Response | Exception, kind: type[PyllmError], error: str
) -> None:
    with pytest.raises(kind, match=error):
        await list_models(client_of(answer))


def test_the_key_is_sent_and_this_machine_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    client = open_client("http://localhost:8000", "secret")
    assert client.headers["authorization"] == "Bearer secret"
    assert not client.trust_env
    assert open_client("http://host").trust_env


def test_an_address_that_httpx_refuses_is_a_wrong_argument() -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        open_client("http://a\x00b")


def test_chunks_of_a_chat_and_of_a_completion() -> None:
    chunk = decode_chunk(b'{"choices": [{"index": 1, "delta": {"reasoning_content": "hm"}}], "usage": null}')
    assert chunk.choices is not None
    assert (chunk.choices[0].index, chunk.choices[0].delta.reasoning_content) == (1, "hm")
    usage = decode_chunk(b'{"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}').usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (3, 0, 2)
