"""The loop of a chat: on a terminal with an editor and Markdown, elsewhere with plain lines."""

import sys

from pyllm.errors import PyllmError
from pyllm.supervision.start_progress import can_redraw
from pyllm.terminal_chat.answer_source import AnswerSource
from pyllm.terminal_chat.chat_session import ChatSession, ReadMessage
from pyllm.terminal_chat.display import Display, PlainDisplay
from pyllm.terminal_chat.line_input import LineInput
from pyllm.terminal_chat.slash_commands import SLASH_COMMANDS, QuitChat, run_command
from pyllm.terminal_chat.transcript import Transcript


async def chat(source: AnswerSource, transcript: Transcript, question: str = "") -> int:
    """Chat until the user ends it, or ask the one question; return the exit code.

    Raises:
        PyllmError: the source cannot start.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    display: Display = PlainDisplay(is_terminal=sys.stdout.isatty())
    read: ReadMessage = LineInput().read
    if can_redraw(sys.stdout):
        from pyllm.terminal_chat.terminal_display import TerminalDisplay

        display = TerminalDisplay(keyboard=sys.stdin.fileno() if sys.stdin.isatty() else None)
    try:
        await source.check_chat()
        await source.start()
        session = ChatSession(source, display, transcript)
        display.notice(source.description)
        if question:
            return 0 if await session.ask(question) else 1
        if is_terminal:
            from pyllm.terminal_chat.terminal_input import TerminalInput, open_history, state_folder

            read = TerminalInput(list(SLASH_COMMANDS), open_history(state_folder())).read
            display.notice("/help lists the commands; Ctrl-D ends the chat\n")
        has_failed = await run_chat(session, read)
        return 1 if has_failed and not is_terminal else 0
    finally:
        await source.close()


async def run_chat(session: ChatSession, read: ReadMessage) -> bool:
    """Read and answer messages until there are no more; return whether one failed."""
    has_failed = was_interrupted = False
    while True:
        try:
            message = await read()
        except EOFError:
            return has_failed
        except KeyboardInterrupt:
            if was_interrupted:
                return has_failed
            was_interrupted = True
            session.display.notice("Ctrl-C again, or Ctrl-D, ends the chat")
            continue
        was_interrupted = False
        try:
            if message.startswith("/"):
                await run_command(session, message.strip())
            elif message.strip():
                has_failed |= not await session.ask(message.strip())
        except QuitChat:
            return has_failed
        except PyllmError as error:
            has_failed = True
            session.display.error(str(error))
