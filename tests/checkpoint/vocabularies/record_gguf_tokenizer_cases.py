# ruff: noqa: RUF001 - the texts look like others on purpose
"""Records the token ids of llama.cpp in `gguf_tokenizer_cases.json`, for every way of splitting text that pyllm knows.

usage, in this folder: PYTHONPATH=FOLDER/llama/converter:../../.. python record_gguf_tokenizer_cases.py LLAMA_TOKENIZE

`make peers PEERS=FOLDER` unpacks llama.cpp; its program `llama-tokenize` is built with
`FOLDER/llama/tools/bin/cmake --build FOLDER/llama/build --target llama-tokenize`, with that `bin` on the PATH.

The vocabularies are small and made of the texts themselves. Their merges cross the words that each splitting makes, so
that a word which ends at another place gives other ids.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from pyllm.checkpoint.vocabularies.pre_tokenizers import BYTE_OF_CHARACTER, PRE_TOKENIZERS
from tests.checkpoint.vocabularies.wordpiece_vocabulary import gguf_fields, wordpiece_tokens

CASES = Path(__file__).with_name("gguf_tokenizer_cases.json")

SPECIAL = {"<unk>": 2, "<s>": 3, "</s>": 3, "<|endoftext|>": 3, "<|user|>": 3, "<tool>": 4, "<|im_end|>": 1}

_SPECIAL_TEXT = re.compile("|".join(map(re.escape, SPECIAL)))

_NORMALIZER = "tokenizer.ggml.normalizer"

UNMERGED = "Ġzebra"  # no merge makes it
RUNS = ["\n\n", "\n\n\n", "      ", "▁▁▁▁▁"]  # Gemma has such tokens of its own, found before anything else

TEXTS = [
    *("", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", "\x0b\x0c", "\x85", "\xa0", "\u3000", "\u2028", "\u200b"),
    *(
        "a zebra zebras",
        "Hello",
        " Hello",
        "Hello ",
        "  Hello  world  ",
        "hello world\n",
        "\nhello\n\n world \n \n",
        "a\r\n\r\n b\t\tc \t",
    ),
    *(
        "x  y   z    w     v",
        " \n \n\n  \n",
        "a \xa0 b\u3000\u3000c\u2003\u2003 d\u202f!",
        "\u200bword\u200d\ufeff \u2060",
    ),
    *("It's I'm you're they've we'll he'd isn't", "IT'S I'M YOU'RE THEY'VE WE'LL HE'D", "'s'S'tT'Ll 'LLama 'reX ''s"),
    *(
        "l'homme 'tis O'Neill's '\u017fabc",
        "camelCase PascalCase HTTPServer XMLHttpRequest iPhone snake_case",
        "aBcDeF",
    ),
    *("1", "12", "123", "1234", "12345", "123456", "1234567", "12345678901234567890", "x1y22z333", "007 1,000,000.50"),
    *("3.14 0x1F 1e-10 2024-01-31 v1.2.3", "½⅓ Ⅷ② ²³ ٣٤٥ १२३ １２３４ 𝟙𝟚𝟛", "1\n2\n 3  4"),
    *(
        "!?",
        "... --- ====",
        "a.b,c;d",
        "//\n/\n / x/\n",
        '"Quoted," (he) [said] {it}.',
        "$1+2=3^4~5|6`7`<8>",
        "«¿¡…—”、。！",
    ),
    *(
        "def f(x):\n    return x + y[0]\n",
        'for (int i=0;i<n;++i) {\n\tprintf("%d\\n", i);\n}\r\n',
        "#!/bin/sh\n\n\n  echo 'hi'",
    ),
    *(
        '<div class="a">\n  <p>text</p>\n</div>',
        "https://example.com/a?b=c&d=%20#e",
        "C:\\Windows\\System32",
        '{"a": [1, null]}',
    ),
    *(
        "café naïve Straße Ångström ÄRGER",
        "cafe\u0301 a\u0308 e\u0323\u0302 \u0301",
        "\u212b \u2126 \u1112\u1161\u11ab ﬁ ǅ ªº İı ẞ",
    ),
    *("привет мир ПриветМир", "Ελληνικά ΑΒΓδεζ", "العربية السَّلَامُ", "עברית שָׁלוֹם", "हिन्दी नमस्ते क्षत्रिय", "தமிழ் বাংলা"),
    *(
        "ภาษาไทย สวัสดีครับ",
        "日本語テキスト、漢字かな",
        "中文分词，你好！",
        "한국어 한글",
        "ქართული አማርኛ មែន བོད་",
        "ﾃｷｽﾄ 𝓗𝓮𝓵 𐐀𐐨 𠀀𠀁",
    ),
    *("🚀😀", "👩\u200d👩\u200d👧 👍🏽 ❤️ 1️⃣", "🇩🇪🇫🇷", "☃ ©®™ €£₿ →≠∑ §¶", "\ufffd\ufffdabc\ufffd", "Ã©Ã¨â€™"),
    *("\x00\x05\x1b\x1c\x1f\x7f\x80\x9f", "a\x03b|\x04| \x01\x02'", "\u20dd\u0483\ue000\U000e0001\U0010ffff"),
    *("a" * 33, "=" * 70, " " * 40 + "x", "\n" * 20, "ab" * 20, "の" * 9, "0" * 25, "é" * 12, "▁ ▁▁ a▁b"),
    *(
        "<s>",
        "</s>",
        "a<s>b",
        " <s> ",
        "<s><s>\n</s>",
        "<|user|>\nhi <|user|> hi<|user|>",
        "x <tool> y<tool>",
        "<|im_end|>\n",
    ),
    *("<|user|> \t\n x </s>  y <s> z <tool>\n\n", "<unk> <un <|user| <<s>> <|im_end", "<|us<s>er|>"),
]


def byte_level_vocabulary() -> dict[str, Any]:
    """A vocabulary without the bytes 1 to 4: some lack the bytes that their training text never had."""
    alphabet = [character for character in BYTE_OF_CHARACTER if not 256 < ord(character) < 261]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokens, merges = _train(
        tokenizer,
        TEXTS,
        BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, max_token_length=12, show_progress=False),
    )
    tokens += [UNMERGED, *SPECIAL]
    return {
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - len(SPECIAL)) + list(SPECIAL.values()),
        "merges": merges,
        **_special_ids(tokens),
    }


def sentencepiece_vocabulary() -> dict[str, Any]:
    """A vocabulary with a token for each byte, which lacks rare characters."""
    texts = [text.replace(" ", "▁") for text in TEXTS if max(text, default="") < "\u3100"]
    pieces, _ = _train(Tokenizer(BPE()), texts, BpeTrainer(vocab_size=900, max_token_length=12, show_progress=False))
    pieces = [piece for piece in pieces if piece not in RUNS]
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *RUNS, *pieces]
    return {
        "tokens": tokens,
        "scores": [0.0] * (len(SPECIAL) + 256) + [-1000.0] * len(RUNS) + [-float(rank) for rank in range(len(pieces))],
        "token_type": [*SPECIAL.values(), *[6] * 256, *[1] * len(RUNS), *[1] * (len(pieces) - 1), 5],
        **_special_ids(tokens),
    }


def unigram_vocabulary() -> dict[str, Any]:
    """A unigram vocabulary that lacks rare characters, with a map of characters that SentencePiece compiled."""
    tokenizer = Tokenizer(Unigram())
    texts = [text.replace(" ", "▁") for text in TEXTS if max(text, default="") < "\u3100"]
    trainer = UnigramTrainer(vocab_size=700, max_piece_length=10, show_progress=False)
    tokenizer.train_from_iterator([_SPECIAL_TEXT.sub("▁", text) for text in texts], trainer)
    pieces = [pair for pair in json.loads(tokenizer.to_str())["model"]["vocab"] if pair[0] not in RUNS]
    tokens = [*SPECIAL, *RUNS, *(piece for piece, _ in pieces)]
    return {
        "tokens": tokens,
        "scores": [0.0] * (len(SPECIAL) + len(RUNS)) + [score for _, score in pieces],
        "token_type": [2, *list(SPECIAL.values())[1:], *[1] * (len(RUNS) + len(pieces))],
        **_special_ids(tokens),
    }


def xlm_roberta_vocabulary() -> dict[str, Any]:
    """Pieces of the unigram vocabulary, none across words, as llama.cpp's converter writes those of XLM-RoBERTa."""
    vocabulary = unigram_vocabulary()
    rows = zip(vocabulary["tokens"], vocabulary["scores"], strict=True)
    known = {*SPECIAL, *RUNS}
    pieces = [(token, score) for token, score in rows if token not in known and "▁" not in token[1:]]
    return {
        "tokens": ["<s>", "<pad>", "</s>", "<unk>", *(token for token, _ in pieces), "[PAD500]"],
        "scores": [0.0] * 4 + [score for _, score in pieces] + [-10000.0],
        "token_type": [3, 3, 3, 2, *[1] * len(pieces), 5],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "seperator_token_id": 2,
        **dict.fromkeys(("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"), True),
    }


def characters_map() -> list[int]:
    """A few rules, of which one makes a space of another whitespace."""
    import sentencepiece  # which `make peers` puts into llama/converter

    with tempfile.TemporaryDirectory() as folder:
        rules, text = Path(folder, "rules.tsv"), Path(folder, "text.txt")
        rules.write_text("FB01\t66 69\nA0\t20\n65 301\tE9\n2126\t3A9\n")
        text.write_text("a text of a few words\n" * 20)
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{folder}/m", vocab_size=15, normalization_rule_tsv=str(rules)
        )
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(Path(folder, "m.model").read_bytes())
        return list(model.normalizer_spec.precompiled_charsmap)


def main(program: str) -> None:
    vocabularies = {
        "gpt2": byte_level_vocabulary(),
        "llama": sentencepiece_vocabulary(),
        "t5": unigram_vocabulary(),
        "bert": gguf_fields(wordpiece_tokens(TEXTS)),
    }
    types = vocabularies["llama"]["token_type"]
    runs = [4 if token in RUNS else kind for token, kind in zip(vocabularies["llama"]["tokens"], types, strict=True)]
    variants: list[dict[str, Any]] = [{"model": "gpt2", "pre": pre} for pre in PRE_TOKENIZERS]
    variants += [
        {"model": "gpt2", "pre": "gpt-2", "add_bos_token": True, "add_eos_token": True},
        {"model": "gpt2", "pre": "llama-bpe", "add_bos_token": False},
        {"model": "llama"},
        {"model": "llama", "add_space_prefix": False, "token_type": runs},
        {"model": "llama", "add_bos_token": False},
        {"model": "llama", "add_bos_token": True, "add_eos_token": True, "remove_extra_whitespaces": True},
        {"model": "llama", "general.name": "Phi-3 mini"},
        # The program adds an EOS token only where there is a BOS token.
        {"model": "t5", "add_eos_token": False},
        {"model": "t5", "add_space_prefix": True, "add_bos_token": True},
        {"model": "t5", "remove_extra_whitespaces": True, "add_bos_token": True, "add_eos_token": False},
        {
            "model": "t5",
            "remove_extra_whitespaces": True,
            "precompiled_charsmap": characters_map(),
            "add_eos_token": False,
        },
        {"model": "t5", "precompiled_charsmap": characters_map(), **xlm_roberta_vocabulary()},
        {"model": "bert"},
        {"model": "bert", "bos_token_id": 104, "seperator_token_id": 105, "unknown_token_id": 103},
        {"model": "bert", f"{_NORMALIZER}.lowercase": False},
        {"model": "bert", f"{_NORMALIZER}.lowercase": False, f"{_NORMALIZER}.strip_accents": True},
        {"model": "bert", f"{_NORMALIZER}.strip_accents": False},
    ]
    groups: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants:
            path = Path(folder, "vocabulary.gguf")
            write_vocabulary(path, vocabularies[variant["model"]] | variant)
            ids = [_ids(program, path, text) for text in TEXTS]
            groups.setdefault(json.dumps(ids), {"variants": [], "ids": ids})["variants"].append(variant)
    document = {"texts": TEXTS, "vocabularies": vocabularies, "cases": list(groups.values())}
    CASES.write_text(json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n")


def write_vocabulary(path: Path, fields: dict[str, Any]) -> None:
    """A GGUF file of a vocabulary alone, with what llama.cpp wants beside it."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = name if "." in name else f"tokenizer.ggml.{name}"
        if name == "precompiled_charsmap":
            writer.add_precompiled_charsmap(bytes(value))
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32}[type(value)]
            add(key, value)
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"llama.{name}", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _ids(program: str, path: Path, text: str) -> list[int]:
    command = [program, "--model", str(path), "--stdin", "--no-escape", "--ids", "--log-disable"]
    result = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return json.loads(result.stdout)


def _train(tokenizer: Tokenizer, texts: list[str], trainer: BpeTrainer) -> tuple[list[str], list[str]]:
    """The tokens, by id, and the merges."""
    tokenizer.train_from_iterator([re.sub(r"[\x00-\x04]", "", _SPECIAL_TEXT.sub(" ", text)) for text in texts], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(pair) for pair in model["merges"]]


def _special_ids(tokens: list[str]) -> dict[str, int]:
    names = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}
    return {f"{name}_token_id": tokens.index(token) for name, token in names.items()}


if __name__ == "__main__":
    main(sys.argv[1])
