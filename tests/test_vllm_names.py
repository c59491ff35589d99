"""Names that programs import from vLLM, and what the engines say of methods that they do not have."""

import argparse
from typing import Any

import pytest

import pyllm
from pyllm import LLM, AsyncEngine, EngineArgs, LLMEngine, PoolingParams, TextPrompt, TokensPrompt
from pyllm.engine.prompts import read_prompt
from pyllm.errors import ConfigError, RequestError
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING
from pyllm.parameters.vllm_parameters import METHODS


def test_names_of_vllm_are_ours() -> None:
    assert pyllm.AsyncLLMEngine is AsyncEngine
    assert pyllm.AsyncEngineArgs is EngineArgs
    assert read_prompt(TextPrompt(prompt="x"), DEFAULT_SCHEDULING).content == "x"
    assert read_prompt(TokensPrompt(prompt_token_ids=[1, 2]), DEFAULT_SCHEDULING).content == [1, 2]
    assert PoolingParams(dimensions=3).dimensions == 3
    assert PoolingParams(use_activation=False, task="classify").use_activation is False
    with pytest.raises(RequestError, match="task can only be None here, got 'token_embed'"):
        PoolingParams(task="token_embed")


@pytest.mark.parametrize("kind", [LLM, AsyncEngine, LLMEngine])
def test_an_engine_is_made_of_its_arguments(kind: Any) -> None:
    arguments = EngineArgs.from_cli_args(argparse.Namespace(model="/nowhere/at/all", max_num_seqs=3))
    assert arguments.options == {"model": "/nowhere/at/all", "max_num_seqs": 3}
    assert EngineArgs("/nowhere/at/all", max_num_seqs=3).options == arguments.options
    with pytest.raises(ConfigError, match="/nowhere/at/all"):
        kind.from_engine_args(arguments)
    with pytest.raises(RequestError, match="engine_args must be a EngineArgs"):
        kind.from_engine_args({"model": "x"})


@pytest.mark.parametrize("kind", [LLM, AsyncEngine, LLMEngine])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_there_is_not_says_what_to_use(kind: type, name: str) -> None:
    if name in vars(kind):  # That is for the others.
        return
    engine = object.__new__(kind)  # not started
    with pytest.raises(AttributeError, match=f"^{kind.__name__} has no {name}: ") as refused:
        getattr(engine, name)
    assert refused.value.name == name
    assert not hasattr(engine, name)
    with pytest.raises(AttributeError, match=f"^{kind.__name__} has no genrate$"):
        _ = engine.genrate  # type: ignore[attr-defined]
