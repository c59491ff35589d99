"""However a text is cut, its events add up to the whole message."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.anthropic.answer_format import MessageFormat
from pyllm.frontend.anthropic.protocol import Message, MessageUsage
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.text_decoder import ByteDecoder
from tests.frontend.anthropic.serving import CALLS, THOUGHT, folded, named_events
from tests.frontend.chat.parsers.texts import HERMES

TEXTS = [THOUGHT, CALLS, THOUGHT + "\nand", "plain 🙂", "", *(case.text for case in HERMES)]
COUNTS = TokenCounts(7, 5, 3)


def answer_format(parses: bool) -> MessageFormat:
    parser = SampleParser(tool_call_parser("hermes"), lambda: ByteDecoder([], []), False) if parses else None
    message = Message("msg_1", "tiny", [], MessageUsage(7, 0))
    return MessageFormat(message, parser, lambda index: f"toolu_{index}")


@given(text=st.sampled_from(TEXTS), cuts=st.lists(st.integers(0, 400)), parses=st.booleans(), reason=st.booleans())
def test_events_add_up_to_the_message(text: str, cuts: list[int], parses: bool, reason: bool) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    finish = "stop" if reason else "length"
    streamed = answer_format(parses)
    events = b""
    for start, end in pairwise(places):
        piece = text[start:end]
        if (around := streamed.around(0)) is not None:
            events += around[0] + b"%b" % _json(piece) + around[1]
        else:
            events += streamed.text(0, TextDelta(piece, []))
    events += streamed.text(0, TextDelta("", [], finish)) + streamed.end(COUNTS)
    whole = answer_format(parses).whole([TextDelta(text, [], finish)], [[]], COUNTS)
    assert folded(named_events(events.decode())) == _plain(whole)


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)


def _plain(whole: msgspec.Struct) -> object:
    return msgspec.to_builtins(whole)
