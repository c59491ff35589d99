"""One completion for a pipe: prints its text to stdout as it arrives, and nothing else."""

import contextlib
import sys
from typing import TextIO

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answers import Fields
from pyllm.terminal_chat.chat_session import AnswerSource
from pyllm.terminal_chat.terminal_text import plain


async def print_completion(
    source: AnswerSource, prompt: str, fields: Fields, as_chat: bool = False, output: TextIO | None = None
) -> None:
    """Start the source, print the completion, and close the source. `as_chat` sends the prompt as a user's message.

    Of several answers, the first is printed as it arrives, then the others, each on a new line. On a terminal, control
    characters are left out, and the last line is ended.

    Raises:
        PyllmError: the request failed, or the answer's JSON was cut off.
    """
    output = output or sys.stdout
    is_terminal = output.isatty()
    texts: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    try:
        await source.start(for_chat=as_chat)
        asked = [{"role": "user", "content": prompt}] if as_chat else prompt
        async with contextlib.aclosing(source.answer(asked, fields)) as pieces:
            async for piece in pieces:
                if piece.finish_reason is not None:
                    reasons[piece.choice] = piece.finish_reason
                content = plain(piece.content) if is_terminal else piece.content
                texts.setdefault(piece.choice, []).append(content)
                if content and piece.choice == 0:
                    output.write(content)
                    output.flush()
    finally:
        await source.close()
    for choice in sorted(set(texts) - {0}):
        output.write("".join(["\n", *texts[choice]]))
    if is_terminal or len(texts) > 1:
        output.write("\n")
    output.flush()
    if fields.get("response_format") is not None and "length" in reasons.values():
        raise PyllmError("the answer was cut off before its JSON was complete: give more --max-tokens")
