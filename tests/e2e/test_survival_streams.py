"""The accounts of lost and repeated tokens, of kills that count, and of what a server leaves behind can say no."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import blame
from tests.e2e.chaos_census import Census, Leaks, leaks
from tests.e2e.chaos_clients import Account, Known
from tests.e2e.kills import Run, Tally
from tests.e2e.survival_streams import (
    Request,
    Transcript,
    compare,
    lost_and_repeated,
    mixed_requests,
    num_under_way,
    stop_string,
)

USAGE = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
REST = Census({1: "a", 2: "b"}, {1: 10, 2: 20}, {1: 4, 2: 5}, frozenset({"x"}), frozenset(), 0)


def event(*tokens: int, finish: str | None = None, **more: Any) -> str:
    text = "".join(chr(token) for token in tokens)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "token_ids": list(tokens)}
    return json.dumps({"choices": [choice | more], "usage": None})


def transcript(*events: str, usage: dict[str, int] | None = USAGE) -> Transcript:
    told = Transcript()
    for number, data in enumerate([*events, json.dumps({"choices": [], "usage": usage}), "[DONE]"]):
        told.feed(f"id: {number}")
        told.feed(f"data: {data}")
        told.feed("")
    return told


def twin() -> Transcript:
    return transcript(event(65), event(66, 67), event(68, finish="length"))


def test_equal_streams_do_not_differ_however_their_events_were_cut() -> None:
    assert not any(compare(twin(), transcript(event(65, 66), event(67, 68, finish="length"))))


@pytest.mark.parametrize(
    ("seen", "lost", "repeated"),
    [
        (transcript(event(65), event(67), event(68, finish="length")), 1, 0),
        (transcript(event(65), event(65, 66, 67), event(68, finish="length")), 0, 1),
        (transcript(event(65), event(66, 67), event(69, finish="length")), 1, 1),
    ],
)
def test_lost_and_repeated_tokens_are_counted(seen: Transcript, lost: int, repeated: int) -> None:
    difference = compare(twin(), seen)
    assert (difference.lost, difference.repeated) == (lost, repeated)
    assert "text" in difference.others


def test_every_other_difference_is_named() -> None:
    assert compare(twin(), transcript(event(65, 66, 67, 68, finish="stop"))).others == ("finish stop, not length",)
    other = transcript(event(65, 66, 67, 68, finish="length"), usage=USAGE | {"completion_tokens": 5})
    assert "usage" in compare(twin(), other).others[0]
    columns = {"tokens": ["A"], "token_logprobs": [-0.5], "top_logprobs": [{"A": -0.5}]}
    rated = [event(65, logprobs=columns | {"token_logprobs": [value]}, finish="length") for value in (-0.5, -0.25)]
    assert compare(transcript(rated[0]), transcript(rated[1])).others == ("logprobs",)
    broken = Transcript()
    broken.feed(f"data: {event(65, 66, 67, 68, finish='length')}")
    assert "no end" in compare(twin(), broken).others
    broken.feed('data: {"error": {"message": "gone"}}')
    assert "gone" in compare(twin(), broken).others
    assert compare(twin(), Transcript()).lost == 4


def test_a_stream_whose_client_left_only_has_to_begin_as_its_twin() -> None:
    left = Transcript()
    left.feed(f"data: {event(65, 66)}")
    assert not any(compare(twin(), left, is_cut=True))
    left.feed(f"data: {event(68)}")
    assert any(compare(twin(), left, is_cut=True))


def test_what_came_of_an_event_before_the_connection_broke_is_not_counted() -> None:
    told = Transcript()
    told.feed("id: 1")
    told.feed(f"data: {event(65)}")
    told.feed("id: 2")
    told.begin_connection()
    assert told.last_id == "1"
    told.feed("id: 2")
    told.feed(f"data: {event(66)}")
    assert (told.last_id, told.choices[0].tokens) == ("2", [65, 66])


def test_whole_answers_are_the_sum_of_their_stream() -> None:
    told = Transcript()
    told.feed_whole(
        event(65, 66, 67, 68, finish="length").replace('"usage": null', f'"usage": {json.dumps(USAGE)}').encode()
    )
    assert not any(compare(twin(), told))


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_tokens_balance(first: list[int], second: list[int]) -> None:
    lost, repeated = lost_and_repeated(first, second)
    assert len(first) - lost + repeated == len(second)
    assert (lost, repeated) == (0, 0) or first != second
    assert (lost, repeated) != (0, 0) or first == second


def test_kills_count_while_a_stream_is_under_way() -> None:
    told = Transcript()
    told.times = [(1.0, 0), (2.0, 0), (3.0, 0)]
    assert num_under_way([0.5, 1.5, 2.5, 3.5], [told, Transcript()]) == 2
    assert told.has_had_since(1.5, 2) is False  # Its choice is not known yet.
    assert not Transcript().has_had_since(0.0, 1)


def test_tally_and_account_say_no() -> None:
    requests = mixed_requests(4)[:1]
    lossy = transcript(event(65), event(67), event(68, finish="length"))
    tally = Tally()
    tally.add(requests, [twin()], Run([twin()], []))
    assert tally.is_flawless
    tally.add(requests, [twin()], Run([lossy], []))
    assert (tally.lost, tally.is_flawless) == (1, False)
    account = Account()
    known = Known(Request("greedy", "/", {}), twin())
    account.enter("anew", known, twin(), 2, 1)
    assert (account.lost, account.num_blameworthy, account.resumed, account.refused) == (0, 0, 1, 1)
    account.enter("anew", known, lossy, 1, 0)
    assert (account.lost, account.num_blameworthy) == (1, 1)
    failed = Transcript()
    for number, process in enumerate(("worker", "engine core"), 1):
        failed.error = f"500: {blame(process, 2 + number, number)}: it was killed"
        account.enter("anew", known, failed, 1, 0)
    assert (account.num_blameworthy, account.blamed.total()) == (1, 2)
    failed.error = "500"
    account.enter("anew", known, failed, 1, 0)
    assert account.num_blameworthy == 2


def test_census_says_what_is_left_behind() -> None:
    assert leaks(REST, REST) == Leaks(0, 0, 0, 0)
    more = REST._replace(
        titles={1: "a", 3: "b", 4: "c"},
        descriptors={1: 12, 3: 99, 4: 1},
        sockets={1: 5, 3: 99, 4: 0},
        files=frozenset({"x", "y"}),
        segments=frozenset({"of nobody's"}),
        zombies=1,
    )
    assert leaks(REST, more) == Leaks(processes=2, descriptors=2, sockets=2, segments=1)


def test_spare_that_has_taken_a_place_is_no_leak() -> None:
    spare = REST._replace(titles={1: "a", 2: "a spare"}, descriptors={1: 10, 2: 3}, sockets={1: 4, 2: 1})
    assert leaks(spare, REST) == Leaks(0, 0, 0, 0)


@pytest.mark.parametrize(
    "text",
    ["one two three four five six seven eight nine ten", "a canvas of sky, a canvas of sky, a canvas of light now"],
)
def test_stop_string_comes_in_the_second_half_only(text: str) -> None:
    piece = stop_string(text)
    assert len(piece) >= 9
    assert text.index(piece) >= len(text) // 2
