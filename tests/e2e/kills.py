"""Runs of the mixed streams with kills in them, held against a run without. Knows processes by their titles only."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.e2e.killing_core import Trigger
from tests.e2e.server import until
from tests.e2e.survival_streams import (
    Request,
    Streams,
    Transcript,
    compare,
    mixed_requests,
    num_under_way,
    stop_string,
)
from tests.e2e.titles import find

# What came for a stream right after a kill may have been on its way already; after so many events it has recovered.
EVENTS_BETWEEN = 2


class Run(NamedTuple):
    """What the streams of one run have had, and when somebody was killed meanwhile (`time.monotonic`)."""

    seen: list[Transcript]
    kills: list[float]


class Tally:
    """What runs with kills have shown: how many kills counted, and where streams were not their twins."""

    def __init__(self) -> None:
        self.runs = self.kills = self.counted = self.tokens = self.lost = self.repeated = 0
        self.others: list[str] = []

    def add(self, requests: Sequence[Request], twins: Sequence[Transcript], run: Run) -> None:
        """Enter one run of these requests."""
        seen, kills = run
        self.runs += 1
        self.kills += len(kills)
        self.counted += num_under_way(kills, seen)
        for request, twin, transcript in zip(requests, twins, seen, strict=True):
            difference = compare(twin, transcript)
            self.tokens += transcript.num_tokens
            self.lost += difference.lost
            self.repeated += difference.repeated
            self.others += [f"{request.name}: {other}" for other in difference.others]

    @property
    def is_flawless(self) -> bool:
        """Whether every stream was its twin."""
        return not (self.lost or self.repeated or self.others)

    def record(self, name: str) -> dict[str, Any]:
        """What is printed."""
        return {"name": name, **vars(self)}


def with_stop_string(address: str, num_tokens: int) -> list[Request]:
    """The mixed requests, the one with a stop string being given one that ends it in its second half."""
    free = [request for request in mixed_requests(num_tokens) if request.name == "stop string"]
    (transcript,) = Streams(address, free).join()
    return mixed_requests(num_tokens, stop_string(transcript.choices[0].text))


def twins_of(address: str, requests: Sequence[Request]) -> list[Transcript]:
    """What the requests get when nobody dies."""
    twins = Streams(address, requests).join()
    assert [twin.error for twin in twins] == [""] * len(twins)
    assert all(
        twin.choices[0].finish == "stop"
        for twin, request in zip(twins, requests, strict=True)
        if "stop" in request.body
    )
    return twins


def kill_at_plan(
    address: str, trigger: Trigger, requests: Sequence[Request], plan: int, num_kills: int, rank: int = 0
) -> Run:
    """Run with a rank killed as the core's next but `plan` step begins, then at random ones; tells when."""
    before = len(trigger.kills)
    choose = random.Random(plan)
    trigger.arm(plan, rank)
    streams = Streams(address, requests)
    for _ in range(1, num_kills):
        if not streams.wait_for(lambda: trigger.is_disarmed and recovered(streams, trigger.kills[-1])):
            break
        trigger.arm(choose.randint(1, 5), rank)
    transcripts = streams.join()
    trigger.disarm()
    return Run(transcripts, trigger.kills[before:])


def kill_at_events(address: str, requests: Sequence[Request], events: Sequence[int], kill: Callable[[], None]) -> Run:
    """Run with a kill once so many events have come; the first counts from the start, others from the recovery."""
    streams = Streams(address, requests)
    kills: list[float] = []
    for number in events:
        if kills and not streams.wait_for(lambda: recovered(streams, kills[-1])):
            break
        due = streams.num_events() + number
        if not streams.wait_for(lambda: streams.num_events() >= due):  # noqa: B023
            break
        kills.append(time.monotonic())
        kill()
    return Run(streams.join(), kills)


def kill_at_instants(
    address: str, requests: Sequence[Request], seconds: Sequence[float], kill: Callable[[], None]
) -> Run:
    """Run with a kill so many seconds after the first event, and after each recovery, whatever is done just then."""
    streams = Streams(address, requests)
    kills: list[float] = []
    for delay in seconds:
        ready = (lambda: recovered(streams, kills[-1])) if kills else (lambda: streams.num_events() > 0)
        if not streams.wait_for(ready):
            break
        threading.Event().wait(delay)
        kills.append(time.monotonic())
        kill()
    return Run(streams.join(), kills)


def recovered(streams: Streams, instant: float) -> bool:
    """Whether every stream has gone on since."""
    return all(transcript.has_had_since(instant, EVENTS_BETWEEN) for transcript in streams.transcripts)


def kill_titled(supervisor: int, title: str) -> None:
    """SIGKILL the process of this title, once there is one."""
    until(lambda: bool(find(supervisor, title)), f"a process with the title {title}")
    for process in find(supervisor, title):
        process.kill()
