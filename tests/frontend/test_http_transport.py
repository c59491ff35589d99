"""TLS, Unix sockets, and connections that go on after whatever happened on them."""

import asyncio
import contextlib
import functools
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from pyllm.config.credentials import Credentials, read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.config.tls import tls_context
from pyllm.errors import ConfigError
from pyllm.frontend.app import create_app
from pyllm.frontend.http.write_batcher import WriteBatcher
from pyllm.frontend.http_server import HttpServer, OpenProtocol
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.listeners import bind_unix_listener
from tests.certificates import self_signed
from tests.client.fake_core import connected
from tests.frontend.serving import answering, behind_uvicorn, events, state_of

BODY = {"prompt": "x", "max_tokens": 20, "stream": True}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("tls"))


async def test_streams_over_tls_on_one_connection(tokenizer: Tokenizer, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    server = ServerConfig(ssl_certfile=cert, ssl_keyfile=key)
    async with behind_uvicorn(answering(tokenizer, "Hello 🙂 world"), tokenizer, server=server) as frontend:
        trust = ssl.create_default_context(cafile=cert)
        url = f"https://localhost:{frontend.address[1]}"
        async with httpx.AsyncClient(base_url=url, verify=trust, limits=httpx.Limits(max_connections=1)) as http:
            for _ in range(3):
                response = await http.post("/v1/completions", json=BODY)
                assert response.status_code == 200
                texts = [chunk["choices"][0]["text"] for chunk in events(response.text)]
                assert "".join(texts) == "Hello 🙂 world"
            assert (await http.get("/health")).status_code == 200
            assert frontend.server is not None
            assert len(frontend.server.server_state.connections) == 1


async def test_clients_may_need_a_certificate(tokenizer: Tokenizer, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    server = ServerConfig(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=cert)
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        url = f"https://localhost:{frontend.address[1]}/version"
        for has_one in (False, True):
            trust = ssl.create_default_context(cafile=cert)
            if has_one:
                trust.load_cert_chain(cert, key)
            async with httpx.AsyncClient(verify=trust) as http:
                if has_one:
                    assert (await http.get(url)).status_code == 200
                else:
                    with pytest.raises(httpx.TransportError):
                        await http.get(url)


def test_certificates_that_cannot_work_are_explained(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    encrypted = str(tmp_path / "encrypted.pem")
    command = ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", encrypted]
    subprocess.run(command, check=True, capture_output=True)
    for options, text in (
        ({"ssl_keyfile": key}, "--ssl-certfile"),
        ({"ssl_ca_certs": cert}, "--ssl-certfile"),
        ({"ssl_certfile": "/nowhere.pem"}, "/nowhere.pem"),
        ({"ssl_certfile": cert}, "cannot use the certificate"),  # It has no key in it.
        ({"ssl_certfile": str(empty), "ssl_keyfile": key}, "cannot use the certificate"),
        ({"ssl_certfile": cert, "ssl_keyfile": encrypted}, "encrypted"),
        ({"ssl_certfile": cert, "ssl_keyfile": key, "ssl_ca_certs": str(empty)}, "CA certificates"),
    ):
        with pytest.raises(ConfigError, match=text):
            tls_context(server := ServerConfig(**options), read_credentials(server))
    assert tls_context(ServerConfig(), Credentials()) is None


async def test_a_unix_socket(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "pyllm.sock"
    client = await connected(answering(tokenizer, "ok"))
    with bind_unix_listener(str(path)) as listener:
        assert path.stat().st_mode & 0o777 == 0o660
        started = asyncio.Event()
        state = state_of(client, tokenizer)
        server = HttpServer(create_app(state), state, 0.0, started.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await started.wait()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for _ in range(2):
                assert events((await http.post("/v1/completions", json=BODY)).text)
        server.stop()
        await serving
    client.close()
    assert not path.exists()


async def test_connections_go_on_after_errors(tokenizer: Tokenizer) -> None:
    server = ServerConfig(max_request_body_bytes=1000, max_requests_per_minute=2)
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        url, http = str(frontend.http.base_url), httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(base_url=url, limits=http) as client:

            async def chunked() -> object:
                yield b"x" * 900
                yield b"x" * 900

            statuses = [
                (await client.post("/v1/completions", json=BODY)).status_code,
                (await client.post("/v1/completions", json={})).status_code,
                (await client.get("/nope")).status_code,
                (await client.post("/v1/completions", content=b"x" * 2000)).status_code,
                (await client.post("/v1/completions", content=chunked())).status_code,  # type: ignore[arg-type]
                (await client.post("/v1/completions", json=BODY)).status_code,
                (await client.post("/v1/completions", json=BODY)).status_code,
                (await client.get("/health")).status_code,
            ]
        assert statuses == [200, 400, 404, 413, 413, 200, 429, 200]
        assert frontend.server is not None
        assert frontend.server.server_state.total_requests == 8
        assert len(frontend.server.server_state.connections) <= 1


class ImpatientProtocol(OpenProtocol):
    head_patience = 0.0


async def test_headers_that_do_not_come_end_the_connection(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer) as frontend:
        assert frontend.server is not None
        frontend.server.config.http_protocol_class = functools.partial(ImpatientProtocol, WriteBatcher())
        for start in (b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: "):
            reader, writer = await asyncio.open_connection(*frontend.address)
            writer.write(start)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionResetError):
                await writer.wait_closed()
