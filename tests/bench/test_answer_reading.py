"""What counts as a token, whatever the server's form and wherever the network cuts; and what is named as a failure."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.answer_reading import read_answer, server_sent_events
from pyllm.bench.load_client import Exchange


def text(content: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"text": content, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


def exchange(*events: object, done: bool = True, status: int = 200, failure: str = "") -> Exchange:
    """An answer whose events come at 1 s, 2 s ..."""
    answer = Exchange()
    answer.sent, answer.status, answer.failure = 0.5, status, failure
    lines = [json.dumps(event) for event in events] + ["[DONE]"] * done
    answer.pieces = [(float(second), f"data: {line}\n\n".encode()) for second, line in enumerate(lines, 1)]
    return answer


@pytest.mark.parametrize(
    ("events", "arrivals", "ended"),
    [
        pytest.param([text("a"), text("b", "length")], [1, 2], 2, id="completions"),
        pytest.param([text("a"), text(""), text("", "stop")], [1, 2], 3, id="half a character, and an end of its own"),
        pytest.param([text("", "length")], [1], 1, id="an only token without text"),
        pytest.param(
            [delta(role="assistant", content=""), delta(content="a"), delta("stop")],
            [2],
            3,
            id="a role first",
        ),
        pytest.param([delta(role="assistant", content="a"), delta("stop", content="b")], [1, 2], 2, id="both"),
        pytest.param([delta(reasoning_content="a"), delta(content="b"), delta("stop")], [1, 2], 3, id="reasoning"),
        pytest.param([delta(tool_calls=[{"index": 0}]), delta("tool_calls")], [1], 2, id="tool calls"),
    ],
)
def test_chunks_with_output_count(events: list[object], arrivals: list[float], ended: float) -> None:
    record = read_answer(3, 0.25, exchange(*events, USAGE))
    assert record.error == ""
    assert (record.arrivals, record.ended) == (arrivals, ended)
    assert (record.prompt, record.due, record.input_tokens, record.output_tokens) == (3, 0.25, 7, 5)
    assert record.ttft == arrivals[0] - 0.5
    assert record.tpot == (ended - arrivals[0]) / 4


def test_without_usage_a_chunk_is_a_token() -> None:
    record = read_answer(0, 0.0, exchange(text("a"), text("b"), text("c", "stop")))
    assert (record.output_tokens, record.has_usage) == (3, False)
    assert read_answer(0, 0.0, exchange(text("a", "stop"))).tpot is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (exchange(failure="the connection closed", done=False), "the connection closed"),
        (exchange(text("a"), failure="reset", done=False), "reset after 59 bytes"),
        (exchange(text("a"), text("b"), done=False), "the answer broke off after 2 chunks"),
        (exchange(text("a"), {"error": {"message": "lost\nthe model"}}), "an error in the stream: lost the model"),
        (exchange(done=True), "an answer without a token"),
        (exchange(done=False), "HTTP 200 without a stream of events"),
        (exchange({"choices": 3}), "no chunk of a completion"),
    ],
)
def test_a_failure_is_named(answer: Exchange, error: str) -> None:
    assert error in read_answer(0, 0.0, answer).error


def test_bytes_that_are_no_text_are_a_failure_of_their_request() -> None:
    answer = exchange(text("a"))
    answer.pieces[0] = 1.0, b'data: {"choices": [{"text": "\xff"}]}\n\n'
    assert read_answer(0, 0.0, answer).error.startswith("a chunk is no chunk of a completion: 'utf-8' codec")


def test_an_error_of_the_server_is_its_message() -> None:
    answer = Exchange()
    answer.status, answer.pieces = 429, [(1.0, b'{"error": {"message": "too many"}}')]
    assert read_answer(0, 0.0, answer).error == "HTTP 429: too many"


@given(st.lists(st.text(alphabet="ab \r", max_size=5), min_size=1, max_size=6), st.data())
def test_events_do_not_depend_on_the_cuts(lines: list[str], data: st.DataObject) -> None:
    """Each event has the time of the piece in which its line ended."""
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)))) | {0, len(body)})
    pieces = [(float(end), body[begin:end]) for begin, end in itertools.pairwise(cuts)]
    events = list(server_sent_events(pieces))
    assert [event for _, event in events] == [line.strip().encode() for line in lines]
    end = 0
    for line, (when, _) in zip(lines, events, strict=True):
        end += len(f"data: {line}\n")
        assert when == min(cut for cut in cuts if cut >= end)
        end += 1
