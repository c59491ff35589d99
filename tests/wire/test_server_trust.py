"""TLS of a private CA: every command that talks to a server takes --cacert and --insecure, and SSL_CERT_FILE."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllm import cli
from pyllm.errors import ConfigError
from pyllm.wire.server_trust import ServerTrust, connection_advice
from tests.answering_server import AnsweringServer
from tests.certificates import self_signed


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    return self_signed(tmp_path)


@pytest.fixture
def server(certificate: tuple[str, str]) -> Iterator[AnsweringServer]:
    with AnsweringServer(certificate) as server:
        yield server


def commands(server: AnsweringServer, folder: Path) -> dict[str, list[str]]:
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
    server: AnsweringServer,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    way: str,
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    flags = {"cacert": ["--cacert", certificate[0]], "insecure": ["--insecure"], "variable": []}[way]
    if way == "variable":
        monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    assert cli.main([*commands(server, tmp_path)[command], *flags]) == 0
    assert server.keys == ["Bearer KEY"]


@pytest.mark.parametrize("command", ["batch", "complete", "chat"])
def test_without_it_the_error_says_what_to_do(
    server: AnsweringServer,
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
    server: AnsweringServer,
    tmp_path: Path,
    command: str,
    flags: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
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


def test_what_cannot_be_read_matters_only_where_certificates_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert ServerTrust(is_insecure=True).context().verify_mode == ssl.CERT_NONE
    with pytest.raises(ConfigError, match=r"none.pem of SSL_CERT_FILE"):
        ServerTrust().context()
