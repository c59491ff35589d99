"""Parts of a text give the ids of the whole, whatever is beside a cut; what looks across is never cut."""

import itertools
import string

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers

from pyllm.config.option_reading import engine_config
from pyllm.frontend.text import prompt_segments
from pyllm.frontend.text.prompt_segments import MIN_PART, PromptSegments
from pyllm.launch.resolve import resolve_config
from tests.frontend.text import tiny_tokenizers
from tests.frontend.text.tiny_tokenizers import SPECIAL
from tests.tiers import cases

TEMPLATE = "{{ '<|start|>' + message.content + '<|end|>' }}"
CUT_TOKENS = [*SPECIAL, "<|im_start|>", "<|im_end|>"]

PIECES = st.one_of(
    st.sampled_from([*CUT_TOKENS, "<|endoftext|>", "<tool>", "naïve ✓", "<|", "|>", "<|im_", "start|>", "Hello world"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text("  \t\n\r\u00a0\u3000\u200d", max_size=6),
    st.text("e\u0301\u0308\u093e\u200d🏽👩️ñ가", max_size=5),
    st.text(string.ascii_letters + string.digits + " '.,▁", max_size=12),
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def embedded() -> tuple[tokenizers.Tokenizer, str | None]:
    _, checkpoint = resolve_config(engine_config({}))
    return tokenizers.Tokenizer.from_file(checkpoint.tokenizer.path), checkpoint.tokenizer.chat_template


def metaspace(scheme: str) -> tokenizers.Tokenizer:
    tokenizer = tiny_tokenizers.byte_fallback()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return tokenizer


KINDS = {
    "embedded": embedded,
    "byte_level": lambda: (tiny_tokenizers.byte_level(), TEMPLATE),
    "with_bos": lambda: (tiny_tokenizers.with_bos(), TEMPLATE),
    "byte_fallback": lambda: (tiny_tokenizers.byte_fallback(), TEMPLATE),
    "metaspace": lambda: (metaspace("always"), TEMPLATE),
}


@pytest.fixture(scope="module", params=KINDS)
def cut_tokenizer(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, PromptSegments]:
    tokenizer, template = KINDS[request.param]()
    return tokenizer, PromptSegments.of(tokenizer, template)


def ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@settings(max_examples=cases(150))
@given(text=TEXTS, data=st.data())
def test_parts_give_the_ids_of_the_whole(
    cut_tokenizer: tuple[tokenizers.Tokenizer, PromptSegments], text: str, data: st.DataObject
) -> None:
    tokenizer, segments = cut_tokenizer
    # Behind any occurrence, however near to the one before: `split` takes some of these.
    ends = sorted({place + len(token) for token in segments.tokens for place in _places(text, token)})
    chosen = [end for end in ends if data.draw(st.booleans())]
    parts = [text[start:end] for start, end in itertools.pairwise([0, *chosen, len(text)])]
    assert [token for part in parts for token in ids(tokenizer, part)] == ids(tokenizer, text)


def _places(text: str, token: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(token, place)]


def test_every_kind_can_be_cut(cut_tokenizer: tuple[tokenizers.Tokenizer, PromptSegments]) -> None:
    assert len(cut_tokenizer[1].tokens) == 2


@settings(max_examples=cases(60))
@given(texts=st.lists(st.tuples(st.text("ab ", max_size=3 * MIN_PART), st.sampled_from(SPECIAL)), max_size=8))
def test_parts_are_the_text_and_those_of_what_it_continues(texts: list[tuple[str, str]]) -> None:
    segments = PromptSegments(SPECIAL)
    pieces = [part for pair in texts for part in pair]
    text = "".join(pieces)
    parts = segments.split(text)
    assert "".join(parts) == text
    assert all(len(part) >= MIN_PART and part.endswith(SPECIAL) for part in parts[:-1])
    assert len(parts[-1]) < MIN_PART or not any(token in parts[-1][MIN_PART:] for token in SPECIAL)
    for length in range(len(pieces)):
        earlier = segments.split("".join(pieces[:length]))
        assert parts[: len(earlier) - 1] == earlier[:-1]


def test_a_short_text_and_one_without_such_tokens_stay_whole() -> None:
    short, long = f"{SPECIAL[0]} {SPECIAL[1]}", "x" * 5 * MIN_PART
    assert PromptSegments(SPECIAL).split(short) == [short]
    assert PromptSegments(SPECIAL).split(long) == [long]
    assert PromptSegments(()).split(long + SPECIAL[0] + long) == [long + SPECIAL[0] + long]
    assert PromptSegments(SPECIAL).split("") == [""]


def _with(*added: AddedToken) -> tokenizers.Tokenizer:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_special_tokens(list(added))
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        _with(AddedToken("<space>", rstrip=True, special=True)),
        _with(AddedToken("<space>", lstrip=True, special=True)),
        _with(AddedToken("<word>", single_word=True, special=True)),
        metaspace("first"),
    ],
    ids=["rstrip", "lstrip", "single_word", "metaspace first"],
)
def test_a_tokenizer_that_looks_across_is_not_cut(tokenizer: tokenizers.Tokenizer) -> None:
    assert PromptSegments.of(tokenizer, TEMPLATE).tokens == ()


@pytest.mark.parametrize(
    ("other", "certain"),
    [
        ("x<|end|>", ("<|start|>",)),
        ("<|end|>x", ("<|start|>",)),
        ("x<|e", ("<|start|>",)),
        ("a<", ()),
        ("|>a", SPECIAL),
    ],
)
def test_a_token_that_another_may_overlap_is_no_cut(other: str, certain: tuple[str, ...]) -> None:
    assert PromptSegments.of(_with(AddedToken(other, special=True)), TEMPLATE).tokens == certain


def test_a_token_that_can_overlap_itself_is_no_cut() -> None:
    tokenizer = _with(AddedToken("--", special=True))
    assert PromptSegments.of(tokenizer, f"{TEMPLATE}--").tokens == SPECIAL


def test_what_the_template_does_not_write_is_not_searched() -> None:
    assert PromptSegments.of(tiny_tokenizers.byte_level(), "<|end|>").tokens == ("<|end|>",)
    assert PromptSegments.of(tiny_tokenizers.byte_level(), None).tokens == ()


def test_a_tokenizer_that_does_not_behave_as_thought_is_not_cut() -> None:
    assert prompt_segments._holds(metaspace("first"), SPECIAL[0]) is False
