"""Spans of time: as events of a Chrome trace (the format of Perfetto and chrome://tracing), and added up by name.

Knows neither profilers nor the content of steps.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from pyllm.wire.profiles import MAX_TRACE_EVENTS

_STEPS, _RUST = 1, 2  # tracks of a rank; tracks of torch's threads and GPU streams follow
_GZIP = 16 + zlib.MAX_WBITS  # zlib's code for this format
_EVENTS_AT_ONCE = 1000


class Span(NamedTuple):
    """One run of an op or kernel, in nanoseconds of Unix time."""

    name: str
    start: int
    duration: int


class StepSpan(NamedTuple):
    """A step, in nanoseconds of Unix time: from its start, or from the end of the step before, to its tokens."""

    number: int
    num_tokens: int
    num_rows: int
    start: int
    end: int


Spans = Mapping[Any, Sequence[Span]]  # by host thread, or by device and stream
Totals = list[tuple[str, int, int]]  # name, number of runs, and nanoseconds of all of them


class _Event(msgspec.Struct, omit_defaults=True, gc=False):
    ph: str
    pid: int
    tid: int
    name: str
    cat: str = ""
    ts: float = -1.0  # microseconds
    dur: float = -1.0
    args: dict[str, Any] | None = None


def totals(spans: Iterable[Span]) -> Totals:
    """The runs and the time of each name."""
    return _added_up((span.name, span.duration) for span in spans)


def self_times(threads: Iterable[Sequence[Span]]) -> Totals:
    """The runs and the self time of each name: time in inner spans of the thread counts for the inner ones only."""
    return _added_up(pair for spans in threads for pair in _without_inner(spans))


def chrome_events(
    rank: int, origin: int, steps: Sequence[StepSpan], rust: Sequence[Span], torch: tuple[Spans, Spans]
) -> tuple[bytes, int]:
    """The events of a rank, a JSON array in gzip, and the number of spans left out.

    Times begin at `origin`, nanoseconds of Unix time. The rank is a process with a track for its steps, one for Rust's
    ops, and one for each host thread and each GPU stream of `torch`. It has the first 100,000 spans of each kind.
    """
    hosts, gpus = torch
    tracks = {_STEPS: "steps", _RUST: "Rust ops"}
    spans = [(_RUST, "rust", span) for span in rust[:MAX_TRACE_EVENTS]]
    left_out = len(rust) - len(spans)
    for kind, label, threads in (("torch", "torch ops, thread", hosts), ("gpu", "GPU, stream", gpus)):
        room = MAX_TRACE_EVENTS
        for thread, found in sorted(threads.items()):
            track = len(tracks) + 1
            tracks[track] = f"{label} {thread}"
            taken = found[:room]
            spans += ((track, kind, span) for span in taken)
            room -= len(taken)
            left_out += len(found) - len(taken)

    def events() -> Iterator[_Event]:
        yield _Event("M", rank, 0, "process_name", args={"name": f"rank {rank}"})
        yield _Event("M", rank, 0, "process_sort_index", args={"sort_index": rank})
        for track, name in tracks.items():
            yield _Event("M", rank, track, "thread_name", args={"name": name})
            yield _Event("M", rank, track, "thread_sort_index", args={"sort_index": track})
        for step in steps:
            args = {"tokens": step.num_tokens, "rows": step.num_rows}
            start, duration = (step.start - origin) / 1000, (step.end - step.start) / 1000
            yield _Event("X", rank, _STEPS, f"step {step.number}", "step", start, duration, args)
        for track, kind, span in spans:
            yield _Event("X", rank, track, span.name, kind, (span.start - origin) / 1000, span.duration / 1000)

    return _packed(events()), left_out


def _packed(events: Iterator[_Event]) -> bytes:
    """A gzip of the JSON array, encoded in parts: the text of all events would take far more memory."""
    packer, encoder = zlib.compressobj(wbits=_GZIP), msgspec.json.Encoder()
    parts = [packer.compress(b"[")]
    separator = b""
    while chunk := [*islice(events, _EVENTS_AT_ONCE)]:
        parts.append(packer.compress(separator + encoder.encode(chunk)[1:-1]))
        separator = b","
    return b"".join([*parts, packer.compress(b"]"), packer.flush()])


def _without_inner(spans: Sequence[Span]) -> Iterator[tuple[str, int]]:
    """Each span's name and self time. Spans are nested or apart."""
    own: list[int] = []
    ordered = sorted(spans, key=lambda span: (span.start, -span.duration))
    around: list[int] = []  # indices of the spans that the current one lies in
    for index, span in enumerate(ordered):
        while around and _end(ordered[around[-1]]) <= span.start:
            around.pop()
        own.append(span.duration)
        if around:
            own[around[-1]] -= min(span.duration, _end(ordered[around[-1]]) - span.start)
        around.append(index)
    return zip((span.name for span in ordered), own, strict=True)


def _end(span: Span) -> int:
    return span.start + span.duration


def _added_up(pairs: Iterable[tuple[str, int]]) -> Totals:
    found: dict[str, tuple[int, int]] = {}
    for name, duration in pairs:
        runs, total = found.get(name, (0, 0))
        found[name] = runs + 1, total + duration
    return [(name, runs, total) for name, (runs, total) in found.items()]
