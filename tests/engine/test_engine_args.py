"""The engine's flags in a program of somebody's own, written for vLLM."""

import argparse

import pytest

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.engine.engine_args import EngineArgs, FlexibleArgumentParser
from pyllm.flags.keyword_settings import engine_keywords


def parser_of_a_program() -> FlexibleArgumentParser:
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="tiny.gguf")
    parser.add_argument_group("Sampling parameters").add_argument("--max-tokens", type=int)
    return parser


def test_what_is_given_becomes_a_setting_and_the_rest_keeps_its_default() -> None:
    options = vars(parser_of_a_program().parse_args(["--max_model_len", "8k", "-tp", "2", "--max-tokens", "7"]))
    assert options.pop("max_tokens") == 7
    config = engine_config(engine_keywords(options))
    assert (config.model.model, config.model.max_model_len) == ("tiny.gguf", 8000)
    assert config.parallel.tensor_parallel_size == 2
    assert config.scheduler == EngineConfig().scheduler


def test_vllms_own_flags_are_read_by_the_engine() -> None:
    flags = ["--trust-remote-code", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}']
    options = vars(parser_of_a_program().parse_args([*flags, "--pipeline-parallel-size", "2"]))
    del options["max_tokens"]
    config = engine_config(engine_keywords(options))
    assert (config.scheduler.num_speculative_tokens, config.model.model) == (2, "tiny.gguf")
    assert config.parallel.pipeline_parallel_size == 2


def test_any_parser_takes_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert parser.parse_args(["--no-enable-prefix-caching"]).enable_prefix_caching is False
    with pytest.raises(SystemExit):
        parser.parse_args(["--max-num-seqs", "many"])
    assert "max-num-seqs" in capsys.readouterr().err
