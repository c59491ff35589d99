"""Two small tokenizers made on the spot: byte-level, as Llama 3 has, and with byte fallback, as Llama 2 has."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pyllm.checkpoint.types import TokenizerFiles
from pyllm.frontend.text.tokenizer import Tokenizer

SPECIAL = ("<|end|>", "<|start|>")
WORDS = ("Ġthe", "Ġis", "Ġof", "Hello", "Ġworld", "Paris", "Ġcapital", "stop")


def byte_level() -> tokenizers.Tokenizer:
    """Special tokens, all 256 bytes, and a few words whose letters merge from left to right."""
    vocabulary = {text: index for index, text in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, _merges(WORDS, vocabulary)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(["<tool>", "naïve ✓"])
    return tokenizer


def with_bos() -> tokenizers.Tokenizer:
    """The byte-level one, for a model whose prompts begin with a special token."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[1]} $A", special_tokens=[(SPECIAL[1], 1)]
    )
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """SentencePiece's way: spaces are ▁, and what is not in the vocabulary is spelt in bytes."""
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,"
    texts = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {text: index for index, text in enumerate(texts)}
    words = tuple(word.replace("Ġ", "▁") for word in WORDS)
    merges = _merges(words, vocabulary)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def write(tokenizer: tokenizers.Tokenizer, folder: Path) -> TokenizerFiles:
    """Save a tokenizer as a checkpoint would name it."""
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return TokenizerFiles(
        path=str(path),
        chat_template=None,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[0],
        eos_token_ids=(tokenizer.token_to_id(SPECIAL[0]),),
        num_tokens=tokenizer.get_vocab_size(with_added_tokens=False),
    )


def load(tokenizer: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    """Save it, and read it as the frontend does."""
    return Tokenizer(write(tokenizer, folder))


def _merges(words: tuple[str, ...], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for word in words:
        for length in range(1, len(word)):
            merge = (word[:length], word[length])
            if merge not in merges:
                merges.append(merge)
                vocabulary[word[: length + 1]] = len(vocabulary)
    return merges
