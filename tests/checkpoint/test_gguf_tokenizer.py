"""The tokenizer made of GGUF fields, against the one that transformers makes of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pyllm.checkpoint.gguf_tokenizer import tokenizer_json
from pyllm.checkpoint.reader import embedded_model, read_checkpoint

TEXTS = [
    "",
    "The capital of France is",
    "don't I'll they'VE we're you'd",
    "   leading, trailing and \t mixed \n\n\r\n white   space ",
    "def f(x):\n    return x + y[0]\n",
    "naïve café, Straße, ångström",
    "日本語のテキスト、한국어, العربية, עברית, हिन्दी",
    "😀👩\u200d👩\u200d👧 e\u0301 \u00a0 \ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>mid<|endoftext|> text <repo_name> <|im_",
    "year 2024, price 3.50, x1y2z3",
]


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return Tokenizer.from_file(read_checkpoint().tokenizer.path)


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    path = embedded_model()
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def test_it_equals_that_of_transformers(ours: Tokenizer, theirs: PreTrainedTokenizerFast) -> None:
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text), text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    assert ours.get_vocab_size() == len(theirs) == 49152
    assert ours.decode([1, 2, 0]) == theirs.decode([1, 2, 0], skip_special_tokens=True) == ""


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=("Cs", "Nd", "Nl", "No"))))
def test_it_equals_that_of_transformers_on_any_text_without_digits(
    ours: Tokenizer, theirs: PreTrainedTokenizerFast, text: str
) -> None:
    assert ours.encode(text).ids == theirs.encode(text)


def test_smollm_takes_every_digit_by_itself(ours: Tokenizer) -> None:
    """As the model's own tokenizer.json and llama.cpp do; transformers' GGUF reader leaves this step out."""
    assert ours.encode("  12").tokens == ["ĠĠ", "1", "2"]
    assert ours.encode("²3").ids == ours.encode("²").ids + ours.encode("3").ids


def fields(**changes: Any) -> dict[str, Any]:
    tokens = ["Ġ", "1", "2", "a", "b", "ab", "<s>", "12", "Ã", "©", "Ã©"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token == "<s>" else 1 for token in tokens],
        "tokenizer.ggml.merges": ["a b", "1 2", "Ã ©"],
        "tokenizer.ggml.bos_token_id": 6,
    } | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def tokens(text: str, **changes: Any) -> list[str]:
    return Tokenizer.from_str(tokenizer_json(fields(**changes)).decode()).encode(text).tokens


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["ab", "12", "12", "1"]),
        ("smollm", ["ab", "1", "2", "1", "2", "1"]),
        ("llama-bpe", ["<s>", "ab", "12", "1", "2", "1"]),  # three digits at a time, BOS unless the file says no
        ("qwen2", ["ab", "1", "2", "1", "2", "1"]),
    ],
)
def test_each_splitting_treats_digits_in_its_own_way(pre: str, expected: list[str]) -> None:
    assert tokens("ab12121", pre=pre) == expected


def test_qwen2_composes_characters() -> None:
    assert tokens("e\u0301", pre="qwen2", tokens=fields()["tokenizer.ggml.tokens"]) == ["Ã©"]


def test_the_file_decides_on_the_first_token() -> None:
    assert tokens("ab", add_bos_token=True) == ["<s>", "ab"]
    assert tokens("ab", pre="llama-bpe", add_bos_token=False) == ["ab"]
    assert tokens("ab", pre="llama-bpe") == ["<s>", "ab"]
    assert tokens("ab") == ["ab"]


def test_special_tokens_are_matched_whole_and_not_decoded() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(fields()).decode())
    assert tokenizer.encode("a<s>b").tokens == ["a", "<s>", "b"]
    assert tokenizer.decode([3, 6, 4]) == "ab"


def test_the_chat_template_comes_along() -> None:
    template = read_checkpoint().tokenizer.chat_template
    assert template is not None
    assert "<|im_start|>" in template
