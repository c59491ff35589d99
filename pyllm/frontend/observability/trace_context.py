"""W3C's trace context: the two headers that tie a request to its caller's trace. Sends nothing."""

import re

import msgspec

MAX_STATE_CHARACTERS = 512

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(msgspec.Struct, frozen=True):
    """The caller's span: ids in hexadecimal, its flags, and the vendors' `tracestate`, as it came."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""


def parse_trace_context(traceparent: str, tracestate: str) -> TraceContext | None:
    """The span in the headers; None where they are not valid, which the standard wants ignored."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = tracestate if len(tracestate) <= MAX_STATE_CHARACTERS and tracestate.isprintable() else ""
    return TraceContext(trace_id, span_id, int(flags, 16), state)
