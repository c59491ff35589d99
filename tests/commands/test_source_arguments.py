import os
from pathlib import Path

import pytest

from pyllm.cli import read_options
from pyllm.commands.source_arguments import is_address, only_warnings, read_source, select_source
from pyllm.errors import ConfigError
from pyllm.terminal_chat.chat_session import AnswerSource
from pyllm.terminal_chat.engine_source import EngineSource
from pyllm.terminal_chat.server_source import ServerSource
from tests.answering_server import AnsweringServer


def test_a_model_with_settings() -> None:
    read = read_source(read_options("chat", ["model.gguf", "--max-model-len", "8k", "--block-size", "16"]))
    assert read == ("model.gguf", {"max_model_len": 8000, "block_size": 16})
    assert read_source(read_options("chat", ["--model", "model.gguf"])) == ("model.gguf", {})


def test_vllms_flags_mean_what_they_mean_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    _, settings = read_source(read_options("chat", ["model.gguf", "--swap-space", "2", "--trust-remote-code"]))
    assert settings == {"kv_offloading_size": 2.0}
    assert capsys.readouterr().err.count("note: --trust-remote-code: code from") == 1


def test_the_seed_of_a_completion_is_no_setting_of_an_engine() -> None:
    options = read_options("complete", ["http://host", "text", "--seed", "3"])
    assert (read_source(options), options.answer_seed) == (("http://host", {}), 3)


def selected(*arguments: str, local_server: str = "http://127.0.0.1:1") -> AnswerSource:
    options = read_options("chat", arguments)
    return select_source(options, *read_source(options), local_server)


def test_a_server_on_this_machine_is_taken_and_gets_no_key() -> None:
    with AnsweringServer() as server:
        assert isinstance(selected("--api-key", "secret", local_server=server.address), ServerSource)
    assert server.keys_of_gets == [None]


@pytest.mark.parametrize(
    ("status", "content"),
    [(401, b"{}"), (200, b"<html>"), (200, b'{"data": []}'), (200, b'{"data": [{"name": 1}]}'), (200, b"[]")],
)
def test_another_program_on_that_port_is_not(status: int, content: bytes) -> None:
    with AnsweringServer(models=content, status=status) as server:
        assert isinstance(selected(local_server=server.address), EngineSource)
    assert server.keys_of_gets == [None]


def test_a_model_or_settings_ask_for_an_engine(model: str) -> None:
    with AnsweringServer() as server:
        source = selected(model, local_server=server.address)
        assert source.description == f"{source.model}, computed by this program"
        assert isinstance(selected("--model-impl", "auto", local_server=server.address), EngineSource)
    assert server.keys_of_gets == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["http://host", "--max-model-len", "8", "--block-size", "16"], "--max-model-len, --block-size: settings of"),
        (["model.gguf", "--model-name", "x"], "--model-name is for a server"),
        (["model.gguf", "--insecure"], "--cacert and --insecure are for a server"),
    ],
)
def test_what_is_not_for_such_a_source_is_refused(arguments: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_source(read_options("chat", arguments))


@pytest.mark.parametrize("given", [[], ["--api-key", "given"]])
async def test_a_named_server_gets_the_key(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    with AnsweringServer() as server:
        source = selected("--url", f"{server.address}/v1", "--model-name", "m", *given)
        pieces = [piece async for piece in source.answer("x", {})]
        await source.close()
    assert pieces[0].content == "hi"
    assert server.keys == ["Bearer given" if given else "Bearer of the environment"]
    assert server.bodies[0]["model"] == "m"


def test_what_is_an_address(tmp_path: Path) -> None:
    assert is_address("http://host")
    assert is_address("HTTPS://host")
    assert not any(map(is_address, ["", "owner/repo", str(tmp_path), "https://huggingface.co/owner/repo"]))
    assert not is_address("https://www.hf.co/owner/repo")
    with pytest.raises(ConfigError, match="begins with http"):
        is_address("ftp://host")


def test_the_log_level_is_the_users_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYLLM_LOG_LEVEL", raising=False)
    with only_warnings("pyllm::test"):
        assert os.environ["PYLLM_LOG_LEVEL"] == "WARNING"
    assert "PYLLM_LOG_LEVEL" not in os.environ
    monkeypatch.setenv("PYLLM_LOG_LEVEL", "DEBUG")
    with only_warnings("pyllm::test"):
        assert os.environ["PYLLM_LOG_LEVEL"] == "DEBUG"
    assert os.environ["PYLLM_LOG_LEVEL"] == "DEBUG"
    monkeypatch.setenv("PYLLM_LOG_LEVEL", "LOUD")
    with pytest.raises(ConfigError, match="LOUD"), only_warnings("pyllm::test"):
        pass
