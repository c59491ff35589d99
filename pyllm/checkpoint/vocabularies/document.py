"""The parts of a `tokenizers` JSON that all kinds of vocabularies share: frame, added tokens, BOS and EOS tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def encode_document(
    stages: Mapping[str, Any],
    added_tokens: Sequence[Mapping[str, Any]],
    bos: tuple[str, int] | None,
    eos: tuple[str, int] | None,
    ends_between: int = 1,
) -> bytes:
    """A tokenizer.json of the stages, with the tokens and ids that are put before and after each text.

    The one after a text stands `ends_between` times between a pair. Once: the second text has type 1, as in
    BERT; twice: it has type 0, as in RoBERTa.
    """
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "post_processor": _template(bos, eos, ends_between) if bos or eos else None,
        **stages,
    }
    return msgspec.json.encode(document)


def added_token(index: int, content: str, *, special: bool, drops_space: bool = False) -> dict[str, Any]:
    """A token that is matched in a text before any other; with `drops_space` the whitespace behind it is dropped."""
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": drops_space,
        "normalized": False,
        "special": special,
    }


def _template(bos: tuple[str, int] | None, eos: tuple[str, int] | None, ends_between: int) -> dict[str, Any]:
    second = int(ends_between == 1)
    before, after, last = (
        [{"SpecialToken": {"id": end[0], "type_id": kind}}] if end else []
        for end, kind in ((bos, 0), (eos, 0), (eos, second))
    )
    text, pair = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": second}}
    return {
        "type": "TemplateProcessing",
        "single": [*before, text, *after],
        "pair": [*before, text, *after * ends_between, pair, *last],
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]} for token, index in filter(None, (bos, eos))
        },
    }
