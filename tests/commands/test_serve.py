"""vLLM's command lines, read by `pyllm serve` as far as the configuration."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from pyllm.cli import read_options
from pyllm.config.engine_settings import EngineConfig, LogConfig
from pyllm.config.option_reading import config_part
from pyllm.config.server_settings import ServerConfig
from pyllm.config.vllm_flags import VLLM_FLAGS, VllmFlag
from pyllm.errors import ConfigError
from pyllm.flags.engine_arguments import read_engine
from pyllm.flags.settings_flags import given_settings

FIXTURE = Path(__file__).parent.parent / "config/vllm_flags.json"
COMMON: list[str] = list(chain(*json.loads(FIXTURE.read_text()).values()))
DEFAULTS = (EngineConfig(), ServerConfig())
# A value of each flag of ours that is no default; booleans are found by not being here.
VALUES = {
    "model": "a", "served-model-name": "a", "tokenizer": "a", "revision": "a", "tokenizer-revision": "a",
    "download-dir": "a", "hf-token": "a", "hf-overrides": '{"a": 1}', "dtype": "half", "quantization": "awq_marlin",
    "max-model-len": "8k", "seed": "1", "model-impl": "vllm", "load-format": "dummy", "generation-config": "vllm",
    "override-generation-config": '{"temperature": 0.5}', "max-logprobs": "5", "block-size": "32",
    "logprobs-mode": "processed_logprobs",
    "gpu-memory-utilization": "0.5", "kv-cache-dtype": "fp8_e4m3", "kv-cache-memory-bytes": "64MiB",
    "num-gpu-blocks-override": "9", "kv-offloading-size": "1", "swap-space": "4", "max-num-batched-tokens": "2K",
    "max-num-seqs": "9", "max-num-queued-reqs": "9", "max-num-queued-tokens": "9", "scheduling-policy": "priority",
    "long-prefill-token-threshold": "9", "watermark": "0.2", "tensor-parallel-size": "2", "api-server-count": "2",
    "data-parallel-size": "2", "pipeline-parallel-size": "2",
    "distributed-executor-backend": "external_launcher",
    "speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}',
    "structured-outputs-config": '{"reasoning_parser": "think"}',
    "lora-modules": "sql=adapters/sql", "max-loras": "2", "max-lora-rank": "64", "max-cpu-loras": "8",
    "kv-transfer-config": '{"kv_connector": "StoreConnector", "kv_role": "kv_both"}',
    "kv-events-config": '{"enable_kv_cache_events": true}', "compilation-config": "0",
    "prefix-caching-hash-algo": "sha256_cbor",
    "attention-backend": "TORCH_SDPA",
    "tool-call-parser": "hermes", "reasoning-parser": "qwen3", "chat-template": "a",
    "default-chat-template-kwargs": '{"enable_thinking": false}', "response-role": "model", "host": "::1", "port": "1",
    "uds": "a", "api-key": "a", "root-path": "/a", "middleware": "a.B", "allowed-origins": '["*"]',
    "allowed-methods": '["GET"]', "allowed-headers": '["x-a"]', "ssl-keyfile": "a", "ssl-certfile": "a",
    "ssl-ca-certs": "a", "ssl-cert-reqs": "1", "sse-keep-alive-interval": "1", "shutdown-timeout": "1",
    "max-log-len": "9", "spec-tokens": "3", "log-config-file": "a", "logging-config": '{"formatter": "json"}',
    "otlp-traces-endpoint": "http://a",
}  # fmt: skip
ON_BY_DEFAULT = {"enable-prefix-caching", "async-scheduling"}


def read(*arguments: str) -> tuple[EngineConfig, ServerConfig, Sequence[str]]:
    options = read_options("serve", arguments)
    engine, notices = read_engine(options)
    return engine, config_part(ServerConfig, given_settings(options, ServerConfig)), notices


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_code:
        read(*arguments)
    assert exit_code.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def flags_of(*meanings: str) -> list[VllmFlag]:
    return [VLLM_FLAGS[name] for name in dict.fromkeys([*COMMON, *VLLM_FLAGS]) if VLLM_FLAGS[name].meaning in meanings]


def name_of(flag: VllmFlag) -> str:
    return flag.name


@pytest.mark.parametrize("flag", [flag for flag in flags_of("ours") if flag.name != "config"], ids=name_of)
def test_a_flag_of_ours_changes_the_configuration(flag: VllmFlag) -> None:
    if flag.name in VALUES:
        found = read(flag.flag, VALUES[flag.name])[:2]
        assert read(f"{flag.flag.replace('-', '_').replace('__', '--', 1)}={VALUES[flag.name]}")[:2] == found
        for alias in flag.aliases:
            assert read(alias, VALUES[flag.name])[:2] == found
    else:
        turned = f"--no-{flag.name}" if flag.name in ON_BY_DEFAULT else flag.flag
        found = read(turned)[:2]
        other = flag.flag if flag.name in ON_BY_DEFAULT else f"--no-{flag.name}"
        assert read(other)[:2] == DEFAULTS
    assert found != DEFAULTS


@pytest.mark.parametrize("flag", flags_of("always"), ids=name_of)
def test_a_flag_that_is_always_so_is_taken_with_a_notice(flag: VllmFlag, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [flag.flag] if flag.is_boolean else [flag.flag, flag.taken[0] if flag.taken else "anything"]
    engine, server, notices = read(*arguments)
    assert (engine, server) == DEFAULTS
    assert notices == [f"{flag.flag}: {flag.text}"]
    if flag.else_text:
        other = [f"--no-{flag.name}"] if flag.is_boolean else [flag.flag, "anything"]
        assert flag.else_text in refusal(capsys, *other)


@pytest.mark.parametrize("flag", flags_of("refused"), ids=name_of)
def test_a_refused_flag_says_what_to_use(flag: VllmFlag, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (flag.flag, *flag.aliases):
        assert flag.text in refusal(capsys, name, *([] if flag.is_boolean else ["9"]))
    for value in flag.taken:
        harmless = [f"--no-{flag.name}"] if flag.is_boolean else [flag.flag, value]
        assert read(*harmless) == (*DEFAULTS, [])


def test_a_command_line_of_vllm() -> None:
    engine, server, notices = read(
        *("Qwen/Qwen3-0.6B", "-tp", "2", "--max_model_len", "8k", "--gpu-memory-utilization", "0.85", "-O3"),
        *("--served-model-name", "qwen", "gpt", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens", "4"),
        *("--swap-space", "2", "--trust-remote-code", "--limit-mm-per-prompt", '{"image": 0}', "-dp", "1"),
        *("--middleware", "a.B", "--middleware", "c.D", "--api-key", "x", "y", "--hf-token"),
    )
    assert engine.model.model == "Qwen/Qwen3-0.6B"
    assert engine.model.served_model_name == ("qwen", "gpt")
    assert engine.model.max_model_len == 8000
    assert engine.scheduler.num_speculative_tokens == 4
    assert engine.cache.kv_offloading_size == 4 << 30  # 2 GiB for each of two ranks
    assert not engine.device.enforce_eager
    assert server.middleware == ("a.B", "c.D")
    assert server.api_key == ("x", "y")
    assert len(notices) == 4


def test_the_context_may_be_left_to_the_model() -> None:
    assert read("--max-model-len", "auto")[0] == read("--max-model-len=-1")[0] == EngineConfig()
    assert read("--max-model-len", "8K")[0].model.max_model_len == 8192


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "model: from/file\nport: 1\nmax-num-seqs: 3\nmiddleware: a.B\nserved-model-name: [a, b]\n"
        "enable-prefix-caching: false\nspeculative_config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    engine, server, _ = read("my/model", "--port", "2", "--middleware", "c.D", "--config", str(file))
    assert (engine.model.model, server.port, engine.scheduler.max_num_seqs) == ("my/model", 2, 3)
    assert (server.middleware, engine.model.served_model_name) == (("c.D",), ("a", "b"))
    assert (engine.cache.enable_prefix_caching, engine.scheduler.num_speculative_tokens) == (False, 2)
    assert read("--config", str(file))[0].model.model == "from/file"
    assert read("--config", str(file), "--model", "other")[0].model.model == "other"


def test_a_model_that_is_named_twice_is_refused_unless_it_is_the_same(tmp_path: Path) -> None:
    assert read("a", "--model", "a")[0].model.model == "a"
    with pytest.raises(ConfigError, match="a and --model b both say which model"):
        read("a", "--model", "b")
    file = tmp_path / "server.yaml"
    file.write_text("model: from/file")
    with pytest.raises(ConfigError, match="a and --model b both"):
        read("a", "--model", "b", "--config", str(file))


def test_an_error_in_the_file_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("max-num-seq: 3\n")
    text = refusal(capsys, "--config", str(file))
    assert f"{file}: unknown flag --max-num-seq: did you mean --max-num-seqs?" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--speculative-config", '{"method": "eagle", "model": "a"}'], "no method 'eagle'"),
        (["--speculative-config", '{"model": "a"}'], "ngram"),
        (["--speculative-config", '{"method": "ngram", "draft": 1}'], "draft has no meaning"),
        (["--speculative-config", "ngram"], "JSON object"),
        (["--structured-outputs-config.disable_any_whitespace", "true"], "always false"),
        (["--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "nats"}'], "no publisher 'nats'"),
        (["--kv-events-config", '{"socket": 1}'], "socket has no meaning"),
        (["--logging-config.configure_logging", "false"], "always true"),
        (["--logging-config.formatter", "xml"], "log_format"),
        (["--prefix-caching-hash-algo", "md5"], "must be sha256_cbor"),
        (["-O", "fast"], "JSON object"),
        (["--swap-space", "much"], "GiB"),
        (["--swap-space", "inf"], "kv_offloading_size"),
    ],
)
def test_nested_settings_without_a_meaning_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(*arguments)


def test_lists_of_sizes_take_no_model_away() -> None:
    engine, _, notices = read("--cudagraph-capture-sizes", "1", "2", "4", "--max-num-seqs", "3", "a")
    assert (engine.model.model, engine.scheduler.max_num_seqs) == ("a", 3)
    assert [notice.partition(":")[0] for notice in notices] == ["--cudagraph-capture-sizes"]


def test_vllms_configuration_of_the_log_is_that_of_ours() -> None:
    engine, _, notices = read("--logging-config", '{"log_level": "DEBUG", "pylogging_config_file": "a"}')
    assert engine.log == LogConfig(log_config_file="a")
    assert notices == ["--logging-config: PYLLM_LOG_LEVEL sets the level of the whole log"]


def test_our_own_flags_win_over_vllms_nested_ones() -> None:
    nested = '{"method": "ngram", "num_speculative_tokens": 3}'
    engine, _, _ = read("--speculative-config", nested, "--num-speculative-tokens", "0")
    assert engine.scheduler.num_speculative_tokens == 0


def test_backends_of_constraints_are_taken_with_a_notice() -> None:
    assert "llguidance" in read("--structured-outputs-config.backend", "xgrammar")[2][0]
    assert read("--structured-outputs-config.backend", "guidance")[2] == []
