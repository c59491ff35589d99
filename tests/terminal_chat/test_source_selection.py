import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllm.errors import ConfigError
from pyllm.terminal_chat.engine_source import EngineSource
from pyllm.terminal_chat.server_source import ServerSource
from pyllm.terminal_chat.source_selection import SourceRequest, is_address, select_source
from tests.tiny_model import write_tiny_model

NOWHERE = "http://127.0.0.1:1"


@contextmanager
def server_with(status: int, content: bytes) -> Iterator[tuple[str, list[str | None]]]:
    """Its address, and the keys that it was sent."""
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", keys
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_server_on_this_machine_is_taken_and_gets_no_key() -> None:
    with server_with(200, b'{"data": [{"id": "m"}]}') as (address, keys):
        assert isinstance(select_source(SourceRequest(api_key="secret"), address), ServerSource)
    assert keys == [None]


@pytest.mark.parametrize(
    ("status", "content"),
    [(401, b"{}"), (200, b"<html>"), (200, b'{"data": []}'), (200, b'{"data": [{"name": 1}]}'), (200, b"[]")],
)
def test_another_program_on_that_port_is_not(status: int, content: bytes) -> None:
    with server_with(status, content) as (address, keys):
        assert isinstance(select_source(SourceRequest(), address), EngineSource)
        assert keys == [None]


def test_a_model_or_settings_ask_for_an_engine(model: str) -> None:
    with server_with(200, b'{"data": [{"id": "m"}]}') as (address, keys):
        source = select_source(SourceRequest(name=model), address)
        assert source.description == f"{source.model}, computed by this program"
        assert isinstance(select_source(SourceRequest(options={"model_impl": "auto"}), address), EngineSource)
        assert keys == []


def test_a_named_server_gets_the_key_and_no_settings() -> None:
    assert isinstance(select_source(SourceRequest(name="https://host/v1", api_key="secret"), NOWHERE), ServerSource)
    with pytest.raises(ConfigError, match="--max-model-len, --block-size: settings of an engine do nothing"):
        select_source(SourceRequest(name="http://host", options={"max_model_len": 1, "block_size": 16}), NOWHERE)
    with pytest.raises(ConfigError, match="--model-name is for a server"):
        select_source(SourceRequest(name="model.gguf", model_name="x"), NOWHERE)


def test_what_is_an_address(tmp_path: Path) -> None:
    assert is_address("http://host")
    assert is_address("HTTPS://host")
    assert not any(map(is_address, ["", "owner/repo", str(tmp_path), "https://huggingface.co/owner/repo"]))
    assert not is_address("https://www.hf.co/owner/repo")
    with pytest.raises(ConfigError, match="begins with http"):
        is_address("ftp://host")
