"""Flags of the server that stand for something else, or for files."""

from pathlib import Path

import pytest

from pyllm.config.api_keys import KeyRing
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.launch.resolve import resolve_server, shared_config


@pytest.mark.parametrize(("max_num_seqs", "most"), [(1, 256), (16, 256), (128, 2048)])
def test_the_queue_is_bounded_by_default(max_num_seqs: int, most: int) -> None:
    shared = shared_config(ServerConfig(), max_num_seqs)
    assert (shared.max_num_seqs, shared.max_num_queued_reqs, shared.max_num_queued_tokens) == (max_num_seqs, most, 0)


def test_the_queue_is_as_told() -> None:
    shared = shared_config(ServerConfig(max_num_queued_reqs=0, max_num_queued_tokens=7), 128)
    assert (shared.max_num_queued_reqs, shared.max_num_queued_tokens) == (0, 7)


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYLLM_API_KEY", raising=False)
    server, keys = resolve_server(ServerConfig(uds="here.sock"))
    assert (server.uds, keys) == (str(tmp_path / "here.sock"), ())


def test_a_collector_has_a_url() -> None:
    with pytest.raises(ConfigError, match="http://localhost:4318/v1/traces"):
        resolve_server(ServerConfig(otlp_traces_endpoint="localhost:4317"))


def test_keys_of_flags_become_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYLLM_API_KEY", raising=False)
    server, keys = resolve_server(ServerConfig(api_key=("secret-a", "secret-b")))
    assert server.api_key == ()
    assert [KeyRing(keys).find(key) is not None for key in (b"secret-a", b"secret-b", b"secret-c")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("given", "path"), [("llm", "/llm"), ("/a/b/", "/a/b"), ("/", ""), ("", "")])
def test_root_paths(given: str, path: str) -> None:
    assert resolve_server(ServerConfig(root_path=given))[0].root_path == path


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (ServerConfig(api_key=("\n",)), "no header can carry"),
        (ServerConfig(root_path="/a b"), "such as /llm"),
        (ServerConfig(allow_credentials=True), "by name"),
        (ServerConfig(allow_credentials=True, allowed_origins=("*",)), "by name"),
        (ServerConfig(default_chat_template_kwargs={"messages": []}), "messages"),
        (ServerConfig(middleware=("Class",)), "module.Class"),
        (ServerConfig(ssl_cert_reqs=2), "--ssl-certfile"),
    ],
)
def test_what_cannot_work_is_refused(server: ServerConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve_server(server)
