"""Messages typed at a terminal: several lines, history, completion of commands. Knows only the names of commands.

Enter sends; Alt-Enter, or a backslash at the end of the line, makes a new line.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

PROMPT, CONTINUATION = "> ", "  "
PLACEHOLDER = FormattedText([("fg:ansibrightblack", "a message, or /help")])


class TerminalInput:
    """Reads from the terminal, or from `keys` and `screen`. Completes `commands` at the beginning of a message."""

    def __init__(
        self, commands: Sequence[str], history: History, keys: Input | None = None, screen: Output | None = None
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=history,
            multiline=True,
            key_bindings=_bindings(),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            prompt_continuation=lambda width, number, wrapped: CONTINUATION,
            input=keys,
            output=screen,
        )

    async def read(self) -> str:
        """The next message.

        Raises:
            EOFError: Ctrl-D at an empty prompt.
            KeyboardInterrupt: Ctrl-C at an empty prompt; otherwise Ctrl-C empties the prompt.
        """
        return await self._session.prompt_async(PROMPT, placeholder=_placeholder)


def open_history(environment: Mapping[str, str] = os.environ, home: Callable[[], Path] = Path.home) -> History:
    """The messages of earlier chats, in `$XDG_STATE_HOME/pyllm/chat_history` (`~/.local/state`); else in memory.

    Only its owner can read the file.
    """
    try:
        path = Path(environment.get("XDG_STATE_HOME") or home() / ".local/state").absolute() / "pyllm/chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
    except (OSError, RuntimeError):  # `home` raises the latter for a user without one.
        return InMemoryHistory()
    return FileHistory(path)


def _placeholder() -> FormattedText:
    """The placeholder of an empty prompt; none while a search shows a message, though the buffer is empty then."""
    return FormattedText() if is_searching() else PLACEHOLDER


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end_of_line:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    # During a search, prompt_toolkit's own binding leaves the search.
    @bindings.add("c-c", filter=~is_searching)
    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    return bindings
