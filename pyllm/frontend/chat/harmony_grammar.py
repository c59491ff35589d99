"""Grammars of gpt-oss' answers: reasoning, remarks, and at last a call or the final message. Compiles nothing."""

import json
from collections.abc import Iterable

from pyllm.frontend.chat.grammar_rules import TEXT, TokenId, ToolSchema, marker_rule, schema_rule, until, within
from pyllm.frontend.chat.parsers.harmony import (
    HARMONY_CHANNEL,
    HARMONY_CONSTRAIN,
    HARMONY_END,
    HARMONY_MESSAGE,
    HARMONY_START,
)

_INNER = "pyllm_content"


def harmony_answer(tools: Iterable[ToolSchema], content: str | None, must_call: bool, token_id: TokenId) -> str:
    """An answer that ends with a call that follows its schema, or unless it `must_call` with the final message.

    The final message follows the grammar of `content`, or is any text.

    Raises:
        RequestError: a schema cannot be sent, or the content's grammar is nested too deeply.
    """
    channel, message = marker_rule(HARMONY_CHANNEL, token_id), marker_rule(HARMONY_MESSAGE, token_id)
    header_end = f'" " {marker_rule(HARMONY_CONSTRAIN, token_id)} "json" {message}'
    rules, calls = [], []
    for index, (name, schema) in enumerate(tools):
        calls.append(f"call_{index}")
        rules.append(f"call_{index}: {json.dumps(name)} {header_end} args_{index}")
        rules.append(f"args_{index}: {schema_rule(schema, name)}")
    lasts = [f'{channel} "commentary" " to=functions." ({" | ".join(calls)})'] if calls else []
    if not must_call:
        lasts.append(f'{channel} "final" {message} ' + ("TEXT" if content is None else f"@{_INNER}"))
    lark = "\n".join(
        [
            f'start: (aside {marker_rule(HARMONY_START, token_id)} "assistant")* last',
            f'aside: {channel} ("analysis" | "commentary") {message} ended',
            until("ended", HARMONY_END, token_id),
            f"last: {' | '.join(lasts)}",
            f"TEXT: {TEXT}",
            *rules,
        ]
    )
    return lark if content is None or must_call else within(lark, content, _INNER)
