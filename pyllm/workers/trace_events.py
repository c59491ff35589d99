"""Spans of time: as events of a Chrome trace (the format of Perfetto and chrome://tracing), and added up by name.

Knows neither profilers nor the content of steps.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from pyllm.wire.profiles import MAX_TRACE_EVENTS, OpKind

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


class Track(NamedTuple):
    """The spans of one source: Rust's ops, a host thread, or a stream of a GPU."""

    kind: OpKind
    label: str
    spans: list[Span]


class _Event(msgspec.Struct, omit_defaults=True, gc=False):
    ph: str
    pid: int
    tid: int
    name: str
    cat: str = ""
    ts: float = -1.0  # microseconds
    dur: float = -1.0
    args: dict[str, Any] | None = None


def self_times(tracks: Iterable[Track], kind: OpKind) -> list[tuple[str, int, int]]:
    """Each name's runs and nanoseconds in tracks of a kind; time in inner spans of a track counts for these only."""
    found: dict[str, tuple[int, int]] = {}
    for track in tracks:
        for name, duration in _without_inner(track.spans) if track.kind == kind else ():
            runs, total = found.get(name, (0, 0))
            found[name] = runs + 1, total + duration
    return [(name, runs, total) for name, (runs, total) in found.items()]


def chrome_events(rank: int, origin: int, steps: Sequence[StepSpan], tracks: Sequence[Track]) -> tuple[bytes, int]:
    """The events of a rank, a JSON array in gzip, and the number of spans left out.

    Times begin at `origin`, nanoseconds of Unix time. The rank is a process with a track for its steps before the
    others. It has the first 100,000 spans of each kind.
    """
    room = Counter({track.kind: MAX_TRACE_EVENTS for track in tracks})
    shown, left_out = list[Track](), 0
    for track in tracks:
        shown.append(track._replace(spans=track.spans[: room[track.kind]]))
        room[track.kind] -= len(shown[-1].spans)
        left_out += len(track.spans) - len(shown[-1].spans)

    def events() -> Iterator[_Event]:
        yield _Event("M", rank, 0, "process_name", args={"name": f"rank {rank}"})
        yield _Event("M", rank, 0, "process_sort_index", args={"sort_index": rank})
        for number, label in enumerate(("steps", *(track.label for track in shown)), 1):
            yield _Event("M", rank, number, "thread_name", args={"name": label})
            yield _Event("M", rank, number, "thread_sort_index", args={"sort_index": number})
        for step in steps:
            args = {"tokens": step.num_tokens, "rows": step.num_rows}
            start, duration = (step.start - origin) / 1000, (step.end - step.start) / 1000
            yield _Event("X", rank, 1, f"step {step.number}", "step", start, duration, args)
        for number, track in enumerate(shown, 2):
            for name, start, duration in track.spans:
                yield _Event("X", rank, number, name, track.kind, (start - origin) / 1000, duration / 1000)

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
