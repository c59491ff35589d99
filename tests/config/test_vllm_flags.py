"""The table of vLLM's flags against the list of those that people use."""

import json
from itertools import chain
from pathlib import Path

import pytest

from pyllm.config.vllm_flags import OTHERS, VLLM_FLAGS, VllmFlag, explain_flag

COMMON: list[str] = list(chain(*json.loads(Path(__file__).with_name("vllm_flags.json").read_text()).values()))


def test_every_flag_that_people_use_is_in_the_table() -> None:
    assert len(COMMON) > 120
    assert set(COMMON) - set(VLLM_FLAGS) == set()


def test_a_flag_is_in_one_place() -> None:
    others = list(chain(*OTHERS.values()))
    assert len(others) > 140
    assert len(set(others)) == len(others)
    assert set(others) & set(VLLM_FLAGS) == set()


@pytest.mark.parametrize("flag", VLLM_FLAGS.values(), ids=lambda flag: flag.name)
def test_what_is_not_ours_says_why(flag: VllmFlag) -> None:
    assert bool(flag.text) or flag.meaning == "ours"
    assert not flag.else_text or flag.meaning == "always"
    # A boolean can always be turned the way that it is here.
    if flag.is_boolean and flag.meaning != "ours":
        assert flag.taken
        assert set(flag.taken) <= {"true", "false"}


def test_flags_are_explained() -> None:
    assert explain_flag("enable-lora") == ""
    assert "merge the adapter" in explain_flag("lora-extra-vocab-size")
    assert "NUMA" not in explain_flag("numa-bind")
    assert "no meaning here: " in explain_flag("numa-bind")
    assert explain_flag("no-numa-bind") == explain_flag("numa-bind")
    assert explain_flag("worker-cls").endswith("no meaning here")
    assert explain_flag("max-num-seqs") == explain_flag("never-heard-of") == ""
