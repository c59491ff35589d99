"""Log-probabilities in the shapes of OpenAI's two routes, and of vLLM's `prompt_logprobs`. Knows no request."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from pyllm.client.logprobs import MOST_UNPACKED, Logprob, LogprobEntries, chosen, likeliest, unpacked
from pyllm.frontend.openai.protocol import ChatLogprob, ChatLogprobs, ChatTopLogprob, CompletionLogprobs

LEAST = -9999.0  # JSON has no infinity; the number is vLLM's.

_encode = msgspec.json.Encoder().encode

TokenBytes = Callable[[int], bytes]
# The name of a token in an answer.
TokenName = Callable[[int, Logprob], str]


def by_text(token: int, entry: Logprob) -> str:
    """A token by its text."""
    del token
    return entry.decoded_token or ""


def by_id(token: int, entry: Logprob) -> str:
    """A token by its id, as vLLM writes it: unlike texts, no two of these are the same."""
    del entry
    return f"token_id:{token}"


def token_names(returns_ids: bool | None) -> TokenName:
    """The names that `return_tokens_as_token_ids` asks for."""
    return by_id if returns_ids else by_text


def completion_logprobs(
    logprobs: Sequence[LogprobEntries], offset: int, name: TokenName = by_text
) -> tuple[CompletionLogprobs, int]:
    """Log-probabilities of tokens whose text begins at the character `offset`, and the offset of the text behind."""
    answer = CompletionLogprobs([], [], [], [])
    for entries in map(unpacked, logprobs):
        own = chosen(entries)
        answer.tokens.append("" if own is None else name(*own))
        answer.token_logprobs.append(None if own is None else _finite(own[1]))
        answer.top_logprobs.append(None if own is None else _by_name(entries, name))
        answer.text_offset.append(offset)
        offset += 0 if own is None else len(by_text(*own))
    return answer, offset


def add_completion_logprobs(answer: CompletionLogprobs, more: CompletionLogprobs) -> None:
    """Append log-probabilities of the tokens that follow."""
    answer.tokens += more.tokens
    answer.token_logprobs += more.token_logprobs
    answer.top_logprobs += more.top_logprobs
    answer.text_offset += more.text_offset


def chat_logprobs(
    logprobs: Sequence[LogprobEntries], num_top: int, token_bytes: TokenBytes, name: TokenName = by_text
) -> ChatLogprobs:
    """Log-probabilities of tokens, with the `num_top` likeliest tokens for each."""
    content = []
    for entries in map(unpacked, logprobs):
        own = chosen(entries)
        if own is None:
            continue
        token, entry = own
        best = likeliest(entries, num_top)
        top = (ChatTopLogprob(name(number, each), _finite(each), list(token_bytes(number))) for number, each in best)
        shown = _as_json(list, top, len(best))
        content.append(ChatLogprob(name(token, entry), _finite(entry), list(token_bytes(token)), shown))
    return ChatLogprobs(content)


def prompt_logprobs(logprobs: Sequence[LogprobEntries]) -> list[dict[int, Logprob] | None]:
    """Log-probabilities of a prompt, as in vLLM: the list begins with None for the first token."""
    answer: list[dict[int, Logprob] | None] = [None]
    for entries in map(unpacked, logprobs):
        finite = ((token, Logprob(_finite(entry), entry.rank, entry.decoded_token)) for token, entry in entries.items())
        answer.append(_as_json(dict, finite, len(entries)))
    return answer


def _by_name(entries: dict[int, Logprob], name: TokenName) -> dict[str, float]:
    """The entries by their tokens' names; of tokens with the same text, as halves of characters, the likeliest."""
    values: dict[str, float] = {}
    for token, entry in entries.items():
        text = name(token, entry)
        values[text] = max(_finite(entry), values.get(text, LEAST))
    shown: dict[str, float] = _as_json(dict, values.items(), len(values))
    return shown


def _as_json(kind: type[list[Any]] | type[dict[Any, Any]], items: Iterable[Any], count: int) -> Any:
    """A list or dict of so many items; a large one is JSON already.

    Its items are encoded one by one: other threads run between them, and the garbage collector has none to look at.
    """
    if count <= MOST_UNPACKED:
        return kind(items)
    around = _encode(kind())
    parts = [_encode(kind([item]))[1:-1] for item in items]
    return msgspec.Raw(b"%b%b%b" % (around[:1], b",".join(parts), around[1:]))


def _finite(entry: Logprob) -> float:
    return entry.logprob if entry.logprob > LEAST else LEAST  # In this order LEAST replaces NaN, too.
