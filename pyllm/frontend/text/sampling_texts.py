"""The texts in sampling parameters, resolved for the client: bad words and constraints. Knows no request."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence

from pyllm.errors import RequestError
from pyllm.frontend.text.json_schemas import Ignore, warn_once
from pyllm.frontend.text.structured_outputs import resolve_constraint
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.vocabulary import Vocabulary
from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import MAX_BAD_WORDS_TOKENS, SamplingParams
from pyllm.parameters.structured_outputs_params import ResolvedConstraint

_MARKS = "\t\"'`([{<>-_/\\.,:;!?*#=$@&|~+%^“\u2018«¿¡—…"
# Texts that may stand before a word, in pairs: the part that is removed again, and the text that is encoded with the
# word. A space belongs to the word.
_PLACES = [("\n", "\n"), ("", ""), ("a", "a "), *((char, char) for char in _MARKS)]
# Texts that one request may have encoded to find words whose last signs are part of a longer token.
_MOST_JOINED_TEXTS = 8192


def resolve_texts(params: SamplingParams, tokenizer: Tokenizer, ignore: Ignore = warn_once) -> None:
    """Turn a request's own parameters into token ids: bad words into theirs, structured outputs into a grammar.

    `ignore` is called with each keyword of a JSON schema that the grammar cannot enforce.

    Raises:
        RequestError: a bad word has no tokens, or too many, or structured outputs are malformed.
    """
    if params.structured_outputs is not None:
        params.structured_outputs = resolve_constraint(params.structured_outputs, ignore)
    if params.bad_words:
        params.bad_words_token_ids = [*params.bad_words_token_ids, *_bad_words_token_ids(params, tokenizer)]
        params.bad_words = ()


async def resolve_texts_aside(params: SamplingParams, tokenizer: Tokenizer, ignore: Ignore = warn_once) -> None:
    """`resolve_texts` on a thread, unless there is nothing to resolve; raises as it does."""
    if not isinstance(params.structured_outputs, ResolvedConstraint | None) or params.bad_words:
        await asyncio.to_thread(resolve_texts, params, tokenizer, ignore)


def add_stop_tokens(params: SamplingParams, tokenizer: Tokenizer, names: Iterable[str]) -> None:
    """Also stop at the added tokens of these names, as far as the tokenizer has them."""
    token_ids = (token for name in names if (token := tokenizer.added_token_id(name)) is not None)
    params.stop_token_ids = tuple(dict.fromkeys([*(params.stop_token_ids or ()), *token_ids]))


def _bad_words_token_ids(params: SamplingParams, tokenizer: Tokenizer) -> list[list[int]]:
    """Each word's tokens in every place where it can stand, except forms that end with a shorter one."""
    # A space after a word is part of the next word's token, and any word may follow.
    words = [word.strip() for word in params.bad_words or ()]
    if not all(words):
        raise RequestError("bad_words must not contain a word of nothing but spaces", "bad_words")
    forms: dict[str, list[list[int]]] = {}
    for word in words:
        places = tokenizer.vocabulary.places(word)
        (of_word,) = token_forms([word], tokenizer, places)
        if not all(of_word):
            raise RequestError(f"bad_words has {word!r}, which has no tokens", "bad_words")
        joined = _joined_forms(word, of_word, tokenizer.vocabulary)
        ends = _forms_with_joined_end(word, tokenizer, places, _MOST_JOINED_TEXTS // len(words))
        forms[word] = _distinct([*of_word, *joined, *ends])
    sizes = {word: sum(map(len, of_word)) for word, of_word in forms.items()}
    num_tokens = sum(sizes.values())
    largest = max(sizes, key=lambda word: sizes[word])
    allowed = f"at most {MAX_BAD_WORDS_TOKENS} tokens in all the forms that they have, most of them of {largest!r:.80}"
    check("bad_words", num_tokens, num_tokens <= MAX_BAD_WORDS_TOKENS, allowed)
    return [form for of_word in forms.values() for form in of_word]


def token_forms(words: Sequence[str], tokenizer: Tokenizer, others: Collection[str] = ()) -> list[list[list[int]]]:
    """Each word's tokens in every place where it can begin, at the beginning of a line first: they differ.

    In `(knew` a vocabulary may have one token for the bracket and the k, which is then the form's first token. `others`
    are more texts that may stand before the words.
    """
    known, places = zip(*_PLACES, *zip(others, others, strict=True), strict=True)
    before = tokenizer.encode_batch(list(known), add_special_tokens=False)
    whole = tokenizer.encode_batch([place + word for word in words for place in places], add_special_tokens=False)
    rests = [_rest(tokens, before[at % len(places)]) for at, tokens in enumerate(whole)]
    return [rests[at : at + len(places)] for at in range(0, len(rests), len(places))]


def _joined_forms(word: str, forms: list[list[int]], vocabulary: Vocabulary) -> Iterator[list[int]]:
    """Tokens that contain the word and its surroundings, and its forms with a last token that extends beyond it."""
    if "\0" not in word:
        yield from ([token] for token in vocabulary.with_word(word))
    for *start, last in _distinct(forms):
        if start:
            yield from ([*start, token] for token in vocabulary.longer(last))


def _forms_with_joined_end(word: str, tokenizer: Tokenizer, places: Collection[str], most: int) -> Iterator[list[int]]:
    """Forms whose last token has signs from the word's end and the text after it: `-` and `>"` for `->`.

    At most about `most` texts are encoded, the shortest ones.
    """
    vocabulary = tokenizer.vocabulary
    starts = [at for at in range(1, len(word)) if not any(char.isalnum() or char.isspace() for char in word[at:])]
    before = [("", ""), ("a", "a"), ("a", "a "), *((place, place) for place in sorted(places, key=len))]
    known = tokenizer.encode_batch([start for start, _ in before], add_special_tokens=False)
    for at in starts:
        tokens = sorted(vocabulary.beyond(word[at:]), key=lambda token: len(vocabulary.texts[token]))
        texts = [
            (number, token, place + word[:at] + vocabulary.texts[token])
            for number, (_, place) in enumerate(before)
            for token in tokens
        ][: most // len(starts)]
        encoded = tokenizer.encode_batch([text for _, _, text in texts], add_special_tokens=False)
        for (number, token, _), whole in zip(texts, encoded, strict=True):
            form = _rest(whole, known[number])
            if form[-1:] == [token] and len(form) > 1:
                yield form


def _rest(tokens: list[int], start: list[int]) -> list[int]:
    """The tokens after the start; the end of the start may be part of the first of them."""
    same = 0
    while same < min(len(start), len(tokens)) and tokens[same] == start[same]:
        same += 1
    return tokens[same:]


def _distinct(forms: list[list[int]]) -> list[list[int]]:
    """The forms that do not end with a shorter one, which bans them already."""
    kept: dict[tuple[int, ...], None] = {}
    for form in sorted(map(tuple, forms), key=len):
        if not any(form[at:] in kept for at in range(len(form))):
            kept[form] = None
    return list(map(list, kept))
