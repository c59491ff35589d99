"""TLS of a private CA: every command that talks to a server takes --cacert and --insecure, and SSL_CERT_FILE."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pyllm import cli
from pyllm.config.server_trust import ServerTrust, connection_advice
from pyllm.errors import ConfigError
from tests.certificates import self_signed

MODELS = {"data": [{"id": "m"}]}
CHOICE = {"index": 0, "text": "hi", "delta": {"content": "hi"}, "finish_reason": "stop"}
ANSWER = {"choices": [CHOICE], "usage": {"prompt_tokens": 1}}


class Server:
    """One that answers everything, over TLS; it keeps the keys that it was sent."""

    def __init__(self, folder: Path) -> None:
        self.certificate, key = self_signed(folder)
        self.keys: list[str | None] = []
        keys = self.keys

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(json.dumps(MODELS).encode())

            def do_POST(self) -> None:
                keys.append(self.headers.get("Authorization"))
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(ANSWER).encode()
                if body.get("stream"):
                    self._answer(b"data: " + answer + b"\n\ndata: [DONE]\n\n", "text/event-stream")
                else:
                    self._answer(answer)

            def log_message(self, *args: object) -> None:
                pass

            def _answer(self, content: bytes, kind: str = "application/json") -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"https://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def commands(server: Server, folder: Path) -> dict[str, list[str]]:
    """What asks the server once."""
    requests = folder / "in.jsonl"
    body = {"model": "m", "prompt": "a", "max_tokens": 1}
    requests.write_text(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    files = ["-i", str(requests), "-o", str(folder / "out.jsonl")]
    return {
        "batch": ["batch", *files, "--base-url", server.address, "--api-key", "KEY"],
        "complete": ["complete", server.address, "a prompt", "--api-key", "KEY"],
        "chat": ["chat", server.address, "-q", "hi", "--api-key", "KEY"],
    }


@pytest.mark.parametrize("command", ["batch", "complete", "chat"])
@pytest.mark.parametrize("way", ["cacert", "insecure", "variable"])
def test_a_server_of_a_private_ca_is_talked_to(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, way: str
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    flags = {"cacert": ["--cacert", server.certificate], "insecure": ["--insecure"], "variable": []}[way]
    if way == "variable":
        monkeypatch.setenv("SSL_CERT_FILE", server.certificate)
    assert cli.main([*commands(server, tmp_path)[command], *flags]) == 0
    assert server.keys == ["Bearer KEY"]


@pytest.mark.parametrize("command", ["batch", "complete", "chat"])
def test_without_it_the_error_says_what_to_do(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert cli.main(commands(server, tmp_path)[command]) == 1
    error = capsys.readouterr().err
    assert "CERTIFICATE_VERIFY_FAILED" in error
    assert "by --cacert FILE or SSL_CERT_FILE; --insecure accepts any" in error
    assert not server.keys


@pytest.mark.parametrize("command", ["batch", "complete", "chat"])
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cacert", "/no/file"], "cannot use the CA certificates /no/file of --cacert: No such file or directory"),
        (["--cacert", __file__], "cannot use the CA certificates"),
        (["--cacert", __file__, "--insecure"], "leave one out"),
    ],
)
def test_wrong_flags_are_said(
    server: Server, tmp_path: Path, command: str, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*commands(server, tmp_path)[command], *flags]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", [["complete", "m.gguf", "a"], ["chat", "m.gguf"]])
def test_they_are_for_a_server(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--insecure"]) == 2
    assert "--cacert and --insecure are for a server" in capsys.readouterr().err


def test_an_empty_file_of_the_variable_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="of SSL_CERT_FILE: it is empty"):
        ServerTrust().verify()


def test_a_wrong_scheme_is_guessed() -> None:
    assert "https://" in connection_advice("Server disconnected without sending a response.")
    assert "http://" in connection_advice("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    assert not connection_advice("All connection attempts failed")
