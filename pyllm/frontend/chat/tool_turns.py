"""The nearest forms of calls and tools' results. One small function for each thing that a chat template may lack.

`message_shapes.py` chooses the needed ones, and has those of other messages.
"""

import hashlib
import re
from functools import lru_cache
from typing import Any

from pyllm.frontend.chat.tool_prompt import plain_calls, plain_result
from pyllm.frontend.text.templates import Message

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
EMPTY_USER: Message = {"role": "user", "content": ""}

Messages = list[Message]


def calls_in_words(messages: Messages, tool_call_parser: str) -> Messages:
    """Move calls into the assistant's text, as the model writes them."""
    return [plain_calls(message, tool_call_parser) if message.get("tool_calls") else message for message in messages]


def unanswered_in_words(messages: Messages, tool_call_parser: str) -> Messages:
    """Move the calls of a message into its text if none was answered, except in the last message."""
    changed = list(messages)
    for index, message in enumerate(messages[:-1]):
        if message.get("tool_calls") and messages[index + 1]["role"] != "tool":
            changed[index] = plain_calls(message, tool_call_parser)
    return changed


def late_results_moved(messages: Messages) -> Messages:
    """Move late results behind their call and its earlier results."""
    if not _has_late_result(messages):
        return messages
    turns: list[Messages] = []
    of_call: dict[Any, Messages] = {}
    for message in messages:
        if message["role"] == "tool" and (turn := of_call.get(message.get("tool_call_id"))):
            turn.append(message)
            continue
        turns.append([message])
        of_call.update({call.get("id"): turns[-1] for call in message.get("tool_calls") or ()})
    return [message for turn in turns for message in turn]


def _has_late_result(messages: Messages) -> bool:
    ids: list[Any] = []  # of calls that may be answered directly
    for message in messages:
        if message["role"] != "tool":
            calls = message.get("tool_calls")
            ids = [call.get("id") for call in calls] if calls else []
        elif message.get("tool_call_id") not in ids:
            return True
    return False


def results_in_order(messages: Messages) -> Messages:
    """Put the results of one message's calls in the order of the calls."""
    changed = list(messages)
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls or len(calls) < 2:
            continue
        ids = [call.get("id") for call in calls]
        if [result.get("tool_call_id") for result in messages[index + 1 : index + 1 + len(ids)]] != ids:
            end = end_of(messages, index + 1, "tool")
            answers = _by_call(messages[index + 1 : end])
            ordered = [result for call_id in ids for result in answers.pop(call_id, ())]
            changed[index + 1 : end] = ordered + [result for rest in answers.values() for result in rest]
    return changed


def lone_results_as_text(messages: Messages) -> Messages:
    """Turn a result that answers no earlier call into the user's text."""
    ids: set[Any] = set()
    changed = list(messages)
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in ids:
                changed[index] = plain_result(message)
        elif calls := message.get("tool_calls"):
            ids.update([call.get("id") for call in calls])
    return changed


def users_joined_to_results(messages: Messages) -> Messages:
    """Join a user's text to the tool's result before it."""
    changed: Messages = []
    for message in messages:
        if changed and message["role"] == "user" and changed[-1]["role"] == "tool":
            changed[-1] = {**changed[-1], "content": joined_texts([changed[-1], message])}
        else:
            changed.append(message)
    return changed


def texts_apart(messages: Messages) -> Messages:
    """Split the text from a message with calls: it comes first, and the calls keep the reasoning."""
    changed: Messages = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            changed += [{"role": message["role"], "content": message["content"]}, {**message, "content": ""}]
        else:
            changed.append(message)
    return changed


def users_before_calls(messages: Messages) -> Messages:
    """Put an empty user message between an assistant's message and a call."""
    changed: Messages = []
    for message in messages:
        if changed and message.get("tool_calls") and changed[-1]["role"] == "assistant":
            changed.append(EMPTY_USER)
        changed.append(message)
    return changed


def single_calls(messages: Messages) -> Messages:
    """Split messages of several calls: each call is a message, followed by its result."""
    changed: Messages = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls")
        if not calls or len(calls) < 2:
            changed.append(message)
            continue
        end = end_of(messages, index, "tool")
        answers = _by_call(messages[index:end])
        index = end
        last = {call.get("id"): number for number, call in enumerate(calls)}
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": message["role"], "content": ""}
            changed.append({**first, "tool_calls": [call]})
            if own := answers.get(call_id := call.get("id")):
                # One of several calls with the same id has one of the answers, and the last the rest.
                num_own = len(own) if last[call_id] == number else 1
                changed += own[:num_own]
                del own[:num_own]
        changed += [result for rest in answers.values() for result in rest]
    return changed


def _by_call(results: Messages) -> dict[Any, Messages]:
    answers: dict[Any, Messages] = {}
    for result in results:
        answers.setdefault(result.get("tool_call_id"), []).append(result)
    return answers


def results_as_users(messages: Messages) -> Messages:
    return [plain_result(message) if message["role"] == "tool" else message for message in messages]


def with_short_ids(message: Message) -> Message:
    """Replace ids that are not nine letters and digits, as Mistral's templates want them."""
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    calls = message.get("tool_calls")
    return (
        {**message, "tool_calls": [{**call, "id": _short_id(call.get("id"))} for call in calls]} if calls else message
    )


@lru_cache(maxsize=4096)
def _short_id(call_id: str | None) -> str:
    """The id itself if it has the form, else nine digits of its hash."""
    if call_id and _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(str(call_id).encode(errors="surrogatepass")).hexdigest()[:9]


def end_of(messages: Messages, begin: int, *roles: str) -> int:
    """The index behind the messages of these roles that begin at an index."""
    while begin < len(messages) and messages[begin]["role"] in roles:
        begin += 1
    return begin


def joined_texts(messages: Messages) -> str:
    return "\n\n".join([message["content"] for message in messages if message["content"]])
