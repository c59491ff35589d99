from .metrics import Metrics, RequestMetrics
from .trace_context import TraceContext, parse_trace_context
from .tracing import RequestTrace, Tracer

__all__ = [
    "Metrics",
    "RequestMetrics",
    "RequestTrace",
    "TraceContext",
    "Tracer",
    "parse_trace_context",
]
