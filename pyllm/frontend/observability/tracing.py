"""Spans of finished requests, for an OpenTelemetry collector: one `llm_request` each, with vLLM's attributes.

Knows the attributes and the exporter. A tracer imports OpenTelemetry, which `pip install pyllm[otel]` installs.
"""

import time
from typing import TYPE_CHECKING

import msgspec

from pyllm import __version__
from pyllm.frontend.observability.trace_context import TraceContext
from pyllm.parameters.sampling_params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

# Seconds within which a collector must take a batch; a server that shuts down waits as long for an absent collector.
EXPORT_SECONDS = 3.0

_NANOSECONDS = 1_000_000_000


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a span. Times are seconds from the request's arrival; `first_token` is None without a token.

    `params` are None for a request that samples nothing.
    """

    request_id: str
    model_name: str
    parent: TraceContext | None
    params: SamplingParams | None
    num_choices: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    first_token: float | None
    duration: float
    finish_reason: str


class Tracer:
    """Hands spans to an exporter, in a thread of its own. `endpoint` is where a collector takes OTLP over HTTP."""

    def __init__(self, exporter: "SpanExporter") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "pyllm", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pyllm", __version__)

    @classmethod
    def to_collector(cls, endpoint: str) -> "Tracer":
        """A tracer for the collector at a URL such as `http://localhost:4318/v1/traces`."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))

    def request(self, trace: RequestTrace) -> None:
        """Record a request that ends now."""
        from opentelemetry.trace import SpanKind

        end = time.time_ns()
        span = self._tracer.start_span(
            "llm_request",
            _context(trace.parent),
            kind=SpanKind.SERVER,
            start_time=end - int(trace.duration * _NANOSECONDS),
        )
        if span.is_recording():
            span.set_attributes(self._attributes(trace))
        span.end(end)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def _attributes(self, trace: RequestTrace) -> dict[str, str | int | float | list[str]]:
        params = trace.params
        attributes: dict[str, str | int | float | list[str]] = {
            "gen_ai.response.model": trace.model_name,
            "gen_ai.request.id": trace.request_id,
            "gen_ai.response.finish_reasons": [trace.finish_reason],
            "gen_ai.usage.num_sequences": trace.num_choices,
            "gen_ai.usage.prompt_tokens": trace.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": trace.num_output_tokens,
            "gen_ai.usage.cached_tokens": trace.num_cached_tokens,
            "gen_ai.latency.e2e": trace.duration,
        }
        if params is not None:
            attributes["gen_ai.request.temperature"] = params.temperature
            attributes["gen_ai.request.top_p"] = params.top_p
            attributes["gen_ai.request.n"] = params.n
        if params is not None and params.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = params.max_tokens
        if trace.first_token is not None:
            attributes["gen_ai.latency.time_to_first_token"] = trace.first_token
        return attributes


def _context(parent: TraceContext | None) -> "Context":
    """The caller's span as the parent, whose sampling flag counts; without a parent every request is recorded."""
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    if parent is None:
        return Context()
    state = TraceState.from_header([parent.state]) if parent.state else TraceState()
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    caller = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(parent.flags), trace_state=state)
    return trace.set_span_in_context(NonRecordingSpan(caller), Context())
