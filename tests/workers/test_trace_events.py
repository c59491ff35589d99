"""Spans of time added up, and as a Chrome trace."""

import gzip
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyllm.wire.profiles import MAX_TRACE_EVENTS
from pyllm.workers.trace_events import Span, StepSpan, Track, chrome_events, self_times


def nested(start: int, lengths: list[Any]) -> tuple[list[Span], int]:
    """Spans one after the other, each around those of its list; and where the last one ends."""
    spans: list[Span] = []
    for inner in lengths:
        within, end = nested(start + 1, inner)
        spans += [Span(f"op{len(inner) % 3}", start, end + 1 - start), *within]
        start = end + 1
    return spans, start


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=30), st.randoms())
def test_self_times_are_a_division_of_all_time(tree: list[Any], random: Any) -> None:
    spans, end = nested(0, tree)
    random.shuffle(spans)
    found = self_times([Track("torch", "", spans), Track("torch", "", spans), Track("gpu", "", spans)], "torch")
    assert sum(total for _, _, total in found) == 2 * end
    assert Counter({name: runs for name, runs, _ in found}) == Counter(span.name for span in spans * 2)


def test_a_span_that_ends_after_the_one_around_it_takes_no_more_than_was_left() -> None:
    track = Track("torch", "", [Span("outer", 0, 10), Span("inner", 8, 5)])
    assert self_times([track], "torch") == [("outer", 1, 8), ("inner", 1, 5)]


def events_of(packed: bytes) -> list[dict[str, Any]]:
    return msgspec.json.decode(gzip.decompress(packed), type=list[dict[str, Any]])


def test_a_rank_is_a_process_whose_tracks_are_named() -> None:
    origin = 1_800_000_000_000_000_000
    steps = [StepSpan(12, 40, 2, origin + 1_000, origin + 9_500)]
    tracks = [
        Track("rust", "Rust ops", [Span("norm", origin + 4_000, 2_500)]),
        Track("torch", "torch ops, thread 7", [Span("aten::mm", origin + 2_000, 500)]),
        Track("gpu", "GPU 1, stream 3", [Span("kernel", origin + 2_100, 250)]),
    ]
    packed, left_out = chrome_events(1, origin, steps, tracks)
    assert left_out == 0
    events = events_of(packed)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["pid"] for event in events} == {1}
    shown = [(names[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert shown == [
        ("steps", "step 12", 1.0, 8.5),
        ("Rust ops", "norm", 4.0, 2.5),
        ("torch ops, thread 7", "aten::mm", 2.0, 0.5),
        ("GPU 1, stream 3", "kernel", 2.1, 0.25),
    ]
    (step,) = (event for event in events if event.get("cat") == "step")
    assert step["args"] == {"tokens": 40, "rows": 2}


def test_a_trace_is_bounded_and_says_what_it_leaves_out() -> None:
    many = [Span("op", start, 1) for start in range(MAX_TRACE_EVENTS + 5)]
    packed, left_out = chrome_events(0, 0, [], [Track("torch", "1", many), Track("torch", "2", many[:7])])
    assert left_out == 12
    assert len(packed) < 8 * MAX_TRACE_EVENTS
    starts = [event["ts"] for event in events_of(packed) if event["ph"] == "X"]
    assert starts == [start / 1000 for start in range(MAX_TRACE_EVENTS)]
