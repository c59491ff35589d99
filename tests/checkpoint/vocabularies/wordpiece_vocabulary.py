"""A small vocabulary of BERT's WordPiece, in the spelling of vocab.txt and in that of GGUF files."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<|user|>"]
CONTROL = ["[PAD]", *SPECIAL]


def wordpiece_tokens(texts: Sequence[str]) -> list[str]:
    """The lines of a vocab.txt, where special tokens have the ids of BERT. It lacks rare characters."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    common = [text for text in texts if max(text, default="") < "\u3100" and "<" not in text]
    normalized = [
        BertNormalizer(lowercase=lowercase).normalize_str(text) for text in common for lowercase in (False, True)
    ]
    tokenizer.train_from_iterator(normalized, WordPieceTrainer(vocab_size=600, show_progress=False))
    vocabulary = tokenizer.get_vocab()
    unused = [f"[unused{number}]" for number in range(99)]
    return ["[PAD]", *unused, *SPECIAL, *sorted(vocabulary, key=vocabulary.__getitem__)]


def gguf_fields(tokens: Sequence[str]) -> dict[str, list[str] | list[int]]:
    """The tokens and their types as llama.cpp's converter writes them."""
    return {
        "tokens": [token if token in CONTROL else token[2:] if token[:2] == "##" else f"▁{token}" for token in tokens],
        "token_type": [3 if token in CONTROL else 1 for token in tokens],
    }
