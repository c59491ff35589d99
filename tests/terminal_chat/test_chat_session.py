import asyncio
import itertools
import os
import signal

import pytest

from pyllm.errors import PyllmError
from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.chat_session import ChatSession
from pyllm.wire.server_client import PromptDetails, Usage
from tests.terminal_chat.scripted_source import Answer, KeptDisplay, ScriptedSource, whole


def session_of(*answers: Answer, system: str = "") -> tuple[ChatSession, ScriptedSource, KeptDisplay]:
    source, display = ScriptedSource(*answers), KeptDisplay()
    ticks = itertools.count()
    return ChatSession(source, display, system, clock=lambda: float(next(ticks))), source, display


async def test_a_conversation_grows_with_its_answers() -> None:
    session, source, display = session_of(whole("Hello"), whole("Fine"), system="Be kind.")
    assert await session.ask("Hi")
    assert await session.ask("How are you?")
    assert display.answers == ["Hello", "Fine"]
    assert [message["content"] for message in source.asked[1][0]] == ["Be kind.", "Hi", "Hello", "How are you?"]
    assert [message["role"] for message in source.asked[1][0]] == ["system", "user", "assistant", "user"]


async def test_the_figures_of_an_answer() -> None:
    usage = AnswerPiece(usage=Usage(10, 5, PromptDetails(4)))
    pieces = [AnswerPiece(reasoning="hm"), AnswerPiece("a"), AnswerPiece("b", finish_reason="length"), usage]
    session, _, display = session_of(pieces)
    await session.ask("Hi")
    # By this clock the request begins at 0, and the pieces come at 1, 2 and 3.
    expected = "5 tokens · 2.0 tokens/s · first token after 1.00 s · prompt 10 tokens (4 cached)"
    assert display.summaries == [f"{expected} · cut off at the limit of tokens"]


async def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    session, source, display = session_of([AnswerPiece("Once upon")], whole("And then"))
    asking = asyncio.create_task(session.ask("Tell"))
    await source.is_silent.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert not await asking
    assert source.num_left == 1
    assert display.summaries == ["stopped · first token after 1.00 s"]
    assert await session.ask("Go on")
    assert [message["content"] for message in source.asked[1][0]] == ["Tell", "Once upon", "Go on"]
    # Elsewhere the signal is Python's again.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_a_question_without_any_answer_is_not_part_of_the_conversation() -> None:
    session, source, display = session_of([PyllmError("too long")], whole("Yes"))
    assert not await session.ask("Much")
    assert display.errors == ["too long"]
    assert session.unanswered == "Much"
    assert await session.ask("Little")
    assert [message["content"] for message in source.asked[1][0]] == ["Little"]
    assert session.unanswered is None


async def test_what_came_before_a_failure_is_kept() -> None:
    session, _, display = session_of([AnswerPiece("half"), PyllmError("the stream broke off")])
    assert not await session.ask("Hi")
    assert display.errors == ["the stream broke off"]
    assert [message["content"] for message in session.messages] == ["Hi", "half"]


async def test_a_chat_that_is_cancelled_ends_its_request() -> None:
    session, source, _ = session_of([AnswerPiece("half")])
    asking = asyncio.create_task(session.ask("Hi"))
    await source.is_silent.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert source.num_left == 1


async def test_a_bug_is_not_hidden() -> None:
    session, source, _ = session_of()
    del source
    with pytest.raises(IndexError):  # There is no answer in the script.
        await session.ask("Hi")
