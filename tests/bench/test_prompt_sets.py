"""Prompts: the same for the same source, never one twice, and of the lengths that were asked for."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.prompt_sets import PromptSource, warm_up_prompts
from pyllm.errors import ConfigError


@pytest.mark.parametrize("name", ["natural", "random"])
def test_no_prompt_comes_twice(name: str) -> None:
    source = PromptSource(name, input_tokens=8)  # type: ignore[arg-type]  # one of its names
    prompts = source.prompts(300)
    assert prompts == source.prompts(300)
    beginnings = {prompt.text[:20] for prompt in [*prompts, *warm_up_prompts(3)]}
    assert len(beginnings) > 250  # so that a prefix cache knows few of them
    assert len({prompt.text for prompt in prompts}) == 300
    assert PromptSource(name, input_tokens=8, seed=1).prompts(300) != prompts  # type: ignore[arg-type]  # as above


def test_rounds_go_on_where_the_last_one_ended() -> None:
    whole = PromptSource().prompts(100)
    assert PromptSource(first=60).prompts(40) == whole[60:]


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 9), st.floats(0, 0.99))
def test_random_prompts_have_the_lengths(mean: int, output: int, prefix: int, ratio: float) -> None:
    source = PromptSource("random", None, output, mean, prefix, ratio)
    prompts = source.prompts(20)
    spread = round(mean * ratio)
    lengths = [len(prompt.text.split()) - prefix for prompt in prompts]
    assert all(max(1, mean - spread) <= length <= max(1, mean + spread) for length in lengths)
    assert len({tuple(prompt.text.split()[:prefix]) for prompt in prompts}) == 1


def test_sharegpt_files_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because it is so."}]
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]
    unusable = [{"conversations": turns[1:]}, {"conversations": turns[:1]}, {"conversations": "no"}, {}, 3]
    path.write_text(json.dumps([{"conversations": turns}, {"messages": messages}, *unusable]))
    prompts = PromptSource("sharegpt", path).prompts(2)
    assert {(prompt.text, prompt.output_tokens) for prompt in prompts} == {("Why?", 4), ("How?", 1)}
    assert {prompt.output_tokens for prompt in PromptSource("sharegpt", path, 9).prompts(2)} == {9}


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, "No such file"), ("{", "is not JSON"), ("{}", "not a list"), ("[{}]", "has no conversation")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, error: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=error):
        PromptSource("sharegpt", path).prompts(1)
