import io
import os
import sys

import pytest

from pyllm.cli import main, read_options
from pyllm.commands.complete import split_arguments
from tests.answering_server import AnsweringServer


@pytest.mark.parametrize(
    ("arguments", "model", "prompt"),
    [
        ([], None, None),
        (["The capital of France is"], None, "The capital of France is"),
        (["hello"], None, "hello"),
        ([""], None, ""),
        (["see http://host for more"], None, "see http://host for more"),
        (["http://host"], "http://host", None),
        (["model.gguf"], "model.gguf", None),
        (["/nowhere/model"], "/nowhere/model", None),
        (["owner/repo"], "owner/repo", None),
        (["owner/repo:Q4_K_M"], "owner/repo:Q4_K_M", None),
        (["owner/repo@main"], "owner/repo@main", None),
        (["pros/cons/other words"], None, "pros/cons/other words"),
        (["--model", "owner/repo", "and/or"], None, "and/or"),
        (["--url", "http://host", "and/or"], None, "and/or"),
        (["one", "two"], "one", "two"),
        (["--max-tokens", "3", "one", "--seed", "1", "two", "-n", "2"], "one", "two"),
        (["one", "--", "--two"], "one", "--two"),
        ([__file__], __file__, None),
    ],
)
def test_which_word_is_the_prompt(arguments: list[str], model: str | None, prompt: str | None) -> None:
    assert split_arguments(read_options("complete", arguments)) == (model, prompt)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", "the prompt is empty"), (b"\n", "the prompt is empty")],
)
def test_a_prompt_on_stdin(
    content: bytes, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert main(["complete"]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("is_argument", [False, True])
def test_bytes_of_a_prompt_that_are_not_utf8_are_replaced(
    is_argument: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = "M\u00fcll: ".encode() + b"M\xfcll \xff\xfe"
    given = [os.fsdecode(prompt)] if is_argument else []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt), encoding="utf-8"))
    with AnsweringServer() as server:
        assert main(["complete", server.address, *given]) == 0
    assert [body["prompt"] for body in server.bodies] == ["M\u00fcll: M\ufffdll \ufffd\ufffd"]
    assert capsys.readouterr().err == "pyllm: bytes of the prompt that are not UTF-8 were replaced by \ufffd\n"


@pytest.mark.parametrize("arguments", [[], ["-q", os.fsdecode(b"M\xfcll")]])
def test_so_are_those_of_a_chat(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"M\xfcll\n"), encoding="utf-8"))
    with AnsweringServer() as server:
        assert main(["chat", server.address, *arguments]) == 0
    assert [body["messages"][-1]["content"] for body in server.bodies] == ["M\ufffdll"]


def test_what_stdout_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    with AnsweringServer(text="\u00e9 \u65e5") as server:
        assert main(["complete", server.address, "x"]) == 0
    assert written.getvalue() == b"\xe9 \\u65e5"
