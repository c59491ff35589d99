"""The tokenizer for programs beside that of transformers, on the same files."""

from typing import Any

import msgspec
import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import RequestError
from pyllm.frontend.text.model_tokenizer import ModelTokenizer
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.tiny_model import END, START, write_tiny_model, write_tokenizer

TEXTS = ["", "Hello, world", "  two  spaces", "naïve ✓ 🙂", f"{START}user\nhi{END}", "the cat is on the mat"]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    folder = write_tiny_model(path)
    write_tokenizer(path, merges=["t h", "th e", "i s"])
    return folder


@pytest.fixture(scope="module")
def ours(folder: str) -> ModelTokenizer:
    files = read_checkpoint(folder).tokenizer
    return ModelTokenizer(Tokenizer(files), files)


@pytest.fixture(scope="module")
def theirs(folder: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_the_same_as_transformers(ours: ModelTokenizer, theirs: Any) -> None:
    assert dict(ours(TEXTS)) == {name: value for name, value in theirs(TEXTS).items() if name in ours(TEXTS)}
    for text in TEXTS:
        assert dict(ours(text)) == {name: value for name, value in theirs(text).items() if name in ours(text)}
        assert ours(text).input_ids == ours(text)["input_ids"] == ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.tokenize(text) == theirs.tokenize(text)
        short = {"truncation": True, "max_length": 3}
        assert ours(text, **short).input_ids == theirs(text, **short).input_ids
        for skip in (False, True):
            ids = ours.encode(text)
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    batch = ours(TEXTS).input_ids
    assert ours.batch_decode(batch) == theirs.batch_decode(batch) == ours.decode(batch) == theirs.decode(batch)
    assert ours.decode(64) == theirs.decode(64)


def test_the_same_vocabulary(ours: ModelTokenizer, theirs: Any) -> None:
    assert (len(ours), ours.vocab_size, ours.get_vocab()) == (len(theirs), theirs.vocab_size, theirs.get_vocab())
    for name in ("bos_token", "eos_token", "bos_token_id", "eos_token_id", "chat_template", "is_fast"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert set(ours.all_special_tokens) == set(theirs.all_special_tokens)
    assert ours.convert_tokens_to_ids("the") == theirs.convert_tokens_to_ids("the")
    assert ours.convert_tokens_to_ids(["the", END]) == theirs.convert_tokens_to_ids(["the", END])
    assert ours.convert_tokens_to_ids("no token") is None
    assert ours.convert_ids_to_tokens(257) == theirs.convert_ids_to_tokens(257) == END
    for skip in (False, True):
        ids = [65, 257, 258]
        assert ours.convert_ids_to_tokens(ids, skip) == theirs.convert_ids_to_tokens(ids, skip)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokenize": False},
        {"tokenize": False, "add_generation_prompt": True},
        {"tokenize": True, "return_dict": False, "add_generation_prompt": True},
        {"tokenize": False, "continue_final_message": True},
        {"tokenize": False, "chat_template": "{{ tools[0].name }}{{ mood }}", "tools": [{"name": "a"}], "mood": "b"},
    ],
)
def test_the_same_conversations(ours: ModelTokenizer, theirs: Any, options: dict[str, Any]) -> None:
    for conversation in (CHAT, [CHAT, CHAT[:1]]):
        found, expected = (each.apply_chat_template(conversation, **options) for each in (ours, theirs))
        if isinstance(found, dict):
            found, expected = dict(found), {name: expected[name] for name in found}
        assert found == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_come_back(ours: ModelTokenizer, text: str) -> None:
    assert ours.decode(ours(text).input_ids) == text


def test_numbers_of_numpy_are_ids(ours: ModelTokenizer) -> None:
    ids = np.array(ours.encode("the cat"))
    assert ours.decode(ids) == ours.decode(list(ids)) == "the cat"
    assert ours.decode(ids[0]) == "the"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda tokenizer: tokenizer(5), "^text must be a list of texts, got 5"),
        (lambda tokenizer: tokenizer(["a", 5]), "^text must be a list of texts"),
        (lambda tokenizer: tokenizer("\ud800"), "surrogate"),
        (lambda tokenizer: tokenizer("a", return_tensors="pt"), "^return_tensors must be None: token ids are lists"),
        (lambda tokenizer: tokenizer("a", padding=True), "^padding must be False"),
        (lambda tokenizer: tokenizer("a", paddding=True), "no option paddding"),
        (lambda tokenizer: tokenizer.encode(None), "^text must be a text"),
        (lambda tokenizer: tokenizer.decode("a"), "^token_ids must be a list of token ids"),
        (lambda tokenizer: tokenizer.decode([1.5]), "got one with 1.5"),
        (lambda tokenizer: tokenizer.decode([-1]), "token id -1 is none"),
        (lambda tokenizer: tokenizer.decode(2**40), "token id 1099511627776 is none"),
        (lambda tokenizer: tokenizer.batch_decode(None), "^sequences must be"),
        (lambda tokenizer: tokenizer.convert_ids_to_tokens(None), "^token_ids must be"),
        (lambda tokenizer: tokenizer.convert_tokens_to_ids(5), "^tokens must be"),
        (lambda tokenizer: tokenizer.apply_chat_template("a"), "^conversation must be"),
        (lambda tokenizer: tokenizer.apply_chat_template([]), "^conversation must be"),
        (lambda tokenizer: tokenizer.apply_chat_template(["a"]), "^conversation.* must be a dict"),
        (lambda tokenizer: tokenizer.apply_chat_template(CHAT, chat_template="{{"), "does not compile"),
        (lambda tokenizer: tokenizer.apply_chat_template(CHAT, chat_template=5), "^chat_template must be a text"),
        (lambda tokenizer: tokenizer.apply_chat_template(CHAT, return_tensors="pt"), "^return_tensors must be"),
    ],
)
def test_what_it_cannot_do_is_refused(ours: ModelTokenizer, call: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        call(ours)


def test_a_tokenizer_without_chat_template_names_the_remedies(folder: str) -> None:
    files = msgspec.structs.replace(read_checkpoint(folder).tokenizer, chat_template=None)
    tokenizer = ModelTokenizer(Tokenizer(files), files)
    with pytest.raises(RequestError, match="this model has no chat template"):
        tokenizer.apply_chat_template(CHAT)
    assert tokenizer.apply_chat_template(CHAT, chat_template="given", tokenize=False) == "given"
