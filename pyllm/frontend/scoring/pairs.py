"""Pairs of texts as token ids: as the tokenizer joins them, or in a reranker's own template."""

from collections.abc import Sequence
from itertools import chain

from pyllm.client.prompt_tokens import PromptTokens, known_tokens
from pyllm.client.submission import refuse_input
from pyllm.errors import RequestError
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import Truncation
from pyllm.parameters.arguments import is_unicode
from pyllm.wire.messages import ModelInfo

Pair = tuple[str, str]


async def encode_pairs(
    encoder: PromptEncoder,
    tokenizer: Tokenizer,
    model: ModelInfo,
    pairs: Sequence[Pair],
    truncation: Truncation | None,
) -> list[PromptTokens]:
    """The token ids of each pair of a query and a document, shortened by a `truncation`; long texts wait for a thread.

    Raises:
        RequestTooLargeError: a pair certainly cannot fit the context, and is not shortened; then none is encoded. Or
            the template and the query leave no room for the document.
        RequestError: a text is no Unicode.
    """
    for texts in pairs if truncation is None else ():
        least = sum(map(tokenizer.min_tokens, texts))
        if least > model.max_model_len:
            raise refuse_input(least, model, is_exact=False)
    characters = sum(len(text) for texts in pairs for text in texts)
    return await encoder.run_texts(characters, _encoded, tokenizer, pairs, truncation, model)


def _encoded(
    tokenizer: Tokenizer, pairs: Sequence[Pair], truncation: Truncation | None, model: ModelInfo
) -> list[PromptTokens]:
    if not all(map(is_unicode, chain.from_iterable(pairs))):
        raise RequestError("a text is not valid Unicode: it has half of a surrogate pair", "documents")
    # One by one: a batch would take all processors.
    encoded = (_encoded_pair(tokenizer, query, document, truncation, model) for query, document in pairs)
    return [known_tokens(tokens, model.vocab_size, "documents") for tokens in encoded]


def _encoded_pair(
    tokenizer: Tokenizer, query: str, document: str, truncation: Truncation | None, model: ModelInfo
) -> Sequence[int]:
    if tokenizer.pair_template is None:
        tokens = tokenizer.encode_pair(query, document)
        return tokens if truncation is None else truncation.kept(tokens, tokenizer.encode(""))
    before, _, after = (part.replace("{query}", query) for part in tokenizer.pair_template.partition("{document}"))
    tokens = tokenizer.encode(f"{before}{document}{after}", add_special_tokens=False)
    if truncation is None or len(tokens) <= truncation.limit:
        return tokens
    return _cut(tokenizer, [before, document, after], truncation, model)


def _cut(tokenizer: Tokenizer, texts: list[str], truncation: Truncation, model: ModelInfo) -> Sequence[int]:
    """The tokens of a template around a document, which loses those that do not fit."""
    before, document, after = tokenizer.encode_batch(texts, add_special_tokens=False)
    room = truncation.limit - len(before) - len(after)
    if room < 1:
        raise refuse_input(len(before) + len(after) + 1, model, is_exact=False)
    return [*before, *truncation._replace(limit=room).kept(document), *after]
