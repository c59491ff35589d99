import os

import pytest

from pyllm.cli import read_options
from pyllm.commands.source_arguments import only_warnings, source_request
from pyllm.errors import ConfigError


def test_a_model_with_settings() -> None:
    request = source_request(read_options("chat", ["model.gguf", "--max-model-len", "8k", "--block-size", "16"]))
    assert (request.name, request.options) == ("model.gguf", {"max_model_len": 8000, "block_size": 16})
    assert source_request(read_options("chat", ["--model", "model.gguf"])).name == "model.gguf"


def test_vllms_flags_mean_what_they_mean_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    request = source_request(read_options("chat", ["model.gguf", "--swap-space", "2", "--trust-remote-code"]))
    assert request.options == {"kv_offloading_size": 2.0}
    assert capsys.readouterr().err.count("note: --trust-remote-code: code from") == 1


def test_the_seed_of_a_completion_is_no_setting_of_an_engine() -> None:
    options = read_options("complete", ["http://host", "text", "--seed", "3"])
    assert (source_request(options).options, options.answer_seed) == ({}, 3)


def test_a_server_and_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")
    request = source_request(read_options("chat", ["--url", "http://host", "--model-name", "m"]))
    assert (request.name, request.api_key, request.model_name) == ("http://host", "of the environment", "m")
    assert source_request(read_options("chat", ["http://host", "--api-key", "given"])).api_key == "given"


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
