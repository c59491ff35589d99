import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pyllm.terminal_chat.terminal_input import TerminalInput, open_history

ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP, HOME = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A", "\x1b[H"


async def typed(*keys: str) -> str:
    with create_pipe_input() as pipe:
        pipe.send_text("".join(keys))
        return await TerminalInput(["/help"], InMemoryHistory(), pipe, DummyOutput()).read()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["one", ENTER], "one"),
        (["one", ALT_ENTER, "two", ENTER], "one\ntwo"),
        (["one\\", ENTER, "two", ENTER], "one\ntwo"),
        (["  one\\", ENTER, "two\\", ENTER, ENTER], "  one\ntwo\n"),
        (["\x1b[200~pasted\nlines\x1b[201~", ENTER], "pasted\nlines"),
        (["wrong", CTRL_C, "right", ENTER], "right"),
        (["c:\\ is one", HOME, ENTER], "c:\\ is one"),
        (["\x12wrong", CTRL_C, "right", ENTER], "right"),
    ],
)
async def test_keys(keys: list[str], message: str) -> None:
    assert await typed(*keys) == message


async def test_ctrl_c_and_ctrl_d_at_an_empty_prompt() -> None:
    with pytest.raises(KeyboardInterrupt):
        await typed(CTRL_C)
    with pytest.raises(EOFError):
        await typed(CTRL_D)


async def test_messages_are_found_again_by_the_next_chat(tmp_path: Path) -> None:
    with create_pipe_input() as pipe:
        pipe.send_text(f"one{ENTER}two\\{ENTER}lines{ENTER}")
        chat = TerminalInput([], open_history({}, lambda: tmp_path), pipe, DummyOutput())
        assert [await chat.read(), await chat.read()] == ["one", "two\nlines"]
        history = open_history({"XDG_STATE_HOME": str(tmp_path / ".local/state")})
        assert [message async for message in history.load()] == ["two\nlines", "one"]
    assert stat.S_IMODE((tmp_path / ".local/state/pyllm/chat_history").stat().st_mode) == 0o600


def test_a_history_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "pyllm/chat_history"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o644)
    assert isinstance(open_history({"XDG_STATE_HOME": str(tmp_path)}), FileHistory)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_where_no_file_can_be_history_is_kept_in_memory(tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError

    (tmp_path / "file").touch()
    assert isinstance(open_history({"XDG_STATE_HOME": str(tmp_path / "file")}), InMemoryHistory)
    assert isinstance(open_history({}, homeless), InMemoryHistory)
