"""The tokenizer over the library: special tokens, long texts, limits of the file that must not hold."""

from array import array
from pathlib import Path

import msgspec
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.text import tiny_tokenizers
from tests.frontend.text.tiny_tokenizers import SPECIAL


def test_special_tokens_are_added_where_the_model_has_them(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path)
    assert tokenizer.encode("Hello") == [1, *tokenizer.encode("Hello", add_special_tokens=False)]


def test_limits_in_the_file_do_not_cut_prompts(tmp_path: Path) -> None:
    library = tiny_tokenizers.byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=8)
    tokenizer = tiny_tokenizers.load(library, tmp_path)
    assert len(tokenizer.encode("xyzxyz")) == 6
    assert len(tokenizer.encode("xy")) == 2


def test_a_batch_is_encoded_as_its_texts_are(tokenizer: Tokenizer) -> None:
    texts = ["Hello world", "", "naïve ✓"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_a_text_that_has_no_ids_fails_alone(tokenizer: Tokenizer) -> None:
    first, second, third = tokenizer.encode_packed(["Hello", "\ud83d", ""])
    assert first == array("i", tokenizer.encode("Hello")).tobytes()
    assert isinstance(second, RequestError)
    assert third == b""


def test_what_is_put_around_a_text_is_known_where_nothing_else_is_done(tmp_path: Path) -> None:
    assert tiny_tokenizers.load(tiny_tokenizers.byte_level(), tmp_path).frame == (b"", b"")
    assert tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path).frame == (array("i", [1]).tobytes(), b"")
    library = tiny_tokenizers.byte_level()
    library.post_processor = processors.TemplateProcessing(single="$A <|end|> $A", special_tokens=[("<|end|>", 0)])
    assert tiny_tokenizers.load(library, tmp_path).frame is None


def test_the_least_number_of_tokens_never_exceeds_the_number(tokenizer: Tokenizer) -> None:
    for text in ("", "Hello", "naïve ✓" * 9, "x" * 100, SPECIAL[1] * 3):
        assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.min_tokens("x" * 900) == 100


def test_pieces_of_words_have_no_least_number(tmp_path: Path) -> None:
    """A word that is too long is one token, and spaces are none."""
    library = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "x": 1, "##x": 2}, unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer = tiny_tokenizers.load(library, tmp_path)
    text = "x" * 2000 + " " * 2000
    assert tokenizer.encode(text) == [0]
    assert tokenizer.min_tokens(text) == 0


def test_a_file_that_is_no_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    files = tiny_tokenizers.write(tiny_tokenizers.byte_level(), tmp_path)
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        Tokenizer(msgspec.structs.replace(files, path=str(tmp_path / "missing.json")))


def test_every_token_of_a_text_has_its_bytes(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer) -> None:
    text = "Hello the naïve 🙂 world<|end|>"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == text
    assert tokenizer.token_text(tokens[0]) == "Hello"
    pieces = [fallback_tokenizer.token_bytes(token) for token in fallback_tokenizer.encode("the ï!")]
    assert b"".join(pieces) == " the ï!".encode()
    assert fallback_tokenizer.token_text(fallback_tokenizer.encode("ï")[-1]) == "\ufffd"


def test_an_id_without_a_token_has_no_bytes(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer) -> None:
    for each in (tokenizer, fallback_tokenizer):
        for token in (5000, -1, 1 << 31, 1 << 32):
            assert (each.token_bytes(token), each.token_text(token)) == (b"", "")
