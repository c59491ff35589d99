"""Each family's tokens make the prompt for what is between two texts."""

from pathlib import Path

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.text.fill_in_the_middle import add_middle_stops, files_prompt, middle_prompt
from pyllm.parameters.sampling_params import SamplingParams
from tests.frontend.text import tiny_tokenizers


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<fim_prefix>a<fim_suffix>b<fim_middle>"),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"),  # noqa: RUF001
        (["[PREFIX]", "[SUFFIX]", "[MIDDLE]"], "[SUFFIX]b[PREFIX]a"),
    ],
)
def test_the_prompt_is_in_the_words_of_the_family(tmp_path: Path, tokens: list[str], prompt: str) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens([*tokens, "<|fim_pad|>"])
    tokenizer = tiny_tokenizers.load(made, tmp_path)
    assert middle_prompt(tokenizer, "a", "b") == prompt
    pad = made.token_to_id("<|fim_pad|>")
    for given, stops in ((), (pad,)), ((5,), (5, pad)), ((pad, 5), (pad, 5)):
        params = SamplingParams(stop_token_ids=given)
        add_middle_stops(params, tokenizer)
        assert params.stop_token_ids == stops


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (
            ["<|repo_name|>", "<|file_sep|>"],
            "<|repo_name|>myproject\n<|file_sep|>a\nx\n<|file_sep|>b\ny<|file_sep|>filename\n",
        ),
        (["<file_sep>"], "<file_sep>a\nx\n<file_sep>b\ny<file_sep>filename\n"),
        (["<reponame>"], "<reponame>myproject\n\n\n--- snippet ---\n\nx\n\n\n--- snippet ---\n\ny"),
        ([], "\n\n--- snippet ---\n\nx\n\n\n--- snippet ---\n\ny"),
    ],
)
def test_other_files_stand_before_it_in_the_words_of_the_family(tmp_path: Path, tokens: list[str], prompt: str) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(tokens)
    tokenizer = tiny_tokenizers.load(made, tmp_path)
    assert files_prompt(tokenizer, [("a", "x\n"), ("b", "y")]) == prompt
    assert files_prompt(tokenizer, []) == ""


def test_a_model_without_such_tokens_is_named(tmp_path: Path) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>"])
    with pytest.raises(RequestError, match="no tokens to fill in the middle") as refused:
        middle_prompt(tiny_tokenizers.load(made, tmp_path), "a", "b")
    assert refused.value.parameter == "suffix"
