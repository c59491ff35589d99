"""The texts in sampling parameters, resolved for the client: bad words and constraints. Knows no request."""

import asyncio

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.text.json_schemas import Ignore, warn_once
from pyllm.frontend.text.structured_outputs import resolve_constraint
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.sampling_params import SamplingParams
from pyllm.structured_outputs_params import ResolvedConstraint


def resolve_texts(params: SamplingParams, tokenizer: Tokenizer, ignore: Ignore = warn_once) -> SamplingParams:
    """The same parameters with bad words as token ids, and structured outputs as a grammar.

    `ignore` is called with each keyword of a JSON schema that the grammar cannot enforce.

    Raises:
        RequestError: a bad word has no tokens, or a form is none.
    """
    structured = params.structured_outputs
    if structured is not None:
        params = msgspec.structs.replace(params, structured_outputs=resolve_constraint(structured, ignore))
    if params.bad_words:
        tokens = [*params.bad_words_token_ids, *_bad_words_token_ids(params, tokenizer)]
        params = msgspec.structs.replace(params, bad_words=(), bad_words_token_ids=tokens)
    return params


async def resolve_texts_aside(
    params: SamplingParams, tokenizer: Tokenizer, ignore: Ignore = warn_once
) -> SamplingParams:
    """`resolve_texts` on a thread where it may take long; raises as it does."""
    if isinstance(params.structured_outputs, ResolvedConstraint | None):
        return resolve_texts(params, tokenizer, ignore)
    return await asyncio.to_thread(resolve_texts, params, tokenizer, ignore)


def _bad_words_token_ids(params: SamplingParams, tokenizer: Tokenizer) -> list[list[int]]:
    """A word's tokens at the beginning of a text, and after a space where they are as many and begin with another one.

    Otherwise what follows the space is told apart by no token of its own, or the first form bans it already.
    """
    words = [word.lstrip() for word in params.bad_words or ()]
    if not all(words):
        raise RequestError("bad_words must not contain a word of nothing but spaces", "bad_words")
    first = tokenizer.encode_batch(words, add_special_tokens=False)
    spaced = tokenizer.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    forms = []
    for word, tokens, after_space in zip(words, first, spaced, strict=True):
        if not tokens:
            raise RequestError(f"bad_words has {word!r}, which has no tokens", "bad_words")
        forms.append(tokens)
        if len(after_space) == len(tokens) and after_space[0] != tokens[0]:
            forms.append(after_space)
    return forms
