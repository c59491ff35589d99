"""The tokenizer made of GGUF fields, against ids recorded from llama.cpp and against the one of transformers.

`record_gguf_tokenizer_cases.py` records `gguf_tokenizer_cases.json`.
"""

import json
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast, XLMRobertaTokenizer

from pyllm.checkpoint.reader import embedded_model, read_checkpoint
from pyllm.checkpoint.vocabularies.gguf_tokenizer import tokenizer_json
from pyllm.checkpoint.vocabularies.pre_tokenizers import PRE_TOKENIZERS
from pyllm.errors import ConfigError
from tests.checkpoint.vocabularies.wordpiece_vocabulary import SPECIAL, gguf_fields, wordpiece_tokens
from tests.tiers import cases

RECORDED = json.loads(Path(__file__).with_name("gguf_tokenizer_cases.json").read_text())
VARIANTS = [(variant, case["ids"]) for case in RECORDED["cases"] for variant in case["variants"]]

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


# In llama.cpp these end a word at a mark, or do not end it where case changes.
_WITHOUT_MARKS = ("tekken", "gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie", "kimi-k2")
_WITHOUT_CASE = ("tiny_aya", "cohere2moe", "youtu", "kimi-k2")


def recorded(**changes: Any) -> Tokenizer:
    """The tokenizer of one of the recorded vocabularies."""
    return _tokenizer(RECORDED["vocabularies"][changes["model"]] | changes)


def small(**changes: Any) -> dict[str, Any]:
    """The fields of a vocabulary of eleven tokens."""
    tokens = ["Ġ", "1", "2", "a", "b", "ab", "<s>", "12", "Ã", "©", "Ã©"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token == "<s>" else 1 for token in tokens],
        "merges": ["a b", "1 2", "Ã ©"],
        "bos_token_id": 6,
    }
    return _fields(values | changes)


def tokens(text: str, **changes: Any) -> list[str]:
    return Tokenizer.from_str(tokenizer_json(small(**changes)).decode()).encode(text).tokens


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    return {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in values.items()}


def _tokenizer(values: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(_fields(values)).decode())


def _name(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items() if not isinstance(each, list))
    return ""


def _is_approximated_by_llama_cpp(pre: str, text: str) -> bool:
    """Whether llama.cpp splits a text in another way than the model's own tokenizer does."""
    if PRE_TOKENIZERS[pre].normalizer and not unicodedata.is_normalized("NFC", text):
        return True
    if pre in _WITHOUT_CASE and re.search("[a-z][A-Z]", text):
        return True
    if pre in ("afmoe", "tiny_aya", "cohere2moe") and re.search(r"\s\s\d", text):
        return True
    if pre == "afmoe" and re.search("[\ue000-\uf8ff]", text):
        return True
    kinds = {unicodedata.category(character) for character in text if character > "\x7f"}
    if pre == "superbpe" and "Nd" in kinds:  # llama.cpp knows digits of ASCII alone there
        return True
    return pre in _WITHOUT_MARKS and bool(kinds & {"Mn", "Mc", "Me", "Lu", "Ll", "Lt"})


def _differs(variant: dict[str, Any], text: str) -> bool:
    """Whether llama.cpp splits a text in another way, or drops marks of it that are no accents."""
    if variant["model"] != "bert":
        return "pre" in variant and _is_approximated_by_llama_cpp(variant["pre"], text)
    lowercase = variant.get("tokenizer.ggml.normalizer.lowercase", True)
    strips = variant.get("tokenizer.ggml.normalizer.strip_accents", lowercase)
    return strips and any(unicodedata.category(character) in ("Mc", "Me") for character in text)


def _is_as_good(text: str, found: list[int], ids: list[int]) -> bool:
    """Whether a unigram tokenizer may differ: see `unigram.py`; a token of llama.cpp's cannot have a NUL."""
    return sorted(found) == sorted(ids) or "\0" in text or not text.replace("<s>", "").strip(" ")


@pytest.mark.parametrize(("variant", "expected"), VARIANTS, ids=_name)
def test_the_ids_are_those_of_llama_cpp(variant: dict[str, Any], expected: list[list[int]]) -> None:
    tokenizer, compared = recorded(**variant), 0
    for text, ids in zip(RECORDED["texts"], expected, strict=True):
        found = tokenizer.encode(text).ids
        if variant["model"] == "t5" and _is_as_good(text, found, ids):
            compared += 1
        elif not _differs(variant, text):
            assert found == ids, text
            compared += 1
    assert compared >= 80


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (True, False), (False, None), (False, True)])
def test_wordpiece_gives_the_ids_of_transformers(lowercase: bool, strip_accents: bool | None) -> None:
    words = wordpiece_tokens(RECORDED["texts"])
    ids = {word: index for index, word in enumerate(words)}
    options = {"do_lower_case": lowercase, "strip_accents": strip_accents, "additional_special_tokens": SPECIAL}
    theirs = BertTokenizer(vocab=ids, **options)
    normalizer = {"lowercase": lowercase, "strip_accents": strip_accents}
    fields = {f"tokenizer.ggml.normalizer.{name}": value for name, value in normalizer.items() if value is not None}
    ours = _tokenizer({"model": "bert", **gguf_fields(words), **fields})
    for text in [*RECORDED["texts"], *TEXTS, "a [MASK] b[SEP]", "x" * 100, "x" * 101]:
        assert ours.encode(text).ids == theirs.encode(text), text
    known = ours.encode("café, 12! isn't").ids
    assert ours.decode(known) == theirs.decode(known, skip_special_tokens=True)


def test_xlm_roberta_gives_the_ids_of_transformers() -> None:
    variant = next(variant for variant, _ in VARIANTS if variant["model"] == "t5" and variant.get("bos_token_id") == 0)
    pairs = list(zip(variant["tokens"], variant["scores"], strict=True))
    map_ = bytes(variant["precompiled_charsmap"])
    ours, theirs = recorded(**variant), XLMRobertaTokenizer(vocab=pairs, _spm_precompiled_charsmap=map_)
    for text in [*RECORDED["texts"], *TEXTS, "a </s> b<unk>"]:
        # Transformers ends words at any whitespace, and this small map, unlike that of the models, keeps some of it.
        spaced = " ".join(text.replace("▁", " ").split())
        found, expected = ours.encode(spaced).ids, theirs.encode(spaced)
        assert found == expected or sorted(found) == sorted(expected), text  # of equal scores, either may be chosen


def test_every_text_of_wordpiece_has_its_ends() -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "▁a", "b"]
    ids = {"unknown_token_id": 0, "cls_token_id": 1, "seperator_token_id": 2}
    values = {"model": "bert", "tokens": words, "token_type": [3, 3, 3, 1, 1]} | ids
    asked = {"add_bos_token": False, "add_eos_token": False, "bos_token_id": 9}
    assert _tokenizer(values | asked).encode("A ab").tokens == ["[CLS]", "a", "a", "##b", "[SEP]"]
    assert _tokenizer(values | {"bos_token_id": 3}).encode("").tokens == ["a", "[SEP]"]
    del values["token_type"]
    assert _tokenizer(values).encode("a[SEP]").tokens == ["[CLS]", "a", "[SEP]", "[SEP]"]


def test_ambiguous_words_keep_their_ids() -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "▁[CLS]", "▁##b", "b", "▁a", "▁", "▁▁", "", ""]
    values = {"model": "bert", "tokens": words, "token_type": [3, 3, 3, *[1] * 8], "unknown_token_id": 0}
    tokenizer = _tokenizer(values | {"bos_token_id": 1, "seperator_token_id": 2})
    assert tokenizer.encode("ab [CLS] ##b a▁ ▁").ids == [1, 6, 5, 1, 0, 0, 0, 6, 7, 8, 2]
    assert [tokenizer.token_to_id(token) for token in ("[CLS]", "▁[CLS]", "##b", "▁##b")] == [1, 3, 5, 4]


def test_every_pre_tokenizer_was_recorded() -> None:
    """After another entry in the table, run record_gguf_tokenizer_cases.py."""
    assert {variant["pre"] for variant, _ in VARIANTS if variant["model"] == "gpt2"} == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("pre", [pre for pre, kind in PRE_TOKENIZERS.items() if kind.normalizer])
def test_some_pre_tokenizers_compose_characters(pre: str) -> None:
    tokenizer = recorded(model="gpt2", pre=pre)
    for text in RECORDED["texts"]:
        assert tokenizer.encode(text).ids == tokenizer.encode(unicodedata.normalize("NFC", text)).ids
    assert tokens("e\u0301", pre=pre) == ["Ã©"]


@pytest.mark.parametrize("pre", sorted({*_WITHOUT_MARKS, *_WITHOUT_CASE}))
def test_cased_words_keep_their_marks(pre: str) -> None:
    split = recorded(model="gpt2", pre=pre).pre_tokenizer.pre_tokenize_str
    text = "हिन्दी नमस्ते ПриветМир cafe\u0301s"
    words = [text[start:end] for _, (start, end) in split(text)]
    assert words == ["हिन्दी", " नमस्ते", " Привет", "Мир", " cafe\u0301s"]


@pytest.mark.parametrize("pre", [pre for pre, kind in PRE_TOKENIZERS.items() if not kind.normalizer])
@settings(max_examples=cases(20))
@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02\x03\x04")))
def test_bytes_decode_to_the_text(pre: str, text: str) -> None:
    tokenizer = _recorded_once(pre)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("afmoe", "x1234567  12ab", ["x", "1", "234", "567", "  ", "12", "ab"]),
        ("tiny_aya", "x 1234567 12", ["x", " ", "1", "234", "567", " ", "12"]),
        ("superbpe", "ab cd 1234567 12", ["ab cd ", "1", "234", "567", " ", "12"]),
        ("kimi-k2", "漢字かなABC", ["漢字", "かな", "ABC"]),
        ("youtu", "中文。한글 ok", ["中文", "。", "한글", " ok"]),
    ],
)
def test_words_of_numbers_and_scripts(pre: str, text: str, words: list[str]) -> None:
    split = recorded(model="gpt2", pre=pre).pre_tokenizer.pre_tokenize_str
    assert [text[start:end] for _, (start, end) in split(text)] == words


@pytest.mark.parametrize("space_prefix", [True, False])
@settings(max_examples=cases(100))
@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁")))
def test_pieces_decode_to_the_text(space_prefix: bool, text: str) -> None:
    assume(not any(special in text for special in ("<unk>", "<s>", "</s>")))  # decoding leaves these out
    tokenizer = _recorded_once(space_prefix)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@cache
def _recorded_once(kind: str | bool) -> Tokenizer:
    if isinstance(kind, str):
        return recorded(model="gpt2", pre=kind)
    return recorded(model="llama", add_space_prefix=kind)


def test_the_best_score_is_merged_first() -> None:
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "aa", "aaa", "▁"]
    values = {"model": "llama", "tokens": pieces, "token_type": [2, 3, 3, *[1] * 8], "add_space_prefix": False}

    def split(text: str, **scores: float) -> list[str]:
        ranked = [scores.get(piece, -9.0) for piece in pieces]
        return _tokenizer(values | {"scores": ranked}).encode(text, add_special_tokens=False).tokens

    assert split("abc", ab=-1.0, bc=-2.0) == ["ab", "c"]
    assert split("abc", ab=-2.0, bc=-1.0) == ["a", "bc"]
    assert split("aaaaa", aa=-1.0, aaa=-2.0) == ["aa", "aaa"]
    assert split("a a", aa=-1.0) == ["a", "▁", "a"]


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


# The vocabulary lacks bytes of these; transformers joins what is left and right of them, llama.cpp and we do not.
_WITHOUT_TOKEN = "\x04\x06\x13\x14\x16\x1d"


@settings(max_examples=cases(300))
@given(
    st.text(
        st.characters(
            exclude_categories=("Cs", "Nd", "Nl", "No"), exclude_characters=_WITHOUT_TOKEN, max_codepoint=0x3FFFF
        )
    )
)
def test_it_equals_that_of_transformers_on_any_text_without_digits(
    ours: Tokenizer, theirs: PreTrainedTokenizerFast, text: str
) -> None:
    assert ours.encode(text).ids == theirs.encode(text)


def test_smollm_takes_every_digit_by_itself(ours: Tokenizer) -> None:
    """As the model's own tokenizer.json and llama.cpp do; transformers' GGUF reader leaves this step out."""
    assert ours.encode("  12").tokens == ["ĠĠ", "1", "2"]
    assert ours.encode("²3").ids == ours.encode("²").ids + ours.encode("3").ids


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["ab", "12", "12", "1"]),
        ("smollm", ["ab", "1", "2", "1", "2", "1"]),
        ("llama-bpe", ["<s>", "ab", "12", "1", "2", "1"]),  # three digits at a time, BOS unless the file says no
        ("qwen2", ["ab", "1", "2", "1", "2", "1"]),
    ],
)
def test_each_pre_tokenizer_treats_digits_in_its_own_way(pre: str, expected: list[str]) -> None:
    assert tokens("ab12121", pre=pre) == expected


def test_the_file_decides_on_the_first_and_the_last_token() -> None:
    assert tokens("ab", add_bos_token=True) == ["<s>", "ab"]
    assert tokens("ab", add_eos_token=True, eos_token_id=7) == ["ab", "12"]
    assert tokens("", add_bos_token=True, add_eos_token=True, eos_token_id=6) == ["<s>", "<s>"]
    assert tokens("ab", pre="llama-bpe", add_bos_token=False) == ["ab"]
    assert tokens("ab", pre="llama-bpe") == ["<s>", "ab"]
    assert tokens("ab", add_sep_token=True) == ["ab"]


def test_special_tokens_are_matched_whole_and_not_decoded() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(small()).decode())
    assert tokenizer.encode("a<s>b").tokens == ["a", "<s>", "b"]
    assert tokenizer.decode([3, 6, 4]) == "ab"


def test_tokens_of_the_user_are_matched_whole_and_decoded() -> None:
    kinds = [1, 1, 1, 1, 1, 4, 3, 1, 1, 1, 1]
    tokenizer = Tokenizer.from_str(tokenizer_json(small(merges=[], token_type=kinds)).decode())
    assert tokenizer.encode("aab").tokens == ["a", "ab"]
    assert tokenizer.decode([3, 5]) == "aab"


def test_a_token_with_the_name_of_a_special_one_is_special() -> None:
    vocabulary = ["a", "<|im_end|>"]
    assert tokens("a<|im_end|>a", tokens=vocabulary, token_type=[1, 1], merges=[]) == ["a", "<|im_end|>", "a"]


def test_bytes_without_a_token_separate_what_is_beside_them() -> None:
    assert tokens("ab") == ["ab"]
    assert tokens("a\x01b") == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "tokenizer.ggml.model 'rwkv' is not supported"),
        ({"model": "bert"}, "has no unknown token among its 11"),
        ({"model": "bert", "unknown_token_id": 0}, "names no SEPERATOR token"),
        ({"pre": "mmbert"}, "tokenizer.ggml.pre 'mmbert' is not supported"),
        ({"merges": None}, "lacks its merges"),
        ({"merges": ["a 1"]}, "not all among its tokens"),
        ({"model": "llama"}, "lacks a score for each token"),
        ({"tokens": []}, "lacks its tokens"),
        ({"token_type": [1]}, "has 11 tokens and 1 types of tokens"),
        ({"tokens": ["a"] * 11}, "'a' twice"),
        ({"add_eos_token": True}, "names no EOS token"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenizer_json(small(**changes))


def test_empty_tokens_have_a_name_that_no_text_has() -> None:
    vocabulary = ["a", "", ""]
    tokenizer = _tokenizer(
        {"model": "gpt2", "pre": "gpt-2", "tokens": vocabulary, "token_type": [1, 1, 1], "merges": []}
    )
    assert tokenizer.get_vocab() == {"a": 0, "[EMPTY_1]": 1, "[EMPTY_2]": 2}


def test_the_chat_template_comes_along() -> None:
    template = read_checkpoint().tokenizer.chat_template
    assert template is not None
    assert "<|im_start|>" in template


def test_pieces_with_ranked_merges_get_a_first_token_whatever_the_file_says() -> None:
    pieces = ["<unk>", "<bos>", "<eos>", "a", "b", "▁", "\n", "\n\n", "ab", "▁ab", "b\n", "<0xC3>", "<0xA9>"]
    types = [2, 3, 3, *[1] * 8, 6, 6]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": False}
    merges = ["b \n", "a b", "▁ ab", "\n \n"]
    values = {"model": "gemma4", "tokens": pieces, "token_type": types, "merges": merges} | ids
    tokenizer = _tokenizer(values)
    encoded = tokenizer.encode("ab ab\n\n\né")
    assert encoded.tokens == ["<bos>", "ab", "▁ab", "\n\n", "\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "ab ab\n\n\né"
    with pytest.raises(ConfigError, match=r"merges .*'a', 'x'.* not all among its tokens"):
        _tokenizer(values | {"merges": ["a x"]})
