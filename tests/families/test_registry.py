"""The table of families, and those that other packages add."""

from collections import Counter
from importlib.metadata import EntryPoint

import pytest

from pyllm.errors import ConfigError
from pyllm.families import llama
from pyllm.families.family import Family
from pyllm.families.registry import FAMILIES, GROUP, find_family, find_gguf_family, spelled_architecture

HERE = "tests.families.test_registry"
THEIRS = Family(architectures=("TheirsForCausalLM", "LlamaForCausalLM"), read=llama.read, gguf=llama.FAMILY.gguf)
NO_FAMILY = "a family"


def entry(value: str) -> EntryPoint:
    return EntryPoint("theirs", value, GROUP)


def test_every_architecture_is_of_one_family() -> None:
    names = Counter(name for family in FAMILIES for name in family.architectures)
    gguf = Counter(name for family in FAMILIES if family.gguf for name in family.gguf.architectures)
    assert set((names | gguf).values()) == {1}


def test_unknown_architectures_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'RwkvForCausalLM' is not supported; supported: .*Qwen3"):
        find_family("RwkvForCausalLM", [])
    with pytest.raises(ConfigError, match=r"'rwkv7' is not supported; supported: .*qwen3"):
        find_gguf_family("rwkv7", [])


def test_another_package_adds_a_family_and_replaces_none() -> None:
    offered = [entry(f"{HERE}:THEIRS")]
    assert find_family("TheirsForCausalLM", offered) is THEIRS
    assert find_family("LlamaForCausalLM", offered) is llama.FAMILY
    assert find_gguf_family("llama", offered) is llama.FAMILY


@pytest.mark.parametrize(
    ("value", "message"),
    [(f"{HERE}:NO_FAMILY", "is 'a family', not a Family"), ("no.such:thing", "cannot be imported")],
)
def test_what_is_no_family_is_named(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"model family 'theirs' .*{message}"):
        find_family("TheirsForCausalLM", [entry(value)])


def test_a_text_model_is_no_encoder_of_its_name() -> None:
    assert spelled_architecture("RobertaForCausalLM") == ""
    assert spelled_architecture("RobertaModel") == "RobertaModel"
