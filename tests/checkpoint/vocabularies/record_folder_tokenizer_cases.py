"""Records token ids of transformers and SentencePiece in `folder_tokenizer_cases.json`, for folders of vocabularies.

usage, in this folder: PYTHONPATH=FOLDER:../../.. python record_folder_tokenizer_cases.py

`pip install --target FOLDER sentencepiece tiktoken` gets both packages, which transformers needs for such folders. The
texts are those of `gguf_tokenizer_cases.json`. SentencePiece is the reference where transformers has no class for a
file and leaves its settings aside, for texts in which the two packages see no special token and no space before them.
"""

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
from transformers import AutoTokenizer

from pyllm.checkpoint.vocabularies.pre_tokenizers import BYTE_OF_CHARACTER

CASES = Path(__file__).with_name("folder_tokenizer_cases.json")
RECORDED = json.loads(CASES.with_name("gguf_tokenizer_cases.json").read_text())
TEXTS = RECORDED["texts"]
SPECIAL = ("<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "▁")

# Ligatures, a no-break space, composition, and the ohm sign, as in the GGUF cases.
RULES = "FB01\t66 69\nA0\t20\n65 301\tE9\n2126\t3A9\n"

_BPE = {"model_type": "bpe", "vocab_size": 700, "byte_fallback": True}
_PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
_GEMMA_IDS = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"}
_GEMMA_TOKENS = ["<mask>", "<start_of_turn>", "\n\n", "▁▁▁"]
_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def main() -> None:
    llama, gemma = (
        _trained(**_BPE, **_PLAIN),
        _trained(**_BPE, **_PLAIN, **_GEMMA_IDS, add_dummy_prefix=False, user_defined_symbols=_GEMMA_TOKENS),
    )
    unigram = {"model_type": "unigram", "vocab_size": 290}
    tiktoken, added = _tiktoken()
    tiktoken_config = {"added_tokens_decoder": added, "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    general = {"tokenizer_class": "LlamaTokenizer"}
    by_transformers = [
        ("tokenizer.model", llama, "llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}),
        ("tokenizer.model", llama, "llama", {**general, "legacy": True, "add_eos_token": True}),
        ("tokenizer.model", llama, "llama", {**general, "add_prefix_space": False}),
        ("tokenizer.model", gemma, "gemma2", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}),
        ("spiece.model", _trained(**unigram, **_T5_IDS, rules=RULES), "t5", {"tokenizer_class": "T5Tokenizer"}),
        ("tiktoken.model", tiktoken, "kimi_linear", tiktoken_config),
        ("tokenizer.model", tiktoken, "llama", {"tokenizer_class": "PreTrainedTokenizerFast", **tiktoken_config}),
        ("sentencepiece.bpe.model", _trained(**unigram, rules=RULES), "xlm-roberta", {}),
    ]
    by_sentencepiece = [
        (llama, "mistral", general),
        (_trained(**_BPE, rules=RULES), "llama", {}),
        (_trained(**unigram, **_PLAIN), "llama", {}),
        (_trained(**unigram | {"vocab_size": 540}, byte_fallback=True, rules=RULES), "llama", {}),
    ]
    cases = [_case("transformers", *case) for case in by_transformers]
    cases += [_case("sentencepiece", "tokenizer.model", *case) for case in by_sentencepiece]
    CASES.write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")


def _case(reference: str, name: str, content: bytes, model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """A folder's files, and the ids of each text; null for texts that the reference is not asked for."""
    encode = _by_transformers if reference == "transformers" else _by_sentencepiece
    return {
        "reference": reference,
        "file": name,
        "content": base64.b64encode(content).decode(),
        "model_type": model_type,
        "tokenizer_config": config,
        "ids": encode(name, content, model_type, config),
    }


def _by_transformers(name: str, content: bytes, model_type: str, config: dict[str, Any]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(content)
        Path(folder, "config.json").write_text(json.dumps({"model_type": model_type}))
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return [tokenizer.encode(text) for text in TEXTS]


def _by_sentencepiece(_name: str, content: bytes, _model_type: str, _config: dict[str, Any]) -> list[list[int] | None]:
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    return [
        None if text[:1].isspace() or any(token in text for token in SPECIAL) else model.encode(text) for text in TEXTS
    ]


def _trained(rules: str = "", **options: Any) -> bytes:
    """A SentencePiece model file, trained with the texts."""
    with tempfile.TemporaryDirectory() as folder:
        text, tsv = Path(folder, "text.txt"), Path(folder, "rules.tsv")
        lines = [line for text in TEXTS for line in text.replace("\0", "").split("\n")]
        text.write_text("\n".join(line for line in lines if line.strip() and max(line) < "\u3100"))
        tsv.write_text(rules)
        options |= {"normalization_rule_tsv": str(tsv)} if rules else {}
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=f"{folder}/m", minloglevel=2, **options)
        return Path(folder, "m.model").read_bytes()


def _tiktoken() -> tuple[bytes, dict[str, Any]]:
    """A tiktoken file of the byte-level vocabulary of the GGUF cases, and special tokens behind a gap."""
    vocabulary = RECORDED["vocabularies"]["gpt2"]
    pairs = zip(vocabulary["tokens"], vocabulary["token_type"], strict=True)
    normal = [token for token, kind in pairs if kind == 1]
    tokens = [token for token in BYTE_OF_CHARACTER if token not in normal] + normal
    lines = [
        f"{base64.b64encode(bytes(map(BYTE_OF_CHARACTER.__getitem__, token))).decode()} {rank}\n"
        for rank, token in enumerate(tokens)
    ]
    names = {0: "<|user|>", 1: "<s>", 4: "</s>"}
    added = {
        str(len(tokens) + index): {"content": name, "special": True, "normalized": False}
        for index, name in names.items()
    }
    return "".join(lines).encode(), added


if __name__ == "__main__":
    main()
