import io

from pyllm.terminal_chat.answers import AnswerPiece
from pyllm.terminal_chat.display import PlainDisplay

PIECES = [AnswerPiece(reasoning="hm\x1b[2J"), AnswerPiece("Hel"), AnswerPiece("lo\x1b[2J")]


async def shown(is_terminal: bool) -> tuple[str, str]:
    output, notices = io.StringIO(), io.StringIO()
    display = PlainDisplay(output, notices, is_terminal)
    for _ in range(2):
        display.begin_answer()
        for piece in PIECES:
            display.add(piece)
        await display.end_answer("figures")
    display.error("no\x1b[2J")
    return output.getvalue(), notices.getvalue()


async def test_a_file_gets_the_text_alone_as_it_is() -> None:
    assert await shown(is_terminal=False) == ("Hello\x1b[2J\n" * 2, "pyllm: no\x1b[2J\n")


async def test_a_terminal_that_cannot_be_drawn_on_gets_each_text_once() -> None:
    assert await shown(is_terminal=True) == ("hm[2J\n\nHello[2J\n" * 2, "figures\nfigures\npyllm: no[2J\n")
