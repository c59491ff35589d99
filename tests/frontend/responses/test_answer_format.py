"""However a text is cut, its events add up to the whole response."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.custom_input import CustomInputs
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.responses.answer_format import ResponsesFormat
from pyllm.frontend.responses.protocol import Response
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.text_decoder import ByteDecoder
from tests.frontend.anthropic.serving import CALLS, THOUGHT
from tests.frontend.chat.parsers.texts import HERMES
from tests.frontend.responses.serving import folded, named_events

TEXTS = [THOUGHT, CALLS, THOUGHT + "\nand", "plain 🙂", "", *(case.text for case in HERMES)]
COUNTS = TokenCounts(7, 5, 3)


def responses_format(
    parses: bool, ended: list[Response], has_events: bool = True, custom: tuple[str, ...] = ()
) -> ResponsesFormat:
    hermes = tool_call_parser("hermes")
    assert hermes is not None
    calls = CustomInputs(hermes, custom) if custom else hermes
    parser = SampleParser(calls, lambda: ByteDecoder([], []), False) if parses else None
    response = Response(id="resp_1", created_at=0, model="tiny", status="in_progress")
    return ResponsesFormat(
        response,
        parser,
        call_name=lambda index: f"call_{index}",
        logprobs=None,
        on_end=ended.append,
        block_size=16,
        has_events=has_events,
    )


@given(text=st.sampled_from(TEXTS), cuts=st.lists(st.integers(0, 400)), parses=st.booleans(), stops=st.booleans())
def test_events_add_up_to_the_response(text: str, cuts: list[int], parses: bool, stops: bool) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    finish = "stop" if stops else "length"
    ended: list[Response] = []
    streamed = responses_format(parses, ended)
    data = b"".join(streamed.text(0, TextDelta(text[start:end], [])) for start, end in pairwise(places))
    data += streamed.text(0, TextDelta("", [], finish)) + streamed.end(COUNTS)
    whole = responses_format(parses, ended).whole([TextDelta(text, [], finish)], [[]], COUNTS)
    events = named_events(data.decode())
    plain = msgspec.to_builtins(whole)
    assert folded(events) == plain["output"] != []
    assert events[-1]["type"] == f"response.{'completed' if stops else 'incomplete'}"
    assert _untimed(events[-1]["response"]) == _untimed(plain)
    assert len(ended) == 2
    assert len({item["id"] for item in plain["output"]}) == len(plain["output"])


def test_without_events_the_response_is_the_same() -> None:
    told, silent = responses_format(True, []), responses_format(True, [], has_events=False)
    for each in (told, silent):
        events = each.text(0, TextDelta(THOUGHT, [], "stop")) + each.end(COUNTS)
        assert bool(events) == (each is told)
    assert _untimed(msgspec.to_builtins(silent.response)) == _untimed(msgspec.to_builtins(told.response))


def test_a_failure_ends_what_is_open() -> None:
    ended: list[Response] = []
    streamed = responses_format(False, ended)
    data = streamed.text(0, TextDelta("Hel", [])) + streamed.failed(Failure(503, "gone", code="engine_unavailable"))
    events = named_events(data.decode())
    (message,) = folded(events)
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hel")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "engine_unavailable", "message": "gone"}
    assert ended == [streamed.response]


def _untimed(response: dict[str, object]) -> dict[str, object]:
    return {**response, "completed_at": None}


def test_a_custom_tools_call_has_events_and_an_item_of_its_own() -> None:
    ended: list[Response] = []
    made = responses_format(True, ended, custom=("shell",))
    parts = ['<tool_call>\n{"name": "shell", "arguments": {"input": "ls', "\\n\\ud83d", '\\ude42"}}\n</tool_call>']
    data = b"".join(made.text(0, TextDelta(part, [])) for part in parts)
    data += made.text(0, TextDelta("", [], "stop")) + made.end(COUNTS)
    events = [event for event in named_events(data.decode()) if "custom" in event["type"] or "item" in event]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        *["custom_tool_call_input.delta"] * 3,
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert [event["delta"] for event in events[1:4]] == ["ls", "\n", "🙂"]
    assert events[4]["input"] == "ls\n🙂"
    item = {"type": "custom_tool_call", "id": events[0]["item"]["id"], "call_id": "call_0", "name": "shell"}
    assert events[0]["item"] == {**item, "status": "in_progress", "input": ""}
    assert events[5]["item"] == {**item, "status": "completed", "input": "ls\n🙂"}
    assert msgspec.to_builtins(ended[0].output) == [events[5]["item"]]
