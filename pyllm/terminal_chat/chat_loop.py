"""The loop of a chat: on a terminal with an editor and Markdown, elsewhere with plain lines."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable

from pyllm.errors import PyllmError
from pyllm.supervision.start_progress import can_redraw
from pyllm.terminal_chat.chat_session import AnswerSource, ChatSession, Display
from pyllm.terminal_chat.display import PlainDisplay
from pyllm.terminal_chat.slash_commands import SLASH_COMMANDS, QuitChat, run_command
from pyllm.terminal_chat.terminal_text import open_stdin, whole

# Reads a message; raises EOFError at the end of input, and KeyboardInterrupt for Ctrl-C.
ReadMessage = Callable[[], Awaitable[str]]


async def chat(source: AnswerSource, system: str = "", question: str = "") -> int:
    """Chat until the user ends it, or ask the one question; return the exit code.

    Raises:
        PyllmError: the source cannot start.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    display: Display = PlainDisplay(is_terminal=sys.stdout.isatty())
    if can_redraw(sys.stdout):
        from pyllm.terminal_chat.terminal_display import TerminalDisplay

        display = TerminalDisplay(keyboard=sys.stdin.fileno() if sys.stdin.isatty() else None)
    try:
        await source.start(for_chat=True)
        session = ChatSession(source, display, system)
        display.notice(source.description)
        if question:
            return 0 if await session.ask(question) else 1
        if not is_terminal:
            return 1 if await run_chat(session, read_lines()) else 0
        from pyllm.terminal_chat.terminal_input import TerminalInput, open_history

        display.notice("/help lists the commands; Ctrl-D ends the chat\n")
        await run_chat(session, TerminalInput(list(SLASH_COMMANDS), open_history()).read)
        return 0
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


def read_lines() -> ReadMessage:
    """Input without a terminal: each line of stdin is a message; a backslash at its end joins the next line to it.

    A thread reads, so that the event loop keeps running; a daemon, so that the program can end while it waits.
    """
    stream, loop, messages = open_stdin(), asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read_all() -> None:
        message = ""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the chat has ended.
            for line in iter(stream.readline, ""):
                message += whole(line).rstrip("\r\n")
                if message.endswith("\\"):
                    message = message[:-1] + "\n"
                else:
                    loop.call_soon_threadsafe(messages.put_nowait, message)
                    message = ""
            loop.call_soon_threadsafe(messages.put_nowait, message)
            loop.call_soon_threadsafe(messages.put_nowait, None)

    async def read() -> str:
        if (message := await messages.get()) is None:
            raise EOFError
        return message

    threading.Thread(target=read_all, daemon=True).start()
    return read
