import io

import pytest

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answers import AnswerPiece, Fields
from pyllm.terminal_chat.completion import print_completion
from tests.terminal_chat.scripted_source import ScriptedSource, whole

PLAIN: Fields = {}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_the_text_alone_is_printed() -> None:
    source, output = ScriptedSource([AnswerPiece(reasoning="hm"), *whole(" Paris.\x1b")]), io.StringIO()
    await print_completion(source, "France", PLAIN, output=output)
    assert output.getvalue() == " Paris.\x1b"
    assert source.asked == [("France", PLAIN)]
    assert source.is_started
    assert source.is_closed


async def test_a_terminal_gets_its_line_ended_and_no_control_characters() -> None:
    output = Terminal()
    await print_completion(ScriptedSource(whole(" Paris.\x1b[2J")), "France", PLAIN, output=output)
    assert output.getvalue() == " Paris.[2J\n"


async def test_a_chat_has_the_prompt_as_a_users_message() -> None:
    source = ScriptedSource(whole("Paris"))
    await print_completion(source, "Capital?", PLAIN, as_chat=True, output=io.StringIO())
    assert source.asked[0][0] == [{"role": "user", "content": "Capital?"}]


async def test_several_answers_come_one_after_another() -> None:
    pieces = [("a", 1), ("b", 0), ("c", 2), ("d", 0), ("e", 1)]
    answer = [AnswerPiece(text, choice=choice) for text, choice in pieces]
    output = io.StringIO()
    source = ScriptedSource([*answer, *(AnswerPiece(choice=choice, finish_reason="stop") for choice in range(3))])
    await print_completion(source, "x", {"n": 3}, output=output)
    assert output.getvalue() == "bd\nae\nc\n"


async def test_json_that_was_cut_off_is_a_failure() -> None:
    fields = {"response_format": {"type": "json_object"}}
    with pytest.raises(PyllmError, match="more --max-tokens"):
        await print_completion(ScriptedSource(whole('{"a', "length")), "x", fields, output=io.StringIO())
    await print_completion(ScriptedSource(whole("{}")), "x", fields, output=io.StringIO())
    await print_completion(ScriptedSource(whole("a b", "length")), "x", PLAIN, output=io.StringIO())


async def test_a_failure_closes_the_source() -> None:
    source = ScriptedSource([AnswerPiece("half"), PyllmError("busy")])
    output = io.StringIO()
    with pytest.raises(PyllmError, match="busy"):
        await print_completion(source, "x", PLAIN, output=output)
    assert output.getvalue() == "half"
    assert source.is_closed


async def test_a_model_that_cannot_chat_continues_texts() -> None:
    source = ScriptedSource(whole(" Paris"))
    source.has_chat_template = False
    with pytest.raises(PyllmError, match="no chat template"):
        await print_completion(source, "Capital?", PLAIN, as_chat=True, output=io.StringIO())
    assert not source.is_started
    await print_completion(source, "France", PLAIN, output=io.StringIO())
