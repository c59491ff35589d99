"""The tokenizer of a folder without a tokenizer.json, against ids of transformers and SentencePiece.

`record_folder_tokenizer_cases.py` records `folder_tokenizer_cases.json`.
"""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from pyllm.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from pyllm.errors import ConfigError
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.checkpoint.vocabularies.vocabulary_folders import (
    CASES,
    GGUF_CASES,
    write_byte_level,
    write_case,
    write_words,
)
from tests.tiny_model import write_tiny_model

TEXTS = GGUF_CASES["texts"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def name_of(case: dict[str, Any]) -> str:
    return f"{case['reference']}, {case['file']}, {case['model_type']}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_ids_are_those_of_the_reference(tmp_path: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer(read_huggingface_tokenizer(write_case(tmp_path, case)))
    asked = [(text, ids) for text, ids in zip(TEXTS, case["ids"], strict=True) if ids is not None]
    assert len(asked) > 60
    assert {text: tokenizer.encode(text) for text, _ in asked} == dict(asked)


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    ("qwen3", {"eos_token": "<|im_end|>", "add_bos_token": False}),
    ("gpt2", {}),
    ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "add_prefix_space": True}),
    ("gpt_neox", {"tokenizer_class": "GPTNeoXTokenizer"}),
]


@pytest.mark.parametrize(("model_type", "config"), CONFIGS, ids=str)
def test_vocab_json_gives_the_ids_of_transformers(tmp_path: Path, model_type: str, config: dict[str, Any]) -> None:
    folder = write_byte_level(tmp_path, model_type, config)
    found, theirs = read_huggingface_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(found)
    assert {text: ours.encode(text) for text in TEXTS} == {text: theirs.encode(text) for text in TEXTS}
    assert (found.bos_token, found.eos_token) == (theirs.bos_token or "", theirs.eos_token)
    assert found.eos_token_ids == (theirs.eos_token_id,)
    ids = theirs.encode("It's <|endoftext|> café")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


BERT_CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"tokenizer_class": "BertTokenizer", "never_split": None}),
    ("distilbert", {"do_lower_case": False}),
    ("nomic_bert", {"strip_accents": False, "tokenize_chinese_chars": False}),
    ("bert", {"do_lower_case": False, "strip_accents": True, "cls_token": "<s>", "unk_token": "[unused1]"}),
]


@pytest.mark.parametrize(("model_type", "config"), BERT_CONFIGS, ids=str)
def test_vocab_txt_gives_the_ids_of_transformers(tmp_path: Path, model_type: str, config: dict[str, Any]) -> None:
    folder = write_words(tmp_path, model_type, config)
    found, theirs = read_huggingface_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(found)
    texts = [*TEXTS, "a [MASK] b[PAD] [unused1]", "中a文 の", "x" * 101]
    assert {text: ours.encode(text) for text in texts} == {text: theirs.encode(text) for text in texts}
    assert (found.bos_token, found.eos_token, found.num_tokens) == ("", "", len(theirs))
    ids = theirs.encode("Hello, world! 12")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_lines_of_vocab_txt_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    folder = write_words(tmp_path, "bert", {})
    words = (folder / "vocab.txt").read_bytes()
    (folder / "vocab.txt").write_bytes(words.replace(b"\n", b" \r\n") + b"\n\xe3\x80\x80\n[CLS]\n")
    ours, theirs = Tokenizer(read_huggingface_tokenizer(folder)), AutoTokenizer.from_pretrained(folder)
    assert {text: ours.encode(text) for text in TEXTS} == {text: theirs.encode(text) for text in TEXTS}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_text_comes_back(tmp_path: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer(read_huggingface_tokenizer(write_case(tmp_path, case)))
    assert tokenizer.decode(tokenizer.encode("Hello world 12")) == "Hello world 12"


def test_a_sentencepiece_file_names_its_ends(tmp_path: Path) -> None:
    gemma = next(case for case in CASES if case["model_type"] == "gemma2")
    found = read_huggingface_tokenizer(write_case(tmp_path, gemma))
    assert (found.bos_token, found.eos_token, found.eos_token_ids, found.num_tokens) == ("<bos>", "<eos>", (1,), 700)


def test_a_tokenizer_is_built_once(tmp_path: Path) -> None:
    folder = write_case(tmp_path, CASES[0])
    first = read_huggingface_tokenizer(folder)
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache/pyllm").iterdir()}
    assert len(written) == 2
    assert read_huggingface_tokenizer(folder) == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache/pyllm").iterdir()} == written
    (tmp_path / "cache/pyllm").joinpath(Path(first.path).name.replace("tokenizer", "ends")).write_text("damaged")
    assert read_huggingface_tokenizer(folder) == first
    write_case(tmp_path, CASES[0] | {"tokenizer_config": {}})
    assert read_huggingface_tokenizer(folder).path != first.path


LLAMA = CASES[0]
MODEL = base64.b64decode(LLAMA["content"])
WORDS, BERT = b"[UNK]\n[CLS]\n[SEP]\nthe\n", {"tokenizer_class": "BertTokenizer"}
COMMAND = r"pip install 'pyllm\[transformers\]', then python -c"


@pytest.mark.parametrize(
    ("files", "config", "error"),
    [
        ({}, {}, "has no tokenizer.json and no other vocabulary"),
        ({"vocab.txt": WORDS}, {}, f"vocab.txt is for the tokenizer_class of an unknown model.*{COMMAND}"),
        ({"vocab.txt": WORDS}, {"tokenizer_class": "MPNetTokenizer"}, f"for the tokenizer_class MPNetTok.*{COMMAND}"),
        ({"vocab.txt": WORDS}, {**BERT, "never_split": ["a b"]}, f"its never_split has the words.*a b.*{COMMAND}"),
        ({"vocab.txt": WORDS}, {**BERT, "sep_token": "<sep>"}, "vocab.txt has no token <sep>: it is damaged"),
        ({"vocab.txt": WORDS + b"\xff\n"}, BERT, "vocab.txt is damaged: .* can't decode byte 0xff"),
        ({"sentencepiece.bpe.model": MODEL}, {"tokenizer_class": "NllbTokenizer"}, f"NllbTokenizer.*{COMMAND}"),
        ({"sentencepiece.bpe.model": MODEL}, {"tokenizer_class": "XLMRobertaTokenizer"}, "has the model_type 2 and "),
        ({"tekken.json": b"{}"}, {}, f"it has only tekken.json.*{COMMAND}"),
        ({"qwen.tiktoken": b"IQ== 0\n"}, {}, f"it has only qwen.tiktoken.*{COMMAND}"),
        ({"vocab.json": b"{}"}, {}, f"it has only vocab.json.*{COMMAND}"),
        ({"vocab.json": b"{}", "merges.txt": b""}, {}, f"the tokenizer_class of an unknown model.*{COMMAND}"),
        ({"vocab.json": b"{}", "merges.txt": b""}, {"tokenizer_class": "CTRLTokenizer"}, f"CTRLTokenizer.*{COMMAND}"),
        ({"tokenizer.model": MODEL}, {"tokenizer_class": "XGLMTokenizerFast"}, f"XGLMTokenizer.*{COMMAND}"),
        ({"tokenizer.model": MODEL}, {"auto_map": {"AutoTokenizer": ["a.B", None]}}, f"own code.*{COMMAND}"),
        ({"tokenizer.model": MODEL[:-100]}, {}, "tokenizer.model is no SentencePiece model, or a damaged one: "),
        ({"tokenizer.model": b""}, {}, "tokenizer.model is no SentencePiece model, or a damaged one: it has no pieces"),
        ({"tokenizer.model": b"\x0b\x01"}, {}, "tokenizer.model is no SentencePiece model, or a damaged one: "),
        ({"tokenizer.model": MODEL + b"\x12\x02\x18\x03"}, {}, "the model_type 3,"),
        ({"tokenizer.model": MODEL + b"\x12\x05\x18\x02\xc0\x01\x01"}, {}, "treat_whitespace_as_suffix True"),
        ({"tokenizer.model": MODEL + b"\x0a\x05\x0a\x03<s>"}, {}, "it has a token twice"),
        ({"tiktoken.model": b"IQ== 0\nIg==\n"}, {}, "line 2 has no token in base64 and its rank"),
        ({"tokenizer.model": b"version https://git-lfs.github.com/spec/v1\n"}, {}, "Git LFS pointer"),
    ],
)
def test_other_folders_are_refused_by_name(
    tmp_path: Path, files: dict[str, bytes], config: dict[str, Any], error: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=error):
        read_huggingface_tokenizer(tmp_path)


def test_merges_that_are_not_in_the_vocabulary_are_named(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path, "gpt2", {})
    (folder / "merges.txt").write_text("#version: 0.2\na zebra\n")
    with pytest.raises(ConfigError, match=r"merges 'a zebra', which are not all in vocab\.json"):
        read_huggingface_tokenizer(folder)


# Reads folders while imports of packages that only GPUs, `transformers` models and training tools need are refused.
READS_ALONE = """
import sys
from importlib.abc import MetaPathFinder

REFUSED = {"torch", "triton", "transformers", "sentencepiece", "google", "tiktoken", "safetensors", "gguf"}

class Refusal(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refusal())
from pathlib import Path
from pyllm.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
import pyllm.cli, pyllm.check.report, pyllm.commands.run_batch, pyllm.commands.bench, pyllm.commands.chat
import pyllm.commands.complete, pyllm.commands.serve, pyllm.frontend.app, pyllm.launch.serve

for folder in sys.argv[2:]:
    assert Tokenizer(read_huggingface_tokenizer(Path(folder))).encode("Hello world"), folder
checkpoint = read_checkpoint(sys.argv[1])
assert ChatTemplate.of(checkpoint.tokenizer).render([{"role": "user", "content": "Hello"}])
assert not REFUSED & set(sys.modules)
"""


def test_tokenizers_templates_and_configs_need_no_other_library(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("llama", "t5", "tiktoken", "gpt2", "bert")]
    for folder in folders:
        folder.mkdir()
    write_byte_level(folders[3], "gpt2", {})
    write_words(folders[4], "bert", {})
    for folder, case in zip(folders, (CASES[0], CASES[4], CASES[5]), strict=False):
        write_case(folder, case)
    model = write_tiny_model(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", READS_ALONE, model, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
