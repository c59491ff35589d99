"""Pre-tokenizers: the split of text before merges apply. Knows no vocabulary.

`PRE_TOKENIZERS` has one for each `tokenizer.ggml.pre`, as a GGUF file only names its pre-tokenizer. The regular
expressions are those of llama.cpp (`src/llama-vocab.cpp`), which takes them from the models' tokenizer.json. In three
cases an entry follows the model's tokenizer.json, not llama.cpp:

- `_NFC`: characters are composed first, as transformers does for these families.
- `_CASED_WORD` (Mistral's tekken, gpt-4o, Kimi K2, Youtu): llama.cpp knows no case beyond ASCII, or none, and mostly
  ends a word at a combining mark, so that words of Hindi, Thai or Bengali become other tokens than in training, and up
  to twice as many. For tekken, the ids here are those of `mistral_common`.
- Numbers in groups from their end (Trinity, tiny_aya): llama.cpp cuts whitespace before a number in two.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""The characters that spell the 256 bytes, as in GPT-2: printable bytes spell themselves."""


class PreTokenizer(msgspec.Struct, frozen=True):
    pre_tokenizers: tuple[dict[str, Any], ...]
    ignore_merges: bool = False
    """A word that is a token stays whole, whatever the merges say."""
    adds_bos: bool = False
    """A prompt starts with the BOS token, unless the file has `add_bos_token`."""
    normalizer: dict[str, Any] | None = None


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Spells each byte as a character, after a split into the words of GPT-2 if `use_regex`."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def drop(characters: Sequence[str]) -> dict[str, Any]:
    """Removes characters that have no token. The texts on either side of them are never merged."""
    return {
        "type": "Split",
        "pattern": {"Regex": f"[{''.join(re.escape(character) for character in characters)}]"},
        "behavior": "Removed",
        "invert": False,
    }


def _split(*regexes: str) -> tuple[dict[str, Any], ...]:
    """Stages that split by each regular expression in turn, each within the pieces of the one before."""
    splits = [{"type": "Split", "pattern": {"Regex": x}, "behavior": "Isolated", "invert": False} for x in regexes]
    return (*splits, byte_level(use_regex=False))


_NFC = {"type": "NFC"}

# The cases are spelled out: `(?i:'s)` would match U+017F, the long s, as well.
_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WHITESPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_PUNCTUATION_OR_PATH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_THREE_DIGITS = "|".join((_CONTRACTION, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _WHITESPACE))
_ONE_DIGIT = "|".join((_CONTRACTION, _WORD, r"\p{N}", _PUNCTUATION, _WHITESPACE))
_QWEN35 = "|".join(
    (_CONTRACTION, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _WHITESPACE)
)
_TEKKEN = "|".join((*_CASED_WORD, r"\p{N}", _PUNCTUATION_OR_PATH, _WHITESPACE))
_GPT_4O = "|".join(
    (*(f"{word}{_CONTRACTION}?" for word in _CASED_WORD), r"\p{N}{1,3}", _PUNCTUATION_OR_PATH, _WHITESPACE)
)
_SEED_CODER = "|".join((_CONTRACTION, _WORD, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+", _WHITESPACE))
_JAIS2_WHITESPACE = "|".join(
    (r"\s*[\r\n]+", *(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s{1}")
)
_JAIS2 = "|".join((_CONTRACTION, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _JAIS2_WHITESPACE))
_EXAONE_MOE = "|".join(
    (
        _CONTRACTION,
        r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
        r"\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_BAILING = "|".join(
    ("'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", _WORD, r"\p{N}", _PUNCTUATION, r"\s*[\r\n]|\s+(?!\S)|\s+")
)
_MINICPM5 = (r"\p{N}{1,3}", "|".join((_CONTRACTION, _WORD, r"\p{N}+", _PUNCTUATION, _WHITESPACE)))
_LAGUNA = (r"[^\n]+|[\n]+", _ONE_DIGIT)
_TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O)
_UFAKZEKA = "|".join((_WORD, r"\p{N}", _PUNCTUATION, _WHITESPACE))
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "|".join((*(f"{word}{_CONTRACTION}?" for word in _CASED_WORD), r"\p{N}", _PUNCTUATION_OR_PATH, _WHITESPACE)),
)
_KIMI_UPPER, _KIMI_LOWER = (rf"[{kind[1:-1]}&&[^\p{{Han}}]]" for kind in (_UPPER, _LOWER))
_KIMI_K2 = "|".join(
    (
        r"\p{Han}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?",
        r"\p{N}{1,3}",
        _PUNCTUATION,
        _WHITESPACE,
    )
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]")
_DEEPSEEK_LETTERS = (
    "["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]"
)
# Without the space, which the models' own ranges include: in llama.cpp it counts as whitespace only.
_DEEPSEEK_PUNCTUATION = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]"
_DEEPSEEK_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\S]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}+",
    rf"\s?{_DEEPSEEK_PUNCTUATION}+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_WHITESPACE}",
)
# Digits in groups of three from the end of a number.
_AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    _DEEPSEEK_V3[2],
)
_SPARK = (*_DEEPSEEK_V3[:2], _DEEPSEEK_V3[2].replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"))

_GPT2 = (byte_level(use_regex=True),)
_SINGLE_DIGITS_GPT2 = ({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True))

# One entry per name, with the models that use it.
PRE_TOKENIZERS = {
    "default": PreTokenizer(_split(*_DEFAULT)),  # files older than the field
    "gpt-2": PreTokenizer(_GPT2),
    "phi-2": PreTokenizer(_GPT2),
    "roberta-bpe": PreTokenizer(_GPT2),
    "mpt": PreTokenizer(_GPT2, normalizer=_NFC),
    "olmo": PreTokenizer(_GPT2, normalizer=_NFC),  # OLMo 1; later ones have dbrx
    "exaone4": PreTokenizer(_GPT2),
    "granite-docling": PreTokenizer(_GPT2),
    "jais": PreTokenizer(_GPT2),
    "trillion": PreTokenizer(_GPT2),
    "a.x-4.0": PreTokenizer(_GPT2),  # Qwen 2's layers
    "gigachat": PreTokenizer(_GPT2),  # DeepSeek V3's layers
    "mellum": PreTokenizer(_GPT2),
    "smollm": PreTokenizer(_SINGLE_DIGITS_GPT2),  # SmolLM 1 and 2
    "starcoder": PreTokenizer(_SINGLE_DIGITS_GPT2),
    "refact": PreTokenizer(_SINGLE_DIGITS_GPT2),  # Granite 3
    "command-r": PreTokenizer(_SINGLE_DIGITS_GPT2, normalizer=_NFC),  # Command R, Cohere 2
    "codeshell": PreTokenizer(_SINGLE_DIGITS_GPT2),
    "exaone": PreTokenizer(_SINGLE_DIGITS_GPT2),
    "minerva-7b": PreTokenizer(_SINGLE_DIGITS_GPT2),
    "mellum2": PreTokenizer(_SINGLE_DIGITS_GPT2),
    "llama3": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "llama-v3": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "llama-bpe": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),  # Llama 3 to 3.3
    "falcon3": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "falcon-h1": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "pixtral": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "lfm2": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),
    "midm-2.0": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True, adds_bos=True),  # Llama's layers
    "dbrx": PreTokenizer(_split(_THREE_DIGITS)),  # OLMo 2 and 3, Phi-4, Granite 4
    "smaug-bpe": PreTokenizer(_split(_THREE_DIGITS)),  # SmolLM3
    "chatglm-bpe": PreTokenizer(_split(_THREE_DIGITS)),
    "glm4": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True),
    "glm5": PreTokenizer(_split(_THREE_DIGITS), ignore_merges=True),
    "qwen2": PreTokenizer(_split(_ONE_DIGIT), normalizer=_NFC),  # Qwen 1.5 to 3
    "deepseek-r1-qwen": PreTokenizer(_split(_ONE_DIGIT)),
    "megrez": PreTokenizer(_split(_ONE_DIGIT)),
    "stablelm2": PreTokenizer(_split(_ONE_DIGIT)),
    "kormo": PreTokenizer(_split(_ONE_DIGIT)),
    "hunyuan": PreTokenizer(_split(_ONE_DIGIT)),
    "grok-2": PreTokenizer(_split(_ONE_DIGIT)),
    "solar-open": PreTokenizer(_split(_ONE_DIGIT)),
    "qwen35": PreTokenizer(_split(_QWEN35), normalizer=_NFC),
    "tekken": PreTokenizer(_split(_TEKKEN), ignore_merges=True, adds_bos=True),  # Mistral Nemo and later, Ministral
    "gpt-4o": PreTokenizer(_split(_GPT_4O)),  # gpt-oss, Phi-4-mini
    "llama4": PreTokenizer(_split(_GPT_4O)),
    "minimax-m2": PreTokenizer(_split(_GPT_4O)),
    "kanana2": PreTokenizer(_split(_GPT_4O)),
    "talkie": PreTokenizer(_split(_GPT_4O)),
    "tiny_aya": PreTokenizer(_split(*_TINY_AYA)),
    "cohere2moe": PreTokenizer(_split(*_TINY_AYA)),
    "youtu": PreTokenizer(_split(*_YOUTU), ignore_merges=True),
    "kimi-k2": PreTokenizer(_split(_KIMI_K2)),
    "exaone-moe": PreTokenizer(_split(_EXAONE_MOE)),
    "jais-2": PreTokenizer(_split(_JAIS2)),
    "bailingmoe": PreTokenizer(_split(_BAILING)),
    "bailingmoe2": PreTokenizer(_split(_BAILING)),
    "llada-moe": PreTokenizer(_split(_BAILING)),
    "minicpm5": PreTokenizer(_split(*_MINICPM5), ignore_merges=True),
    "laguna": PreTokenizer(_split(*_LAGUNA)),
    "ufakzeka": PreTokenizer(_split(_UFAKZEKA)),
    "superbpe": PreTokenizer(_split(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),  # merges cross words; OLMo 2's layers
    "bloom": PreTokenizer(_split(_BLOOM)),
    "gpt3-finnish": PreTokenizer(_split(_BLOOM)),
    "poro-chat": PreTokenizer(_split(_BLOOM)),
    "viking": PreTokenizer(_split(_BLOOM, r"\p{N}")),
    "seed-coder": PreTokenizer(_split(_SEED_CODER)),
    "deepseek-llm": PreTokenizer(_split(*_DEEPSEEK_LLM)),
    "deepseek-coder": PreTokenizer(_split(*_DEEPSEEK_CODER)),
    "deepseek-v3": PreTokenizer(_split(*_DEEPSEEK_V3)),
    "hunyuan-dense": PreTokenizer(_split(*_DEEPSEEK_V3)),
    "joyai-llm": PreTokenizer(_split(*_DEEPSEEK_V3)),
    "hy_v4": PreTokenizer(_split(*_DEEPSEEK_V3)),
    "spark2_5": PreTokenizer(_split(*_SPARK, r"\p{N}")),
    "afmoe": PreTokenizer(_split(*_AFMOE)),
    "falcon": PreTokenizer(_split(*_FALCON)),
}


_CASELESS_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

TIKTOKEN = PreTokenizer(
    _split("|".join((_CASELESS_CONTRACTION, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _WHITESPACE))), ignore_merges=True
)
"""The split of a tiktoken file without one of its own: cl100k's, which Llama 3 and others have."""

TOKENIZER_CLASSES = {
    "Qwen2Tokenizer": PreTokenizer(
        _split("|".join((_CASELESS_CONTRACTION, _WORD, r"\p{N}", _PUNCTUATION, _WHITESPACE))), normalizer=_NFC
    ),
    "GPT2Tokenizer": PreTokenizer(_GPT2),
    "GPTNeoXTokenizer": PreTokenizer(_GPT2, normalizer=_NFC),
}
"""The split of a vocab.json, which names none, by the class of transformers that reads it."""
