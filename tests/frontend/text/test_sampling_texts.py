"""Bad words become the tokens that they are wherever they can begin; a form becomes a grammar, once."""

import pytest
from tokenizers import models, pre_tokenizers

from pyllm.checkpoint.reader import embedded_model, read_checkpoint
from pyllm.client.submission import prepare
from pyllm.errors import RequestError
from pyllm.frontend.text.sampling_texts import resolve_texts, resolve_texts_aside
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.vocabulary import Vocabulary
from pyllm.parameters.sampling_params import MAX_BAD_WORDS, SamplingParams
from pyllm.parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams
from tests.client.fake_core import MODEL
from tests.frontend.text import tiny_tokenizers


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    """SmolLM2's, with 49,152 tokens."""
    return Tokenizer(read_checkpoint(str(embedded_model())).tokenizer)


def banned(tokenizer: Tokenizer, *words: str) -> list[list[int]]:
    params = SamplingParams(bad_words=words)
    resolve_texts(params, tokenizer)
    assert params.bad_words == ()
    forms = list(map(list, params.bad_words_token_ids))
    resolve_texts(params, tokenizer)
    assert params == SamplingParams(bad_words_token_ids=forms)
    return forms


def is_banned(forms: list[list[int]], tokens: list[int]) -> bool:
    return any(tokens[at : at + len(form)] == form for form in forms for at in range(len(tokens)))


def test_a_word_is_banned_after_a_space_too_however_many_tokens_it_has_there(real: Tokenizer) -> None:
    assert (real.token_names(ids(real, "knew")), real.token_names(ids(real, " knew"))) == (["k", "new"], ["Ġknew"])
    assert sorted(banned(real, "knew")) == sorted([ids(real, "knew"), ids(real, " knew")])
    assert banned(real, "  knew") == banned(real, "knew")


@pytest.mark.parametrize("word", ["knew", "the", "Paris", "unbelievable", "isn't", "2024", "日本", "naïve", "U.S", "x"])
@pytest.mark.parametrize("kind", ["real", "tokenizer", "fallback_tokenizer", "joining"])
def test_a_word_is_banned_wherever_it_comes(word: str, kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    forms = banned(tokenizer, word)
    for before in ("", "everyone ", "Well, ", "a\n", "(", "a(", '"', "- ", "x.", "/", "\t", "1: "):
        for after in ("", " it", ".", "\n"):
            assert is_banned(forms, ids(tokenizer, before + word + after)), before


@pytest.fixture(scope="module")
def joining(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As Qwen's and DeepSeek's, a sign before a word belongs to it: `(k` is one token."""
    made = tiny_tokenizers.byte_level()
    vocabulary = made.get_vocab(with_added_tokens=False)
    made.model = models.BPE(vocabulary | {"(k": max(vocabulary.values()) + 1}, [("(", "k")])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tiny_tokenizers.load(made, tmp_path_factory.mktemp("joining"))


def test_a_sign_may_be_part_of_a_words_first_token(joining: Tokenizer) -> None:
    assert joining.token_names(ids(joining, "(knew"))[0] == "(k"
    assert ids(joining, "(knew") in banned(joining, "knew")


def test_signs_are_banned_beside_others(real: Tokenizer) -> None:
    for word in ("!", "...", "etc.", "C++", "->", "=>", "!=", "--", "*/"):
        forms = banned(real, word)
        for before in ("", " ", '"', "so ", "X", "x ", "("):
            for after in ("", '"', '"\n\n', ")", ",", " it", "”", "'", ">", "=", "(", "[]", '");'):
                assert is_banned(forms, ids(real, f"{before}{word}{after} the")), (word, before, after)


def test_what_ends_with_a_banned_form_is_no_form_of_its_own(tokenizer: Tokenizer) -> None:
    assert banned(tokenizer, "Hello", " ab") == [ids(tokenizer, "Hello"), ids(tokenizer, "ab")]
    params = SamplingParams(bad_words=["ab"], bad_words_token_ids=[[7]])
    resolve_texts(params, tokenizer)
    assert params.bad_words_token_ids == [[7], ids(tokenizer, "ab")]


class Long(Tokenizer):
    """Has 2,000 tokens for each text, other ones for each."""

    vocabulary = Vocabulary([""] * 2**10)

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        assert not add_special_tokens
        return [[self._tokens.setdefault(text, len(self._tokens))] * 2000 for text in texts]


def test_as_many_words_as_may_be_fit_and_too_many_tokens_are_refused(real: Tokenizer) -> None:
    assert len(banned(real, *(f"unbelievable{number}" for number in range(MAX_BAD_WORDS)))) >= 2 * MAX_BAD_WORDS
    text = r"bad_words must be at most 65536 tokens in all the forms that they have, most of them of 'word', got"
    with pytest.raises(RequestError, match=text) as refused:
        banned(Long(), "word")
    assert refused.value.parameter == "bad_words"


def test_a_space_after_a_word_is_part_of_what_follows(real: Tokenizer) -> None:
    for word in ("trailing ", "n\t", "->  "):
        assert banned(real, word) == banned(real, word.strip())


@pytest.mark.parametrize("words", [[" "], ["x", "\n\t"]])
def test_a_word_of_spaces_is_refused(tokenizer: Tokenizer, words: list[str]) -> None:
    with pytest.raises(RequestError, match="nothing but spaces") as refused:
        resolve_texts(SamplingParams(bad_words=words), tokenizer)
    assert refused.value.parameter == "bad_words"


async def test_a_form_is_a_grammar_afterwards(tokenizer: Tokenizer) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]), bad_words=["x"])
    await resolve_texts_aside(params, tokenizer)
    resolved = params.structured_outputs
    assert resolved == ResolvedConstraint(grammar='start: "a" | "b"')
    resolve_texts(params, tokenizer)
    assert params.structured_outputs is resolved
    submit = prepare([1], params, MODEL)
    assert (submit.sampling.grammar, len(submit.sampling.bad_words)) == ('start: "a" | "b"', 1)


async def test_without_texts_parameters_stay_as_they_are(tokenizer: Tokenizer) -> None:
    params = SamplingParams(temperature=0.5)
    await resolve_texts_aside(params, tokenizer)
    assert params == SamplingParams(temperature=0.5)
