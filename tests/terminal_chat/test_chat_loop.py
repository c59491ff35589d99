import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.chat_loop import chat, run_chat
from pyllm.terminal_chat.chat_session import ChatSession
from pyllm.terminal_chat.slash_commands import SLASH_COMMANDS, run_command
from tests.terminal_chat.scripted_source import Answer, KeptDisplay, ScriptedSource, whole

CTRL_C = KeyboardInterrupt()


async def run(
    messages: Sequence[str | KeyboardInterrupt], *answers: Answer
) -> tuple[ChatSession, ScriptedSource, KeptDisplay, bool]:
    source, display = ScriptedSource(*answers), KeptDisplay()
    session = ChatSession(source, display)
    script = iter(messages)

    async def read() -> str:
        message = next(script, None)
        if message is None:
            raise EOFError
        if isinstance(message, KeyboardInterrupt):
            raise message
        return message

    has_failed = await run_chat(session, read)
    assert next(script, None) is None, "the chat ended early"
    return session, source, display, has_failed


async def test_messages_are_answered_and_blank_ones_are_not() -> None:
    _, source, display, has_failed = await run(["Hi", "", "  \n", " /etc?"], whole("Hello"), whole("A folder"))
    assert display.answers == ["Hello", "A folder"]
    assert source.asked[1][0][-1]["content"] == "/etc?"
    assert not has_failed


async def test_ctrl_c_ends_the_chat_the_second_time() -> None:
    _, _, display, _ = await run([CTRL_C, "Hi", CTRL_C, CTRL_C], whole("Hello"))
    assert display.notices == ["Ctrl-C again, or Ctrl-D, ends the chat"] * 2


async def test_help_names_every_command_and_the_keys() -> None:
    _, _, display, _ = await run(["/help"])
    assert all(f"{name} " in display.notices[0] for name in SLASH_COMMANDS)
    assert "Alt-Enter, or a backslash" in display.notices[0]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/hlep", "did you mean /help?"),
        ("/dance", "/help lists them"),
        ("/etc/hosts is what", "needs a space before it"),
        ("/save", "needs a file"),
        ("/load", "needs a file"),
        ("/load nowhere.json", "No such file"),
        ("/load ~nobody-of-this-name/x", "no home folder"),
        ("/retry", "no message to try again"),
        ("/params heat 3", "there is no parameter 'heat': choose from temperature"),
        ("/params temperature", "needs a value, or default"),
        ("/params temperature hot", "temperature must be a number, got 'hot'"),
        ("/params temperature 200", "from 0 to 100"),
        ("/params max_tokens 0", "at least 1"),
        ("/params reasoning_effort 3", "must be a text"),
        ("/params stop", "needs a value"),
        ("/model third", "no model third"),
    ],
)
async def test_a_wrong_command_says_what_is_wrong_and_the_chat_goes_on(line: str, error: str) -> None:
    _, _, display, has_failed = await run([line, "Hi"], whole("Hello"))
    assert error in display.errors[0]
    assert display.answers == ["Hello"]
    assert has_failed


async def test_a_system_prompt_is_set_shown_and_removed() -> None:
    lines = ["/system Be brief.", "Hi", "/system", "/system -", "Ho"]
    _, source, display, _ = await run(lines, whole("a"), whole("b"))
    assert source.asked[0][0][0] == {"role": "system", "content": "Be brief."}
    assert [message["content"] for message in source.asked[1][0]] == ["Hi", "a", "Ho"]
    assert display.notices == ["system prompt: Be brief."] * 2 + ["system prompt: none"]


async def test_parameters_are_set_and_unset() -> None:
    lines = ["/params temperature 0.5", "/params seed=3", '/params stop ["a", "b"]', "Hi"]
    lines += ["/params seed default", "/params stop .", "Ho", "/params default", "Hu"]
    _, source, display, _ = await run(lines, whole("a"), whole("b"), whole("c"))
    assert [fields for _, fields in source.asked] == [
        {"temperature": 0.5, "seed": 3, "stop": ["a", "b"]},
        {"temperature": 0.5, "stop": ["."]},
        {},
    ]
    assert "temperature         0.5\ntop_p               default" in display.notices[0]


async def test_retry_asks_the_last_message_again() -> None:
    lines = ["One", "Two", "/retry", "/clear", "/retry"]
    _, source, display, _ = await run(lines, whole("1"), whole("2"), whole("II"))
    asked = [[message["content"] for message in messages] for messages, _ in source.asked]
    assert asked == [["One"], ["One", "1", "Two"], ["One", "1", "Two"]]
    assert display.answers == ["1", "2", "II"]
    assert "no message" in display.errors[0]


async def test_retry_after_a_failure() -> None:
    session, source, _, _ = await run(["One", "/retry"], [PyllmError("busy")], whole("1"))
    assert [messages for messages, _ in source.asked] == [[{"role": "user", "content": "One"}]] * 2
    assert [message["content"] for message in session.messages] == ["One", "1"]


async def test_a_model_is_shown_and_selected() -> None:
    _, source, display, _ = await run(["/model", "/model other"])
    assert display.notices == ["scripted of a test", "others: other", "other of a test"]
    assert source.model == "other"


async def test_ollamas_commands() -> None:
    lines = ['/set system "Be brief."', "/set parameter num_predict 5", "/set temperature 0.5", "/show system", "/show"]
    session, source, display, _ = await run([*lines, "Hi", "/bye"], whole("Hello"))
    assert session.system == "Be brief."
    assert source.asked[0][1] == {"max_tokens": 5, "temperature": 0.5}
    assert display.notices[6] == display.notices[3] == "system prompt: Be brief."
    _, _, display, _ = await run(["/set parameter num_ctx 4096", "/set verbose", "/show license", "/?"])
    assert "--max-model-len" in display.errors[0]
    assert "there is no /set verbose" in display.errors[1]
    assert "there is no /show license" in display.errors[2]
    assert "/help" in display.notices[0]


async def test_ollamas_switches_are_fields_of_the_request() -> None:
    lines = ["/set think", "/set format  json", "Hi", "/set nothink", "/set noformat", "/set think=high", "Ho"]
    _, source, display, _ = await run([*lines, "/show template"], whole("a"), whole("b"))
    assert [fields for _, fields in source.asked] == [
        {"chat_template_kwargs": {"enable_thinking": True}, "response_format": {"type": "json_object"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    assert "it takes `system TEXT`, `parameter NAME VALUE`, think, nothink, format json" in display.errors[0]
    assert display.notices[-1] == "{{ messages }}"


async def test_a_server_does_not_report_its_template() -> None:
    session, source, display, _ = await run([])
    source.chat_template = None
    await run_command(session, "/show template")
    assert "a server does not report its chat template" in display.notices[0]


async def test_quotes_within_a_system_prompt_stay() -> None:
    session, _, _, _ = await run(['/set system You are "x"'])
    assert session.system == 'You are "x"'


async def test_quit_ends_the_chat() -> None:
    with pytest.raises(AssertionError, match="ended early"):
        await run(["/quit", "Hi"], whole("never"))


async def test_a_saved_conversation_is_a_request_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    lines = ["/system Be brief.", "/params seed 1", "Hi", f"/save {path}", "/clear", f"/load {path}", "Ho"]
    _, source, _, _ = await run(lines, whole("Hello"), whole("Ha"))
    saved = json.loads(path.read_text())
    assert saved == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
        ],
        "seed": 1,
    }
    messages, fields = source.asked[1]
    assert messages == [*saved["messages"], {"role": "user", "content": "Ho"}]
    assert fields == {"seed": 1}


async def test_only_saved_conversations_are_written_over_and_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    _, _, display, _ = await run([f"/save {path}", f"/load {path}", f"/save {tmp_path}/x/y"])
    assert path.read_text() == "mine"
    assert ["is no saved conversation" in error for error in display.errors] == [True, True, False]
    assert "cannot write" in display.errors[2]
    not_utf8 = b'{"messages": [{"role": "user", "content": "\xff"}]}'
    for content, error in ((b'{"messages": [], "temperature": 1000}', "from 0 to 100"), (not_utf8, "utf-8")):
        path.write_bytes(content)
        _, _, display, _ = await run([f"/load {path}"])
        assert f"{path} is no saved conversation: " in display.errors[0]
        assert error in display.errors[0]
    _, _, display, _ = await run([f"/save {path}"])
    assert f"{path} is there and is no saved conversation" in display.errors[0]
    assert path.read_bytes() == not_utf8


async def chat_on(
    monkeypatch: pytest.MonkeyPatch, text: str, *answers: Answer, question: str = ""
) -> tuple[int, ScriptedSource]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    source = ScriptedSource(*answers)
    code = await chat(source, question=question)
    assert source.is_started
    assert source.is_closed
    return code, source


async def test_without_a_terminal_lines_are_messages_and_answers_are_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [AnswerPiece(reasoning="hm"), *whole("**Hello**\x1b")], whole("two\n")
    code, source = await chat_on(monkeypatch, "Hi\n\nfirst\\\nsecond", *answers)
    out, err = capsys.readouterr()
    assert out == "**Hello**\x1b\ntwo\n"
    assert err == "scripted of a test\n"
    assert source.asked[1][0][-1]["content"] == "first\nsecond"
    assert code == 0


async def test_without_a_terminal_a_failure_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = await chat_on(monkeypatch, "Hi\nHo\n", [PyllmError("busy")], whole("yes"))
    assert code == 1
    assert capsys.readouterr() == ("yes\n", "scripted of a test\npyllm: busy\n")


async def test_one_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await chat_on(monkeypatch, "never read", whole("yes"), question="Hi"))[0] == 0
    assert (await chat_on(monkeypatch, "", [PyllmError("busy")], question="Hi"))[0] == 1
    assert capsys.readouterr().out == "yes\n"


async def test_a_model_that_cannot_chat_is_not_loaded() -> None:
    source = ScriptedSource()
    source.has_chat_template = False
    with pytest.raises(PyllmError, match="no chat template"):
        await chat(source)
    assert (source.is_started, source.is_closed) == (False, True)
