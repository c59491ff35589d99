"""The tokenizer of a folder: tokens that only files beside tokenizer.json name, as transformers sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from pyllm.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.tiny_model import CHAT_TEMPLATE, END, write_tiny_model

NEW = "<|new_tok|>"
TEXT = f"{NEW}hi{END}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, files: dict[str, Any], **tokenizer_config: Any) -> Path:
    """A folder whose tokenizer.json has no added tokens but <|start|>, with these files and fields."""
    write_tiny_model(folder, vocab_size=300)
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = {token: index for token, index in document["model"]["vocab"].items() if index < 258}
    document["model"]["vocab"] = vocabulary
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] != END]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {"bos_token": "<|start|>", "tokenizer_class": "PreTrainedTokenizerFast"} | tokenizer_config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def decoder(*tokens: tuple[int, str]) -> dict[str, Any]:
    return {str(index): {"content": token, "special": True, "normalized": False} for index, token in tokens}


@pytest.mark.parametrize(
    ("files", "config"),
    [
        ({}, {"added_tokens_decoder": decoder((257, END), (258, NEW)), "eos_token": END}),
        ({"added_tokens.json": {NEW: 258}}, {"eos_token": END}),
        ({"added_tokens.json": {NEW: 258.0}}, {"eos_token": END}),
        ({}, {"added_tokens_decoder": {"300": {"content": None}} | decoder((258, NEW)), "eos_token": END}),
        ({}, {"added_tokens_decoder": decoder((257, END), (258, NEW)), "eos_token": END, "odd": float("inf")}),
        ({"added_tokens.json": {NEW: 258}, "special_tokens_map.json": {"eos_token": END}}, {}),
        ({"added_tokens.json": {NEW: 258}, "special_tokens_map.json": {"eos_token": {"content": END}}}, {}),
        ({"added_tokens.json": {NEW: 258}, "special_tokens_map.json": {"eos_token": END}}, {"eos_token": "h"}),
    ],
)
def test_the_union_is_that_of_transformers(tmp_path: Path, files: dict[str, Any], config: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", files, **config)
    found = read_huggingface_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert Tokenizer(found).encode(TEXT) == theirs.encode(TEXT) == [258, 104, 105, 257]
    assert (found.eos_token, found.eos_token_ids) == (theirs.eos_token, (theirs.eos_token_id,)) == (END, (257,))
    assert found.num_tokens == 258


TWO = {"image_token": NEW, "boi_token": "<|boi|>"}
LSTRIP = {"content": NEW, "lstrip": True, "normalized": False, "__type": "AddedToken"}


@pytest.mark.parametrize(
    ("files", "config"),
    [
        ({}, {"extra_special_tokens": [NEW, "<|boi|>"]}),
        ({}, {"additional_special_tokens": [NEW, "<|boi|>"]}),
        ({}, {"extra_special_tokens": TWO}),
        ({}, {"model_specific_special_tokens": TWO}),
        ({}, TWO),
        ({}, TWO | {"image_token": LSTRIP}),
        ({}, {"pad_token": NEW, "add_bos_token": False, "boi_token": "<|boi|>"}),
        ({"special_tokens_map.json": TWO}, {}),
        ({"special_tokens_map.json": {"extra_special_tokens": list(TWO.values())}}, {}),
        (
            {"added_tokens.json": {"<|boi|>": 259}},
            {"added_tokens_decoder": decoder((258, NEW)), "boi_token": "<|boi|>"},
        ),
    ],
)
def test_tokens_without_an_id_get_the_next_ones(tmp_path: Path, files: dict[str, Any], config: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", files, eos_token=END, **config)
    ours, theirs = Tokenizer(read_huggingface_tokenizer(folder)), AutoTokenizer.from_pretrained(folder)
    text = f"a {NEW} b<|boi|>{END}"
    assert ours.encode(text) == theirs.encode(text)
    assert {258, 259} <= set(ours.encode(text))
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_without_room_in_the_embedding_tokens_are_named_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "model", {"special_tokens_map.json": TWO | {"eot_token": "<|eot|>"}})
    (folder / "config.json").write_text(json.dumps({"vocab_size": 9, "text_config": {"vocab_size": 258}}))
    ours = Tokenizer(read_huggingface_tokenizer(folder))
    assert max(ours.encode(f"{NEW}<|boi|>")) < 258
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert f"{NEW}, <|boi|>, <|eot|> are not in the vocabulary, and the embedding's 258 rows" in warning


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"pad_token": NEW},
        {"image_token": NEW},
        {"additional_special_tokens": [NEW]},
        {"added_tokens_decoder": {"258": {"content": NEW, "special": True, "normalized": False}}},
        {"added_tokens_decoder": {"258": {"content": NEW, "lstrip": True, "normalized": False}}},
        {"added_tokens_decoder": {"258": {"content": NEW, "normalized": False}}, "image_token": NEW},
    ],
)
@pytest.mark.parametrize("own", [{}, {"special": True}, {"rstrip": True}])
def test_other_files_say_what_an_added_token_is(tmp_path: Path, config: dict[str, Any], own: dict[str, bool]) -> None:
    folder = write(tmp_path / "model", {}, eos_token="<|start|>", **config)
    document = json.loads((folder / "tokenizer.json").read_text())
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False) | own
    document["model"]["vocab"][END] = 257
    document["added_tokens"].append(token | {"id": 258, "content": NEW})
    (folder / "tokenizer.json").write_text(json.dumps(document))
    ours, theirs = Tokenizer(read_huggingface_tokenizer(folder)), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(f"a {NEW} b")
    assert ids == theirs.encode(f"a {NEW} b")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_tokenizer_that_names_all_of_them_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = decoder((256, "<|start|>"), (257, END))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_huggingface_tokenizer(folder).path == str(folder / "tokenizer.json")


def test_a_token_keeps_its_id_behind_a_gap(tmp_path: Path) -> None:
    found = read_huggingface_tokenizer(write(tmp_path, {}, added_tokens_decoder=decoder((270, NEW))))
    assert Tokenizer(found).encode(NEW) == [270]


@pytest.mark.parametrize(
    ("token", "warning"),
    [
        ((104, NEW), f"{NEW!r} would be token 104, which is 'h' in tokenizer.json"),
        ((256, NEW), f"{NEW!r} would be token 256, which is '<|start|>' in tokenizer.json"),
        ((262, END), f"{END!r} is token 257 in tokenizer.json, not 262"),
        ((10**9, NEW), f"{NEW!r} cannot be token 1000000000: tokenizer.json ends at 258"),
    ],
)
def test_ids_that_two_files_give_otherwise_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, token: tuple[int, str], warning: str
) -> None:
    folder = write(tmp_path, {}, added_tokens_decoder=decoder(token))
    with caplog.at_level("WARNING"):
        ids = Tokenizer(read_huggingface_tokenizer(folder)).encode(TEXT)
    assert warning in caplog.text
    assert 104 in ids
    assert max(ids) < 258


def test_the_copy_is_kept(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {"added_tokens.json": {NEW: 258}})
    first, second = read_huggingface_tokenizer(folder), read_huggingface_tokenizer(folder)
    assert first == second
    assert Path(first.path).is_relative_to(tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "template"),
    [
        (CHAT_TEMPLATE.encode(), CHAT_TEMPLATE),
        (CHAT_TEMPLATE.encode("utf-8-sig"), CHAT_TEMPLATE),
        (CHAT_TEMPLATE.encode("utf-16"), CHAT_TEMPLATE),
        (b"{# by M\xfcller #}" + CHAT_TEMPLATE.encode(), "{# by M\ufffdller #}" + CHAT_TEMPLATE),
    ],
)
@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_in_another_encoding_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes, template: str
) -> None:
    folder = Path(write_tiny_model(tmp_path))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    found = read_huggingface_tokenizer(folder)
    assert (found.tool_chat_template if "tool_use" in name else found.chat_template) == template
    assert ("is not UTF-8 at byte 7" in caplog.text) is ("\ufffd" in template)
