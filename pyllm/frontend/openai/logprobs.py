"""Log-probabilities in the shapes of OpenAI's two routes, and of vLLM's `prompt_logprobs`. Knows no request."""

from collections.abc import Callable, Sequence

from pyllm.frontend.logprobs import Logprob, LogprobEntries, chosen, likeliest
from pyllm.frontend.openai.protocol import ChatLogprob, ChatLogprobs, ChatTopLogprob, CompletionLogprobs

LEAST = -9999.0  # JSON has no infinity; the number is vLLM's.

TokenBytes = Callable[[int], bytes]


def completion_logprobs(logprobs: Sequence[LogprobEntries], offset: int) -> tuple[CompletionLogprobs, int]:
    """Those of tokens whose text begins at `offset`, in characters; and where the text of the next one begins."""
    answer = CompletionLogprobs([], [], [], [])
    for entries in logprobs:
        own = chosen(entries)
        text = "" if own is None else own[1].decoded_token or ""
        answer.tokens.append(text)
        answer.token_logprobs.append(None if own is None else _finite(own[1]))
        answer.top_logprobs.append(None if own is None else _by_text(entries))
        answer.text_offset.append(offset)
        offset += len(text)
    return answer, offset


def chat_logprobs(logprobs: Sequence[LogprobEntries], num_top: int, token_bytes: TokenBytes) -> ChatLogprobs:
    """Those of some tokens, with so many of the likeliest for each."""
    content = []
    for entries in logprobs:
        own = chosen(entries)
        if own is None:
            continue
        token, entry = own
        top = [
            ChatTopLogprob(each.decoded_token or "", _finite(each), list(token_bytes(number)))
            for number, each in likeliest(entries, num_top)
        ]
        content.append(ChatLogprob(entry.decoded_token or "", _finite(entry), list(token_bytes(token)), top))
    return ChatLogprobs(content)


def prompt_logprobs(logprobs: Sequence[LogprobEntries]) -> list[LogprobEntries | None]:
    """Those of a prompt, as vLLM has them: nothing is known of its first token, where they begin."""
    return [None, *({token: _as_json(entry) for token, entry in entries.items()} for entries in logprobs)]


def _by_text(entries: LogprobEntries) -> dict[str, float]:
    """The entries by their tokens' texts; of several with one text, such as halves of characters, the likeliest."""
    values: dict[str, float] = {}
    for entry in entries.values():
        text = entry.decoded_token or ""
        values[text] = max(_finite(entry), values.get(text, LEAST))
    return values


def _as_json(entry: Logprob) -> Logprob:
    return Logprob(_finite(entry), entry.rank, entry.decoded_token)


def _finite(entry: Logprob) -> float:
    return entry.logprob if entry.logprob > LEAST else LEAST  # In this order LEAST stands for what is no number, too.
