"""Whatever the tokens and however they are split, the pieces make the text that decoding all of them gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.text.tiny_tokenizers import SPECIAL

TEXTS = [
    "Hello world, the capital of France is Paris.",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 and 😀",
    "e\u0301 a\u0308 \u0301 நி ก็ 각",
    "日本語 العربية עברית",
    "tabs\tand\nnewlines\r\n  spaces  ",
    "\ufffd is a character, too \ufffd",
    "naïve ✓ <tool> naïve",
]
pytestmark = pytest.mark.parametrize("skip", [True, False])


@pytest.mark.parametrize("text", TEXTS)
def test_one_token_at_a_time(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    tokens = tokenizer.encode(text)
    decoder = tokenizer.text_decoder([], skip)
    pieces = [decoder.decode([token]) for token in tokens]
    assert "".join(pieces) == tokenizer.decode(tokens, skip) == text


@pytest.mark.parametrize("text", TEXTS[:5])
def test_byte_fallback_one_token_at_a_time(fallback_tokenizer: Tokenizer, text: str, skip: bool) -> None:
    tokens = fallback_tokenizer.encode(text)
    decoder = fallback_tokenizer.text_decoder([], skip)
    pieces = [decoder.decode([token]) for token in tokens]
    assert "".join(pieces) == fallback_tokenizer.decode(tokens, skip) == text


def test_no_piece_is_half_a_character(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer, skip: bool) -> None:
    for each in (tokenizer, fallback_tokenizer):
        decoder = each.text_decoder([], skip)
        for token in each.encode("🙂é日"):
            assert "\ufffd" not in decoder.decode([token])


def test_a_character_without_its_end_is_left_out(tokenizer: Tokenizer, skip: bool) -> None:
    tokens = tokenizer.encode("ok 🙂")
    assert tokenizer.text_decoder([], skip).decode(tokens[:-1]) == "ok "


def test_a_character_that_begins_in_the_prompt_is_whole(tokenizer: Tokenizer, skip: bool) -> None:
    tokens = tokenizer.encode("ok 🙂!")
    assert tokenizer.text_decoder(tokens[:-2], skip).decode(tokens[-2:]) == "🙂!"


def test_the_space_before_the_first_word_stays(fallback_tokenizer: Tokenizer, skip: bool) -> None:
    prompt = fallback_tokenizer.encode("the capital of")
    tokens = fallback_tokenizer.encode("the capital of Paris")[len(prompt) :]
    decoder = fallback_tokenizer.text_decoder(prompt, skip)
    assert "".join(decoder.decode([token]) for token in tokens) == " Paris"


def test_special_tokens_are_skipped_or_spelt(tokenizer: Tokenizer, skip: bool) -> None:
    tokens = tokenizer.encode(f"a{SPECIAL[0]}b<tool>")
    text = tokenizer.text_decoder([], skip).decode(tokens)
    assert text == ("ab<tool>" if skip else f"a{SPECIAL[0]}b<tool>")


def test_a_token_that_the_vocabulary_does_not_have_is_no_text(tokenizer: Tokenizer, skip: bool) -> None:
    (last,) = tokenizer.encode("naïve ✓")
    padding = last + 5
    tokens = tokenizer.encode("ab")
    assert tokenizer.text_decoder([], skip).decode([tokens[0], padding, tokens[1]]) == "ab"
    assert tokenizer.text_decoder([], skip).decode([padding]) == ""


def test_half_a_surrogate_begins_no_character(tokenizer: Tokenizer, skip: bool) -> None:
    lead, continuation = tokenizer.encode("\ud000")[0], tokenizer.encode("\u2820")[-1]  # ED 80 80, and E2 A0 A0
    decoder = tokenizer.text_decoder([], skip)
    assert [decoder.decode([token]) for token in (lead, continuation)] == ["", "\ufffd\ufffd"]


@given(data=st.data())
def test_any_tokens_in_any_split(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    (last,) = tokenizer.encode("naïve ✓")
    tokens = data.draw(st.lists(st.integers(0, last), max_size=24))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    decoder = tokenizer.text_decoder([], skip)
    pieces = [decoder.decode(tokens[start:end]) for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    whole = tokenizer.decode(tokens, skip)
    text = "".join(pieces)
    # At most one unfinished character is missing at the end.
    assert whole in (text, text + "\ufffd")


@given(text=st.text(max_size=24), data=st.data())
def test_any_text_with_byte_fallback(fallback_tokenizer: Tokenizer, text: str, data: st.DataObject, skip: bool) -> None:
    tokens = fallback_tokenizer.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    decoder = fallback_tokenizer.text_decoder([], skip)
    pieces = [decoder.decode(tokens[start:end]) for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    whole = fallback_tokenizer.decode(tokens, skip)
    assert "".join(pieces) == whole.removesuffix("\ufffd")


@pytest.mark.parametrize("noise", [(0xF0, 0x9F), (0x4A, 0x82, 0x60), (0x82, 0x82, 0x82)])
def test_bytes_that_are_no_character_do_not_stop_a_stream(
    fallback_tokenizer: Tokenizer, skip: bool, noise: tuple[int, ...]
) -> None:
    first_byte = fallback_tokenizer.encode("\0")[1]
    bad = [first_byte + byte for byte in noise]
    after = fallback_tokenizer.encode("the world")
    decoder = fallback_tokenizer.text_decoder([], skip)
    text = "".join(decoder.decode([token]) for token in [*bad, *after, *bad, *after])
    assert text.count("the world") == 2
